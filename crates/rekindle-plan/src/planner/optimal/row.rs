//! Rows: of every slot the fastest schedule of a window that needs less than the slot's end, with its exact need.
//!
//! A split or a recording turns the schedules of two shorter windows (or of one) into those of a longer one. With E the
//! last byte of a slot of the longer window and x what is held besides, a shorter window has E - x bytes: whole slots
//! and a rest. The schedule of the slot that E - x lies in is taken if its need is at most E - x, otherwise the one of
//! the slot below, which always fits. So sizes are never rounded, and the need of what comes out is exact.
//!
//! Slots are taken in lanes of [`LANES`]. Nearly all lanes hold no improvement, which is found out without needs: even
//! with the schedule of the higher slot each time, none would be faster.

use super::costs::INFINITE;
use super::mark::Mark;
use super::outline::Outline;

/// Slots that are taken together: a whole number of vectors on every machine.
pub(super) const LANES: usize = 16;

/// In place of a need: the schedule is that of the slot below.
const CARRIED: u32 = u32::MAX;

/// The widest slot: a need within it is told from the word above.
pub(super) const WIDEST: u64 = CARRIED as u64;

/// The schedules of a window, from the slot below the first feasible one (where there is none) to the saturated one, and
/// [`LANES`] more slots without a schedule of their own.
#[derive(Clone)]
pub(super) struct Cells {
    times: Vec<u32>,
    /// The need's bytes beyond the start of its slot.
    rests: Vec<u32>,
}

impl Cells {
    /// No schedule is known, but that nothing is faster from the saturated slot on.
    pub(super) fn unknown(outline: &Outline) -> Cells {
        let saturated = (outline.saturated.slot - outline.first.slot) as usize + 1;
        let mut times = vec![INFINITE; saturated + 1 + LANES];
        let rests = vec![CARRIED; saturated + 1 + LANES];
        times[saturated + 1..].fill(outline.least);
        Cells { times, rests }
    }

    /// The time of the i-th slot from the first feasible one on.
    #[inline]
    pub(super) fn time_of(&self, i: u32) -> u32 {
        self.times[i as usize + 1]
    }

    /// Carries every schedule up to the slots in which none is faster.
    pub(super) fn carry(&mut self) {
        for i in 1..self.times.len() {
            if self.times[i] >= self.times[i - 1] {
                (self.times[i], self.rests[i]) = (self.times[i - 1], CARRIED);
            }
        }
    }
}

/// The row of a window.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) outline: &'a Outline,
    pub(super) cells: &'a Cells,
}

impl<'a> Row<'a> {
    /// The fastest schedule that needs at most `most`, with its need.
    pub(super) fn within(&self, most: Mark) -> Option<(u32, Mark)> {
        let below = self.outline.first.slot;
        let mut slot = most.slot.min(self.outline.saturated.slot);
        while slot >= below {
            let index = (slot - below) as usize + 1;
            let need = Mark {
                slot,
                rest: self.cells.rests[index],
            };
            if need.rest != CARRIED && need <= most {
                let time = self.cells.times[index];
                return (time < INFINITE).then_some((time, need));
            }
            slot = slot.checked_sub(1)?;
        }
        None
    }

    /// All schedules up to a slot, the one of the least need first.
    pub(super) fn points(&self, last: u32) -> Vec<(u32, Mark)> {
        let mut points: Vec<(u32, Mark)> = Vec::new();
        for slot in self.outline.first.slot..=last.min(self.outline.saturated.slot) {
            let index = (slot - self.outline.first.slot) as usize + 1;
            let (time, rest) = (self.cells.times[index], self.cells.rests[index]);
            let faster = points.last().is_none_or(|last| time < last.0);
            if rest != CARRIED && time < INFINITE && faster {
                points.push((time, Mark { slot, rest }));
            }
        }
        points
    }

    /// The row for a longer window that holds `held` besides, from its slot `start` on. The row is feasible there.
    #[inline(always)]
    pub(super) fn beside(self, held: Mark, start: u32, width: u64) -> Part<'a> {
        let slot = start - held.slot;
        let index = slot.min(self.outline.saturated.slot + 2) - self.outline.first.slot;
        Part {
            times: &self.cells.times[index as usize..],
            rests: &self.cells.rests[index as usize..],
            falling: (self.outline.saturated.slot + 2).saturating_sub(slot) as usize,
            least: self.outline.least,
            held: held.rest,
            fits: (width - 1) as u32 - held.rest,
            width: width as i64,
        }
    }
}

/// A row beside something that is held: entry i + 1 is the slot that serves the i-th slot of the longer window, entry i
/// the one below.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    times: &'a [u32],
    rests: &'a [u32],
    /// From here on the time is `least` and the need is covered.
    falling: usize,
    least: u32,
    /// What is held beyond whole slots, and the largest need within a slot that fits beside it.
    held: u32,
    fits: u32,
    width: i64,
}

impl Part<'_> {
    /// Nothing to run, nothing needed.
    pub(super) const NOTHING: Part<'static> = Part {
        times: &[],
        rests: &[],
        falling: 0,
        least: 0,
        held: 0,
        fits: 0,
        width: 1,
    };

    /// The times of [`LANES`] slots if every need fitted.
    #[inline(always)]
    fn hoped(&self, at: usize) -> [u32; LANES] {
        let mut times = [self.least; LANES];
        if at < self.falling {
            times.copy_from_slice(&self.times[at + 1..at + 1 + LANES]);
        }
        times
    }

    /// The times of [`LANES`] slots.
    #[inline(always)]
    fn times(&self, at: usize) -> [u32; LANES] {
        let mut times = [self.least; LANES];
        if at < self.falling {
            let slots = &self.times[at..at + LANES + 1];
            let rests = &self.rests[at + 1..at + 1 + LANES];
            for lane in 0..LANES {
                let fits = rests[lane] <= self.fits;
                times[lane] = if fits { slots[lane + 1] } else { slots[lane] };
            }
        }
        times
    }

    /// The need of one slot, less the start of the longer window's slot; negative where it lies below.
    #[inline(always)]
    fn need(&self, i: usize) -> i64 {
        if i >= self.falling {
            return -1;
        }
        let held = i64::from(self.held);
        match (self.rests[i], self.rests[i + 1]) {
            (_, rest) if rest <= self.fits => i64::from(rest) + held,
            (CARRIED, _) => -1,
            (rest, _) => i64::from(rest) + held - self.width,
        }
    }
}

/// Takes, in `count` slots from `start` on, the schedules that do `time` more than `parts` and need at least `threshold`,
/// where they are faster. A little more than `count` slots are tried.
#[inline(always)]
pub(super) fn relax(
    (cells, first): (&mut Cells, u32),
    (start, count): (u32, usize),
    (time, threshold): (u32, Mark),
    parts: (Part<'_>, Part<'_>),
) {
    let index = (start - first) as usize + 1;
    let times = &mut cells.times[index..];
    let rests = &mut cells.rests[index..];
    let mut at = 0;
    while at < count {
        let best: &mut [u32] = &mut times[at..at + LANES];
        let hoped = sums(time, parts.0.hoped(at), parts.1.hoped(at));
        if any_less(&hoped, best) {
            let found = sums(time, parts.0.times(at), parts.1.times(at));
            if any_less(&found, best) {
                for lane in 0..LANES {
                    if found[lane] < best[lane] {
                        let i = at + lane;
                        let least = if threshold.slot == start + i as u32 {
                            i64::from(threshold.rest)
                        } else {
                            -1
                        };
                        let need = parts.0.need(i).max(parts.1.need(i)).max(least);
                        best[lane] = found[lane];
                        rests[i] = u32::try_from(need).unwrap_or(CARRIED);
                    }
                }
            }
        }
        at += LANES;
    }
}

#[inline(always)]
fn sums(time: u32, right: [u32; LANES], left: [u32; LANES]) -> [u32; LANES] {
    let mut sums = right;
    for lane in 0..LANES {
        sums[lane] += time + left[lane];
    }
    sums
}

#[inline(always)]
fn any_less(found: &[u32; LANES], best: &[u32]) -> bool {
    let mut less = false;
    for lane in 0..LANES {
        less |= found[lane] < best[lane];
    }
    less
}
