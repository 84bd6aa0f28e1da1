//! How sizes are rounded up to slots.
//!
//! Thresholds (null, all) are summed in bytes and rounded once; each X and each stored a_j is rounded up by itself. At
//! every moment the slots then cover the bytes. What is lost, about half a slot for each recorded stage, is given back
//! as slots beyond the budget, whose plans are taken where they fit in exact bytes (see `slots.rs`).
//!
//! The parameter gradients G(j-1) - G(t) that the backward of stages j..t adds are the difference of the rounded-up
//! G(j-1) and G(t): less than a slot is lost in all. That makes equal windows unequal where their roundings fall
//! differently, so in chains with a period each difference is rounded up by itself, which loses up to a slot at each of
//! the splits that a schedule takes one after the other: a small price for a table that is smaller by the number of
//! periods.

use std::collections::HashMap;

use super::super::repeats::Repeats;
use super::super::terms::Terms;

/// The sizes of a chain in slots.
pub(crate) struct Rounded {
    /// Slots of a stored a_i.
    pub(crate) x: Vec<usize>,
    grads: Grads,
}

enum Grads {
    Summed(Vec<usize>),
    ByWindow(u64),
}

impl Rounded {
    pub(crate) fn new(terms: &Terms, slot: u64, repeats: &Repeats) -> Rounded {
        let grads = if repeats.period.is_some() {
            Grads::ByWindow(slot)
        } else {
            Grads::Summed(
                terms
                    .later_grads
                    .iter()
                    .map(|bytes| bytes.div_ceil(slot) as usize)
                    .collect(),
            )
        };
        let stored = terms.x.iter().map(|bytes| bytes.div_ceil(slot) as usize);
        Rounded {
            x: stored.collect(),
            grads,
        }
    }

    /// G(j-1) - G(t).
    #[inline]
    pub(crate) fn grads_between(&self, terms: &Terms, j: usize, t: usize) -> usize {
        match &self.grads {
            Grads::Summed(later) => later[j - 1] - later[t],
            Grads::ByWindow(slot) => {
                (terms.later_grads[j - 1] - terms.later_grads[t]).div_ceil(*slot) as usize
            }
        }
    }

    /// Numbers that are equal where two stages are alike in all that a window can see of them.
    pub(crate) fn letters(&self, repeats: &Repeats) -> Vec<usize> {
        let mut known = HashMap::new();
        let letter = |(i, content): (usize, &usize)| {
            let grads = match &self.grads {
                Grads::Summed(later) if i > 0 => later[i - 1] - later[i],
                Grads::Summed(_) | Grads::ByWindow(_) => 0,
            };
            let next = known.len();
            *known
                .entry((*content, self.x[i + 1], grads))
                .or_insert(next)
        };
        repeats.contents.iter().enumerate().map(letter).collect()
    }
}
