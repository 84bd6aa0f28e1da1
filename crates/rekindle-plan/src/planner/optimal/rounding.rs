//! How sizes are rounded up to slots.
//!
//! Thresholds (null, all) are summed in bytes and rounded once. What a window passes on to the windows inside is
//! counted in slots, and rounding every X up would waste half a slot for every recorded stage. So sums are rounded
//! instead. With S(i) the sum of X over the stages before i, recording stage i takes T(i+1) - T(i) slots, where
//! T(i) = ceil(S(i) / slot): a run of recorded stages a..b-1 takes T(b) - T(a), which is short of its bytes by at most
//! T(a) - S(a) / slot < 1. A run begins at a stored a_j (or at the input, where nothing is short), so a_j is charged
//! ceil( (x_j + what the run is short of) / slot ). At every moment the slots then cover the bytes.
//!
//! The parameter gradients G(j-1) - G(t) that the backward of stages j..t adds are the difference of the rounded-up
//! G(j-1) and G(t): less than a slot is lost in all.
//!
//! Both make equal windows unequal where their roundings fall differently. In chains with a period the slots of one period
//! are therefore copied to the next (the slot is chosen so that a period is a whole number of slots, see `slots.rs`), and
//! each G(j-1) - G(t) is rounded up by itself, which loses up to a slot at each of the splits that a schedule takes one
//! after the other: a small price for a table that is smaller by the number of periods.

use std::collections::HashMap;

use super::super::repeats::Repeats;
use super::super::terms::Terms;

/// The sizes of a chain in slots.
pub(crate) struct Rounded {
    /// Slots of a stored a_i.
    pub(crate) x: Vec<usize>,
    /// Slots of X for each stage and way to record it.
    pub(crate) saved: Vec<Vec<usize>>,
    grads: Grads,
}

enum Grads {
    Summed(Vec<usize>),
    ByWindow(u64),
}

impl Rounded {
    pub(crate) fn new(terms: &Terms, slot: u64, repeats: &Repeats) -> Rounded {
        let n = terms.nodes.len();
        // Slots and bytes of the recorded stages before i.
        let (mut slots_before, mut bytes_before) = (vec![0; n + 1], vec![0; n + 1]);
        for (i, node) in terms.nodes.iter().enumerate() {
            bytes_before[i + 1] = bytes_before[i] + node.ways[0].saved;
            let copied = repeats
                .period
                .filter(|&p| i >= p && repeats.contents[i] == repeats.contents[i - p]);
            let alike = copied.map_or(0, |p| slots_before[i - p + 1] - slots_before[i - p]);
            let enough = u64::div_ceil(bytes_before[i + 1], slot) as usize;
            let next: usize = slots_before[i] + alike;
            slots_before[i + 1] = if copied.is_some() && next >= enough {
                next
            } else {
                enough.max(slots_before[i])
            };
        }
        // What a run from i on is short of, at most, is where the bytes not covered by slots are largest after i.
        let uncovered =
            |i: usize| i128::from(bytes_before[i]) - slots_before[i] as i128 * i128::from(slot);
        let mut x = vec![0; n + 1];
        let mut largest = i128::MIN;
        for i in (0..=n).rev() {
            largest = largest.max(uncovered(i));
            let short = (largest - uncovered(i)) as u64;
            x[i] = (terms.x[i] + short).div_ceil(slot) as usize;
        }
        let saved = terms.nodes.iter().enumerate().map(|(i, node)| {
            let default = slots_before[i + 1] - slots_before[i];
            let of = |saved: u64| match saved.checked_sub(node.ways[0].saved) {
                Some(more) => default + more.div_ceil(slot) as usize,
                None => default.saturating_sub(((node.ways[0].saved - saved) / slot) as usize),
            };
            node.ways.iter().map(|way| of(way.saved)).collect()
        });
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
        Rounded {
            x,
            saved: saved.collect(),
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
                .entry((*content, &self.saved[i], self.x[i + 1], grads))
                .or_insert(next)
        };
        repeats.contents.iter().enumerate().map(letter).collect()
    }
}
