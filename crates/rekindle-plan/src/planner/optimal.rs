//! `optimal`: the least time under a budget among persistent schedules, nested recomputes included.
//!
//! Persistent means: what is stored stays until its backward. The program is that of Beaumont, Eyraud-Dubois, Herrmann,
//! Joly and Shilova (INRIA RR-9302; ACM TOMS 50(2) 2024; "rotor"), with parameter gradients that grow as the backward
//! goes, and with alternatives; `table.rs` states it. Both memory conditions of the recorded branch are tested: the widely
//! copied code of this program leaves one out and exceeds its budget on stages with large temporary bytes.
//!
//! Memory is counted in slots, all sizes rounded up, so a plan never exceeds its budget. When all sizes divided by their
//! common divisor fit in the slots, the plan is optimal among persistent schedules (checked against exhaustive search;
//! where a tracked forward's temporary bytes differ from an untracked one's, rare chains have a slightly better schedule
//! that is not of this form). Otherwise rounding can hide a plan that fits, so the answer is the fastest of
//! the slotted plans, the best single-level plan (`segments`, which no `uniform` beats) and the plan of the smallest peak, all
//! simulated in exact bytes. All of them can only get faster as the budget grows, so the answer does too.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes per level of slots, with less than that in practice, see `table.rs`.
//! Times are `f64` up to 400 stages and `f32` above, where a plan may be a millionth slower than the best.

mod slots;
mod table;
mod time;

pub(crate) use slots::{Level, levels};
pub(crate) use table::Table;

use super::PlanError;
use super::least_time::LeastTimes;
use super::persistent::{Choice, emit};
use super::segments::SegmentPeaks;
use super::smallest_peak::SmallestPeaks;
use super::terms::Terms;
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Slots, Source};
use crate::schedule::Schedule;
use crate::simulator::simulate;

/// Up to this many stages the table's times are `f64`: beyond, its rows would not fit in 2 GB.
const MOST_STAGES_IN_F64: usize = 400;

/// A schedule that fits, what it takes, and where it came from.
pub(crate) struct Candidate {
    pub(crate) schedule: Schedule,
    pub(crate) peak: Bytes,
    pub(crate) time: f64,
    pub(crate) source: Source,
}

impl Candidate {
    pub(crate) fn new(
        chain: &Chain,
        schedule: Schedule,
        source: Source,
    ) -> Result<Candidate, PlanError> {
        let run = simulate(chain, &schedule)?;
        Ok(Candidate {
            schedule,
            peak: run.peak,
            time: run.time.0,
            source,
        })
    }
}

/// Everything about a chain that does not depend on the budget.
pub(crate) struct Optimal<'a> {
    pub(crate) chain: &'a Chain,
    pub(crate) terms: &'a Terms,
    /// The smallest budget, and its plan.
    pub(crate) smallest: Candidate,
    /// The fastest plan of all: nothing recomputed, every stage recorded in its fastest way.
    pub(crate) fastest: Candidate,
    pub(crate) levels: Vec<Level>,
}

impl<'a> Optimal<'a> {
    pub(crate) fn new(
        chain: &'a Chain,
        terms: &'a Terms,
        slots: usize,
    ) -> Result<Optimal<'a>, PlanError> {
        let (peak, schedule) = SmallestPeaks::new(terms).whole(chain)?;
        let smallest = Candidate::new(chain, schedule, Source::SmallestPeak)?;
        debug_assert_eq!(
            smallest.peak, peak,
            "the recurrence and the simulator disagree"
        );
        let fastest = fastest(chain, terms)?;
        let above = |peak: Bytes| (peak - chain.resident_bytes()).0;
        let levels = levels(terms, above(smallest.peak), above(fastest.peak), slots);
        Ok(Optimal {
            chain,
            terms,
            smallest,
            fastest,
            levels,
        })
    }

    /// The best plan within `budget`, everything counted; `None` below the smallest peak.
    pub(crate) fn within(self, budget: Bytes) -> Result<Option<Candidate>, PlanError> {
        if budget < self.smallest.peak {
            return Ok(None);
        }
        if budget >= self.fastest.peak {
            return Ok(Some(self.fastest));
        }
        let Optimal {
            chain,
            terms,
            smallest: mut best,
            levels,
            ..
        } = self;
        if let Some(starts) = SegmentPeaks::new(chain).within(budget, None) {
            let schedule = super::single_level(chain.stages.len(), &starts)?;
            best = faster(best, Candidate::new(chain, schedule, Source::Segments)?);
        }
        let bounds = LeastTimes::new(terms);
        let memory = (budget - chain.resident_bytes()).0;
        let own = levels
            .iter()
            .rposition(|level| level.top >= memory)
            .unwrap_or(0);
        for level in levels.iter().skip(own) {
            let memory = memory.min(level.top);
            if best.time <= bounds.within(memory) + chain.optimizer.step_s.0 {
                break;
            }
            if let Some(found) = slotted(chain, terms, *level, memory)?
                && found.peak <= budget
            {
                best = faster(best, found);
            }
        }
        Ok(Some(best))
    }
}

/// The faster of two; of equally fast ones the smaller; of equals the first.
fn faster(a: Candidate, b: Candidate) -> Candidate {
    if b.time < a.time || (b.time == a.time && b.peak < a.peak) {
        b
    } else {
        a
    }
}

/// The plan of one level's table, or `None` when none fits in its slots.
fn slotted(
    chain: &Chain,
    terms: &Terms,
    level: Level,
    memory: u64,
) -> Result<Option<Candidate>, PlanError> {
    let slots = level.slots(memory);
    let schedule = if chain.stages.len() <= MOST_STAGES_IN_F64 {
        let table = Table::<f64>::solve(terms, level.slot, slots);
        table
            .time(slots)
            .is_finite()
            .then(|| table.schedule(slots))
            .transpose()?
    } else {
        let table = Table::<f32>::solve(terms, level.slot, slots);
        table
            .time(slots)
            .is_finite()
            .then(|| table.schedule(slots))
            .transpose()?
    };
    let source = Source::Slots(Slots {
        count: slots,
        bytes: Bytes(level.slot),
        exact: level.exact,
    });
    schedule
        .map(|schedule| Candidate::new(chain, schedule, source))
        .transpose()
}

/// Every stage recorded in its fastest way; of equally fast ways, the one that makes the peak smaller.
fn fastest(chain: &Chain, terms: &Terms) -> Result<Candidate, PlanError> {
    let loss = terms.loss();
    let mut peak = terms.all(loss, loss, &terms.nodes[loss].ways[0]);
    let mut chosen = vec![0; loss];
    for s in (0..loss).rev() {
        let ways = &terms.nodes[s].ways;
        let least = ways
            .iter()
            .map(|way| way.seconds)
            .fold(f64::INFINITY, f64::min);
        let peaks = ways
            .iter()
            .enumerate()
            .filter(|(_, way)| way.seconds == least);
        let best = peaks
            .map(|(number, way)| (terms.all(s, loss, way).max(way.saved + peak), number))
            .min();
        (peak, chosen[s]) = best.unwrap_or((peak, 0));
    }
    let schedule = emit(loss, (), |s, _, ()| Choice::Track {
        alternative: chosen[s],
        rest: (),
    })?;
    Candidate::new(chain, schedule, Source::Fastest)
}

/// The plans of all levels of the ladder at every slot where the time falls, each with the memory that finds it.
pub(crate) fn staircase(optimal: &Optimal<'_>) -> Result<Vec<(u64, Candidate)>, PlanError> {
    let mut points = Vec::new();
    for (index, &level) in optimal.levels.iter().enumerate() {
        // Below this the next level answers.
        let bottom = optimal.levels.get(index + 1).map_or(0, |next| next.top);
        let slots = level.slots(level.top);
        let schedules = if optimal.chain.stages.len() <= MOST_STAGES_IN_F64 {
            stairs(
                &Table::<f64>::solve(optimal.terms, level.slot, slots),
                level,
                bottom,
            )?
        } else {
            stairs(
                &Table::<f32>::solve(optimal.terms, level.slot, slots),
                level,
                bottom,
            )?
        };
        for (slots, schedule) in schedules {
            let source = Source::Slots(Slots {
                count: slots,
                bytes: Bytes(level.slot),
                exact: level.exact,
            });
            // The lowest memory of this level that has as many slots.
            let memory = (slots as u64 * level.slot).max(bottom + 1);
            points.push((memory, Candidate::new(optimal.chain, schedule, source)?));
        }
    }
    Ok(points)
}

fn stairs<T: time::Time>(
    table: &Table<'_, T>,
    level: Level,
    bottom: u64,
) -> Result<Vec<(usize, Schedule)>, PlanError> {
    let lowest = ((bottom + 1) / level.slot) as usize;
    let mut slots: Vec<usize> = table.steps();
    // The step at or below the level's lowest slot is the one that holds there.
    let below = slots.iter().rposition(|&slot| slot <= lowest).unwrap_or(0);
    slots.drain(..below);
    slots
        .into_iter()
        .map(|slot| Ok((slot.max(lowest), table.schedule(slot)?)))
        .collect()
}
