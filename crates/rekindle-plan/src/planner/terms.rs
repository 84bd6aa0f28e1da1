//! The symbols of the recurrences, as arrays over stages, the loss being stage L like any other.
//!
//! All sizes are exact bytes above those that are always held. Let G(t) = sum of g_k over k > t, the parameter
//! gradients that exist when the backward pass of stage t starts:
//! ```text
//! null(s,j,t) = G(t) + y_{t+1} + max( x_{s+1} + f_s , max_{s<k<j}( x_k + x_{k+1} + f_k ) )
//! all(s,t)    = max( G(t) + y_{t+1} + X_{s+1} + F_s ,  G(s) + g_s + y_s + y_{s+1} + X_{s+1} + b_s )
//! ```
//! null is the peak of the untracked forwards from stage s to a_j, and all is the peak of the tracked forward and the
//! backward pass of stage s, while y_{t+1} is held. Both are computed here without G(t), which depends on the rest of
//! the chain. They then depend only on stages s..t, so equal windows have equal terms.

use crate::chain::{Chain, Stage};

/// A chain in the form of the recurrences.
pub(crate) struct Terms {
    /// Stages 0..L-1 and the loss, with F at least so that X + F is no less than x + f: a tracked forward makes its output
    /// first, as an untracked one does.
    pub(crate) nodes: Vec<Stage>,
    /// x_i for i in 0..=L+1.
    pub(crate) x: Vec<u64>,
    /// y_i for i in 0..=L+1.
    pub(crate) y: Vec<u64>,
    /// G(t) for t in 0..=L.
    pub(crate) later_grads: Vec<u64>,
}

impl Terms {
    pub(crate) fn new(chain: &Chain) -> Terms {
        let stages = chain.stages.len();
        let loss = Stage {
            forward_s: chain.loss.forward_s,
            backward_s: chain.loss.backward_s,
            forward_temp_bytes: chain.loss.forward_temp_bytes,
            backward_temp_bytes: chain.loss.backward_temp_bytes,
            ..Stage::default()
        };
        let mut nodes: Vec<Stage> = chain.stages.iter().chain([&loss]).cloned().collect();
        for node in &mut nodes {
            let output_first = node.output_bytes + node.forward_temp_bytes - node.saved_bytes;
            node.tracked_temp_bytes = node.tracked_temp_bytes.max(output_first);
        }
        let mut x: Vec<u64> = (0..=stages).map(|i| chain.activation_bytes(i).0).collect();
        let mut y: Vec<u64> = (0..=stages).map(|i| chain.gradient_bytes(i).0).collect();
        x.push(0);
        y.push(0);
        let mut later_grads = vec![0; stages + 1];
        for t in (0..stages).rev() {
            later_grads[t] = later_grads[t + 1] + nodes[t + 1].grad_bytes.0;
        }
        Terms {
            nodes,
            x,
            y,
            later_grads,
        }
    }

    /// L, the number of the loss.
    pub(crate) fn loss(&self) -> usize {
        self.nodes.len() - 1
    }

    /// x_k + x_{k+1} + f_k, or without x_k if a_k is counted elsewhere: the peak of the untracked forward of stage k.
    pub(crate) fn forward_peak(&self, k: usize, first: bool) -> u64 {
        let input = if first { 0 } else { self.x[k] };
        input + self.x[k + 1] + self.nodes[k].forward_temp_bytes.0
    }

    /// Time of a forward and the backward of stage s.
    pub(crate) fn seconds(&self, s: usize) -> f64 {
        (self.nodes[s].forward_s + self.nodes[s].backward_s).0
    }

    /// all(s,t) - G(t).
    pub(crate) fn all(&self, s: usize, t: usize) -> u64 {
        let node = &self.nodes[s];
        let saved = node.saved_bytes.0;
        let forward = self.y[t + 1] + saved + node.tracked_temp_bytes.0;
        let grads = self.later_grads[s] - self.later_grads[t] + node.grad_bytes.0;
        let backward = grads + self.y[s] + self.y[s + 1] + saved + node.backward_temp_bytes.0;
        forward.max(backward)
    }

    /// The peak of the plain run.
    pub(crate) fn whole(&self) -> u64 {
        let mut held = 0;
        let peaks = self.nodes.iter().enumerate().map(|(s, node)| {
            let before = held;
            held += node.saved_bytes.0;
            before + self.all(s, self.loss())
        });
        peaks.max().unwrap_or_default()
    }
}
