//! The memory of a segment of a single-level schedule, and the best cuts within a budget.
//!
//! Let W(s,e) be the peak of segment s..e-1 without stored boundaries: its untracked forwards, its recording and
//! its backward, with gradients growing; and B(s) the sum of the boundaries that are stored while it runs, its own
//! included. A cut is feasible when B(s) + W(s,e) <= budget for every segment. Smaller B is always better, so
//! ```text
//! B_0(0) = 0,   B_{k+1}(e) = x_e + min over s<e with B_k(s) + W(s,e) <= budget of B_k(s)
//! ```
//! finds for every e whether a last segment can start there after k others. The time depends only on where the last
//! segment starts, because every stage before it runs forward twice. So e increases from 0, and the first one that fits
//! is the best.
//!
//! W(s,e) only grows as s decreases from e, and is computed from sums and maxima over s..e-1. So a step examines no
//! more stages than one segment can hold, and a value of k is kept only if no smaller k stores as little. Cost: O(n *
//! longest segment) time, O(n) bytes in practice. Exact bytes.

use super::terms::Terms;

/// The peaks of all possible segments, above the bytes that are always held.
pub(super) struct Cuts<'a> {
    terms: &'a Terms,
    /// `saved[k]`: the sum of X over the stages before k.
    saved: Vec<u64>,
    /// `last[s]`: the peak of the last segment, with the loss, when it starts at s.
    last: Vec<u64>,
}

/// A way to have `count` segments before a stage.
#[derive(Clone, Copy)]
struct Cut {
    count: u32,
    /// B.
    stored: u64,
    /// The start of the previous segment, and the index of its cut.
    previous: (u32, u32),
}

/// The largest values over the stages from s to the end of a segment, s going down.
#[derive(Default)]
struct Peaks {
    /// Of the untracked forwards.
    forward: u64,
    /// Of the tracked forwards and of the backward passes, including the X of all earlier stages.
    recording: u64,
    backward: u64,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(terms: &'a Terms) -> Cuts<'a> {
        let stages = terms.loss();
        let mut saved = vec![0];
        for node in &terms.nodes[..stages] {
            saved.push(saved[saved.len() - 1] + node.saved);
        }
        let mut cuts = Cuts {
            last: vec![0; stages],
            saved,
            terms,
        };
        let loss = cuts.saved[stages] + cuts.terms.all(stages, stages);
        let mut peaks = Peaks::default();
        for s in (0..stages).rev() {
            cuts.include(&mut peaks, s);
            cuts.last[s] = peaks.recording.max(peaks.backward).max(loss) - cuts.saved[s];
        }
        cuts
    }

    pub(super) fn stages(&self) -> usize {
        self.terms.loss()
    }

    /// The room from which no cut is needed: the peak of one segment.
    pub(super) fn whole(&self) -> u64 {
        self.last[0]
    }

    /// The first stages of the second and later segments of the best cut within so many bytes, with the fewest segments,
    /// or `None` if none fits.
    pub(super) fn within(&self, room: u64) -> Option<Vec<usize>> {
        let mut cuts: Vec<Vec<Cut>> = Vec::new();
        for e in 0..self.stages() {
            let here = self.cuts_at(&cuts, e, room);
            if let Some(&last) = here.iter().find(|cut| cut.stored + self.last[e] <= room) {
                let mut starts = Vec::new();
                let (mut at, mut cut) = (e, last);
                while cut.count > 0 {
                    starts.push(at);
                    at = cut.previous.0 as usize;
                    cut = cuts[at][cut.previous.1 as usize];
                }
                starts.reverse();
                return Some(starts);
            }
            cuts.push(here);
        }
        None
    }

    /// The cuts with a boundary at e, by rising count.
    fn cuts_at(&self, cuts: &[Vec<Cut>], e: usize, room: u64) -> Vec<Cut> {
        if e == 0 {
            return vec![Cut {
                count: 0,
                stored: 0,
                previous: (0, 0),
            }];
        }
        let mut here: Vec<Cut> = Vec::new();
        let mut peaks = Peaks::default();
        for s in (0..e).rev() {
            let forward = peaks.forward.max(self.terms.forward_peak(s, true));
            self.include(&mut peaks, s);
            let recording = peaks.recording + self.terms.later_grads[e - 1] + self.terms.y[e];
            let peak = forward.max(recording.max(peaks.backward) - self.saved[s]);
            if peak > room {
                break;
            }
            for (index, cut) in cuts[s].iter().enumerate() {
                if cut.stored + peak > room {
                    continue;
                }
                let found = Cut {
                    count: cut.count + 1,
                    stored: cut.stored + self.terms.x[e],
                    previous: (s as u32, index as u32),
                };
                insert(&mut here, found);
            }
        }
        here
    }

    /// Adds stage s at the front.
    fn include(&self, peaks: &mut Peaks, s: usize) {
        let node = &self.terms.nodes[s];
        let grads = self.terms.later_grads[s] + node.grad;
        let backward = grads + self.terms.y[s] + self.terms.y[s + 1] + node.backward_temp;
        let saved = self.saved[s + 1];
        peaks.forward = peaks.forward.max(self.terms.forward_peak(s, false));
        peaks.recording = peaks.recording.max(saved + node.tracked_temp);
        peaks.backward = peaks.backward.max(saved + backward);
    }
}

/// Adds a cut if it stores less than all with as many or fewer segments, and drops those with more that store no less.
fn insert(cuts: &mut Vec<Cut>, found: Cut) {
    let place = cuts.partition_point(|cut| cut.count <= found.count);
    if place > 0 && cuts[place - 1].stored <= found.stored {
        return;
    }
    let place = cuts.partition_point(|cut| cut.count < found.count);
    let beaten = cuts[place..].partition_point(|cut| cut.stored >= found.stored);
    cuts.splice(place..place + beaten, [found]);
}
