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
//! that is not of this form). Otherwise rounding can hide a plan that fits, so the program is solved for more
//! memory than there is, and the answer is the fastest of its plans for any number of slots, the best single-level plan
//! (`segments`, which no `uniform` beats) and the plan of the smallest peak, all simulated in exact bytes. None of these
//! plans depends on the budget, only which of them fit, so a larger budget never makes the answer slower.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes per level of slots, with less than that in practice, see `table.rs`.
//! Times are `f64` up to 150 stages and `f32` above, where a plan may be a millionth slower than the best.

mod costs;
mod outline;
mod relax;
mod rounding;
mod slots;
mod table;
mod tile;
mod time;

use rayon::prelude::*;
use slots::{Level, levels};
use table::Table;

use super::PlanError;
use super::least_time::LeastTimes;
use super::persistent::{Choice, emit};
use super::repeats::Repeats;
use super::segments::SegmentPeaks;
use super::smallest_peak::SmallestPeaks;
use super::terms::Terms;
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Slots, Source};
use crate::schedule::Schedule;
use crate::simulator::simulate;

/// Up to this many stages the table's times are `f64`: beyond, its rows would be too large and twice as slow.
const MOST_STAGES_IN_F64: usize = 150;

/// So many stages for every further slot of spacing between the plans of a table that are looked at: deriving one takes
/// O(n^2).
const STAGES_PER_SPACING: usize = 150;

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
    chain: &'a Chain,
    terms: &'a Terms,
    /// The smallest budget, and its plan.
    pub(crate) smallest: Candidate,
    /// The fastest plan of all: nothing recomputed, every stage recorded in its fastest way.
    pub(crate) fastest: Candidate,
    repeats: Repeats,
    levels: Vec<Level>,
}

impl<'a> Optimal<'a> {
    pub(crate) fn new(
        chain: &'a Chain,
        terms: &'a Terms,
        slots: usize,
    ) -> Result<Optimal<'a>, PlanError> {
        let repeats = Repeats::new(terms);
        let (peak, schedule) = SmallestPeaks::new(terms, &repeats).whole(chain)?;
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
            repeats,
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
            repeats,
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
            let most = chain.resident_bytes() + Bytes(memory);
            let wanted = Wanted {
                most,
                more_than: Bytes::ZERO,
                first_only: true,
            };
            for found in slotted(chain, terms, &repeats, *level, wanted)? {
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

/// Which plans of a table are asked for.
#[derive(Clone, Copy)]
struct Wanted {
    /// Their exact peak is at most this.
    most: Bytes,
    /// Their exact peak is more than this.
    more_than: Bytes,
    /// Only the fastest.
    first_only: bool,
}

/// The plans of one level's table, the fastest first.
fn slotted(
    chain: &Chain,
    terms: &Terms,
    repeats: &Repeats,
    level: Level,
    wanted: Wanted,
) -> Result<Vec<Candidate>, PlanError> {
    let slots = level.slots((wanted.most - chain.resident_bytes()).0, chain.stages.len());
    if chain.stages.len() <= MOST_STAGES_IN_F64 {
        pick(
            chain,
            &Table::<f64>::solve(terms, repeats, level.slot, slots),
            level,
            wanted,
        )
    } else {
        pick(
            chain,
            &Table::<f32>::solve(terms, repeats, level.slot, slots),
            level,
            wanted,
        )
    }
}

fn pick<T: time::Time>(
    chain: &Chain,
    table: &Table<'_, T>,
    level: Level,
    wanted: Wanted,
) -> Result<Vec<Candidate>, PlanError> {
    let candidate = |&slots: &usize| {
        let source = Source::Slots(Slots {
            count: slots,
            bytes: Bytes(level.slot),
            exact: level.exact,
        });
        let found = table
            .schedule(slots)
            .and_then(|schedule| Candidate::new(chain, schedule, source));
        if let Ok(found) = &found {
            let granted = chain.resident_bytes() + Bytes(slots as u64 * level.slot);
            debug_assert!(
                found.peak <= granted.max(chain.optimizer_peak()),
                "sizes were rounded down"
            );
        }
        let fits = |found: &Candidate| found.peak <= wanted.most && found.peak > wanted.more_than;
        found.map(|found| fits(&found).then_some(found)).transpose()
    };
    let mut steps = table.steps(1 + chain.stages.len() / STAGES_PER_SPACING);
    steps.reverse();
    if wanted.first_only {
        // More than one thread looks, but the answer is that of the first step.
        steps
            .par_iter()
            .map(candidate)
            .find_first(Option::is_some)
            .flatten()
            .into_iter()
            .collect()
    } else {
        steps.par_iter().filter_map(candidate).collect()
    }
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

/// The plans of all levels of the ladder that [`Optimal::within`] considers with their peaks as budgets.
pub(crate) fn staircase(optimal: &Optimal<'_>) -> Result<Vec<Candidate>, PlanError> {
    let Optimal {
        chain,
        terms,
        repeats,
        levels,
        ..
    } = optimal;
    let mut points = Vec::new();
    for (index, &level) in levels.iter().enumerate() {
        // A smaller budget is answered by the next level.
        let resident = chain.resident_bytes();
        let more_than = levels
            .get(index + 1)
            .map_or(Bytes::ZERO, |next| resident + Bytes(next.top));
        let wanted = Wanted {
            most: resident + Bytes(level.top),
            more_than,
            first_only: false,
        };
        // With its peak as the budget, the table is not solved for more slots than this.
        let reached = |found: &Candidate| match found.source {
            Source::Slots(slots) => {
                slots.count <= level.slots((found.peak - resident).0, chain.stages.len())
            }
            _ => true,
        };
        points.extend(
            slotted(chain, terms, repeats, level, wanted)?
                .into_iter()
                .filter(reached),
        );
    }
    Ok(points)
}
