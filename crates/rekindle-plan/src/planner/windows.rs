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
    /// `by_start[s * n + t]` and `by_end[t * n + s]`: the class of s..t, twice, so that a loop over either end runs along
    /// memory.
    by_start: Vec<u32>,
    by_end: Vec<u32>,
    /// For every length t - s, the starts of its representatives, in the order of their classes. Classes are numbered
    /// from the shortest windows on.
    representatives: Vec<Vec<usize>>,
}

impl Windows {
    /// A window is determined by its stages and the input of its first stage.
    pub(crate) fn new(terms: &Terms) -> Windows {
        let letters = contents(terms);
        let n = letters.len();
        let mut windows = Windows {
            n,
            by_start: vec![0; n * n],
            by_end: vec![0; n * n],
            representatives: Vec::with_capacity(n),
        };
        let mut count = 0;
        for length in 0..n {
            // A window is identified by the window that is one stage shorter and its last stage; the shortest window by
            // its input.
            let mut classes: HashMap<(u64, u64, usize), u32> = HashMap::new();
            let mut new = Vec::new();
            for s in 0..n - length {
                let t = s + length;
                let key = if length == 0 {
                    (terms.x[s], terms.y[s], letters[s])
                } else {
                    (windows.of(s, t - 1) as u64, 0, letters[t])
                };
                let class = *classes.entry(key).or_insert_with(|| {
                    new.push(s);
                    (count + new.len() - 1) as u32
                });
                windows.by_start[s * n + t] = class;
                windows.by_end[t * n + s] = class;
            }
            count += new.len();
            windows.representatives.push(new);
        }
        windows
    }

    /// The number of stages, the loss included.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// The class of s..t.
    #[inline]
    pub(crate) fn of(&self, s: usize, t: usize) -> usize {
        self.by_start[s * self.n + t] as usize
    }

    /// Like [`of`](Self::of), for a loop over s.
    #[inline]
    pub(crate) fn of_ending(&self, s: usize, t: usize) -> usize {
        self.by_end[t * self.n + s] as usize
    }

    /// The starts of the representatives of all windows of a length, in the order of their classes.
    pub(crate) fn representatives(&self, length: usize) -> &[usize] {
        &self.representatives[length]
    }
}

/// A number for each stage, the same for equal stages. The loss has its own number.
fn contents(terms: &Terms) -> Vec<usize> {
    let mut numbers: HashMap<[u64; 8], usize> = HashMap::new();
    let nodes = terms.nodes.iter().enumerate();
    let contents = nodes.map(|(i, node)| {
        let bits = [
            node.output_bytes.0,
            node.saved_bytes.0,
            node.forward_temp_bytes.0,
            node.tracked_temp_bytes.0,
            node.backward_temp_bytes.0,
            node.grad_bytes.0,
            node.forward_s.0.to_bits(),
            node.backward_s.0.to_bits(),
        ];
        match i == terms.loss() {
            true => i,
            false => *numbers.entry(bits).or_insert(i),
        }
    });
    contents.collect()
}
