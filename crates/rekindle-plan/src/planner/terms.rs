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

use std::iter::once;

use crate::bytes::Bytes;
use crate::chain::{Chain, Stage};

/// A chain in the form of the recurrences.
pub(crate) struct Terms {
    /// What stages 0..L-1 and the loss cost, and nothing else of them; with F at least so that X + F is no less than x + f: a
    /// tracked forward makes its output first, as an untracked one does.
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
        let loss = chain.loss.stage();
        let mut nodes: Vec<Stage> = chain.stages.iter().chain([&loss]).cloned().collect();
        for node in &mut nodes {
            let output_first = node.output_bytes + node.forward_temp_bytes - node.saved_bytes;
            node.tracked_temp_bytes = node.tracked_temp_bytes.max(output_first);
            (node.name, node.param_bytes) = (String::new(), Bytes::ZERO);
        }
        let outputs = nodes.iter().map(|node| node.output_bytes.0);
        let x: Vec<u64> = once(chain.input_bytes.0).chain(outputs).collect();
        let mut y = x.clone();
        y[0] = chain.gradient_bytes(0).0;
        let mut later_grads = vec![0; nodes.len()];
        for t in (1..nodes.len()).rev() {
            later_grads[t - 1] = later_grads[t] + nodes[t].grad_bytes.0;
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

    /// Whether two stages cost the same, their inputs included.
    pub(crate) fn equal(&self, i: usize, k: usize) -> bool {
        let inputs = self.x[i] == self.x[k] && self.y[i] == self.y[k];
        inputs && self.nodes[i] == self.nodes[k]
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

    /// The peaks of the windows s..t that are recorded as a whole, without G(t): for s from t down to 0.
    pub(crate) fn recorded(&self, t: usize) -> impl Iterator<Item = (usize, u64)> {
        let mut peak = 0;
        (0..=t).rev().map(move |s| {
            peak = self.all(s, t).max(self.nodes[s].saved_bytes.0 + peak);
            (s, peak)
        })
    }

    /// The peak of the plain run.
    pub(crate) fn whole(&self) -> u64 {
        let peaks = self.recorded(self.loss()).map(|(_, peak)| peak);
        peaks.max().unwrap_or_default()
    }
}
