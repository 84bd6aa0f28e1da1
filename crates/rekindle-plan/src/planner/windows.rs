//! Finds equal windows of stages.
//!
//! The recurrences compute a value for every window s..t, shorter windows first. Windows of equal stages have equal
//! values, so each value is computed for one representative: in a chain of repeating stages most windows are equal to
//! another. Cost: O(n^2).

use std::collections::HashMap;

use super::terms::Terms;

/// The classes of equal windows of a chain of `n` stages, the loss included.
pub(crate) struct Windows {
    n: usize,
    /// `classes[s * n + t]`: the class of s..t.
    classes: Vec<u32>,
    /// For every length t - s, the starts of its representatives, in the order of their classes. Classes are numbered
    /// from the shortest windows on.
    representatives: Vec<Vec<usize>>,
}

impl Windows {
    /// A window is determined by its stages and their inputs.
    pub(crate) fn new(terms: &Terms) -> Windows {
        let letters = letters(terms);
        let n = letters.len();
        let mut windows = Windows {
            n,
            classes: vec![0; n * n],
            representatives: Vec::with_capacity(n),
        };
        let mut count = 0;
        for length in 0..n {
            // A window is identified by the window that is one stage shorter, if there is one, and its last stage.
            let mut classes: HashMap<(Option<usize>, usize), u32> = HashMap::new();
            let mut new = Vec::new();
            for s in 0..n - length {
                let t = s + length;
                let shorter = (length > 0).then(|| windows.of(s, t - 1));
                let class = classes.entry((shorter, letters[t])).or_insert_with(|| {
                    new.push(s);
                    (count + new.len() - 1) as u32
                });
                windows.classes[s * n + t] = *class;
            }
            count += new.len();
            windows.representatives.push(new);
        }
        windows
    }

    /// The class of s..t.
    #[inline]
    pub(crate) fn of(&self, s: usize, t: usize) -> usize {
        self.classes[s * self.n + t] as usize
    }

    /// The starts of the representatives of all windows of a length, in the order of their classes.
    pub(crate) fn representatives(&self, length: usize) -> &[usize] {
        &self.representatives[length]
    }
}

/// A number for each stage, the same for equal stages with equal inputs.
fn letters(terms: &Terms) -> Vec<usize> {
    let mut numbers: HashMap<[u64; 10], usize> = HashMap::new();
    let nodes = terms.nodes.iter().enumerate();
    let letters = nodes.map(|(i, node)| {
        let bits = [
            terms.x[i],
            terms.y[i],
            node.output_bytes.0,
            node.saved_bytes.0,
            node.forward_temp_bytes.0,
            node.tracked_temp_bytes.0,
            node.backward_temp_bytes.0,
            node.grad_bytes.0,
            node.forward_s.0.to_bits(),
            node.backward_s.0.to_bits(),
        ];
        *numbers.entry(bits).or_insert(i)
    });
    letters.collect()
}
