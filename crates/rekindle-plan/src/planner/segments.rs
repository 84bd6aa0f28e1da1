//! `segments`: the best single-level schedule that fits a budget.
//!
//! Among all ways to cut the chain into segments of which all but the last are recomputed once, this takes the least
//! time that fits, then the fewest segments. The time depends only on where the last segment starts: every stage before
//! it runs forward twice.
//!
//! Let W(s,e) be the peak of segment s..e-1 without stored boundaries: the untracked sweep through it, its recording and
//! its backward, with gradients growing; and B(s) the sum of the boundaries that are stored while it runs, its own
//! included. A cut is feasible when B(s) + W(s,e) <= budget for every segment. Smaller B is always better, so
//! ```text
//! B(0) = 0,   B(e) = x_e + min over s<e with B(s) + W(s,e) <= budget of B(s)
//! ```
//! finds for every e whether a last segment can start there, in O(n^2). The same recurrence with the number of segments
//! as a layer, B_k(e), then finds the fewest: O(n^2) per segment. Exact bytes, optimal among single-level schedules that
//! record each stage in its default way. The question goes back to Chen et al. 2016 (arXiv 1604.06174), who answer it
//! with a greedy sweep.

use super::terms::Terms;
use super::{PlanError, single_level};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::Schedule;

/// The fastest single-level schedule within `budget` (everything counted), with the fewest segments among equals; or
/// with exactly `count` segments where that is given. `None` when nothing fits.
///
/// # Errors
/// The chain does not validate, or `count` is zero or more than the number of stages.
pub fn segments(
    chain: &Chain,
    budget: Bytes,
    count: Option<usize>,
) -> Result<Option<Schedule>, PlanError> {
    chain.validate()?;
    check_count(chain, count)?;
    let cuts = SegmentPeaks::new(chain);
    match cuts.within(budget, count) {
        Some(starts) => Ok(Some(single_level(chain.stages.len(), &starts)?)),
        None => Ok(None),
    }
}

/// The smallest budget that some single-level schedule fits (of `count` segments where that is given).
///
/// Cost: O(n^2 log bytes), and as many times more as `count`.
///
/// # Errors
/// As [`segments`].
pub fn smallest_segments_peak(chain: &Chain, count: Option<usize>) -> Result<Bytes, PlanError> {
    chain.validate()?;
    check_count(chain, count)?;
    let cuts = SegmentPeaks::new(chain);
    // `high` fits: nothing holds more than everything at once, which is below 2^62 in a validated chain.
    let (mut low, mut high) = (0, 1 << 62);
    while low < high {
        let middle = low + (high - low) / 2;
        if cuts.within(Bytes(middle), count).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Bytes(high))
}

fn check_count(chain: &Chain, count: Option<usize>) -> Result<(), PlanError> {
    let stages = chain.stages.len();
    match count {
        Some(segments) if segments == 0 || segments > stages => {
            Err(PlanError::Segments { segments, stages })
        }
        _ => Ok(()),
    }
}

/// W of every possible segment.
pub(crate) struct SegmentPeaks {
    stages: usize,
    resident: Bytes,
    optimizer_peak: Bytes,
    x: Vec<u64>,
    /// `inner[s][e - s - 1]`: W(s,e) of a segment that is not the last.
    inner: Vec<Vec<u64>>,
    /// `last[s]`: the peak of the last segment, with the loss, when it starts at s.
    last: Vec<u64>,
}

impl SegmentPeaks {
    pub(crate) fn new(chain: &Chain) -> SegmentPeaks {
        let terms = Terms::new(chain);
        let stages = terms.loss();
        let mut inner = Vec::with_capacity(stages);
        let mut last = Vec::with_capacity(stages);
        for s in 0..stages {
            let mut peaks = Vec::with_capacity(stages - s);
            let (mut saved, mut sweep, mut recording, mut backward) = (0, 0, 0, 0);
            for k in s..stages {
                let way = &terms.nodes[k].ways[0];
                sweep = terms.forward_peak(k, k == s).max(sweep);
                saved += way.saved;
                recording = (saved + way.tracked_temp).max(recording);
                let grads = terms.later_grads[k] + terms.nodes[k].grad;
                backward =
                    (saved + grads + terms.y[k] + terms.y[k + 1] + way.backward_temp).max(backward);
                peaks.push(
                    sweep
                        .max(backward)
                        .max(recording + terms.later_grads[k] + terms.y[k + 1]),
                );
            }
            let loss = saved + terms.all(stages, stages, &terms.nodes[stages].ways[0]);
            last.push(recording.max(loss).max(backward));
            inner.push(peaks);
        }
        SegmentPeaks {
            stages,
            resident: chain.resident_bytes(),
            optimizer_peak: chain.optimizer_peak(),
            x: terms.x,
            inner,
            last,
        }
    }

    /// The first stages of the second and later segments of the best cut, or `None` when none fits.
    pub(crate) fn within(&self, budget: Bytes, count: Option<usize>) -> Option<Vec<usize>> {
        let room = budget.checked_sub(self.resident)?.0;
        if budget < self.optimizer_peak {
            return None;
        }
        let upto = match count {
            // The earliest start recomputes least.
            None => {
                let boundaries = self.boundaries(room);
                (0..self.stages).find(|&s| {
                    boundaries[s].is_some_and(|stored| self.last_fits(s, stored, room))
                })?
            }
            Some(_) => self.stages - 1,
        };
        let mut layers = vec![vec![None; upto + 1]];
        layers[0][0] = Some(Cut {
            stored: 0,
            previous: 0,
        });
        let last = loop {
            let segments = layers.len();
            let layer = &layers[segments - 1];
            let fits =
                |s: &usize| layer[*s].is_some_and(|cut: Cut| self.last_fits(*s, cut.stored, room));
            match count {
                Some(count) if segments == count => break (0..=upto).find(fits)?,
                None if fits(&upto) => break upto,
                _ => {}
            }
            if segments > upto {
                return None;
            }
            let next = self.next_layer(room, layer);
            layers.push(next);
        };
        let mut starts = Vec::new();
        let mut at = last;
        for layer in layers[1..].iter().rev() {
            starts.push(at);
            at = layer[at]?.previous;
        }
        starts.reverse();
        Some(starts)
    }

    fn last_fits(&self, start: usize, stored: u64, room: u64) -> bool {
        stored + self.last[start] <= room
    }

    /// B(s) for every s.
    fn boundaries(&self, room: u64) -> Vec<Option<u64>> {
        let mut least: Vec<Option<u64>> = vec![None; self.stages];
        least[0] = Some(0);
        for s in 0..self.stages {
            let Some(stored) = least[s] else { continue };
            for (e, peak) in (s + 1..self.stages).zip(&self.inner[s]) {
                let here = stored + self.x[e];
                if stored + peak <= room && least[e].is_none_or(|best| here < best) {
                    least[e] = Some(here);
                }
            }
        }
        least
    }

    /// B_{k+1} from B_k.
    fn next_layer(&self, room: u64, layer: &[Option<Cut>]) -> Vec<Option<Cut>> {
        let mut next: Vec<Option<Cut>> = vec![None; layer.len()];
        for (s, cut) in layer.iter().enumerate() {
            let Some(cut) = cut else { continue };
            for (e, peak) in (s + 1..layer.len()).zip(&self.inner[s]) {
                let stored = cut.stored + self.x[e];
                if cut.stored + peak <= room && next[e].is_none_or(|best| stored < best.stored) {
                    next[e] = Some(Cut {
                        stored,
                        previous: s,
                    });
                }
            }
        }
        next
    }
}

/// The best cut so far before a stage.
#[derive(Clone, Copy)]
struct Cut {
    /// B.
    stored: u64,
    /// Where the segment before starts.
    previous: usize,
}
