//! The door to the planners: [`plan`] takes a chain and a request, and returns a schedule with its predicted cost.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::optimal::{Candidate, Optimal};
use crate::planner::terms::Terms;
use crate::planner::{self, PlanError, smallest_peak, smallest_segments_peak};
use crate::schedule::Schedule;
use crate::seconds::Seconds;

/// The planners by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannerKind {
    /// Keep everything.
    None,
    /// Segments of equal length.
    Uniform,
    /// About sqrt(n) segments, cut by bytes.
    Sqrt,
    /// The best single-level cut.
    Segments,
    /// Binomial schedules for equal stages.
    Revolve,
    /// The best persistent schedule.
    Optimal,
    /// `none` if it fits, else `optimal`.
    #[default]
    Auto,
}

impl PlannerKind {
    /// All planners.
    pub const ALL: [PlannerKind; 7] = [
        PlannerKind::None,
        PlannerKind::Uniform,
        PlannerKind::Sqrt,
        PlannerKind::Segments,
        PlannerKind::Revolve,
        PlannerKind::Optimal,
        PlannerKind::Auto,
    ];

    /// The name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            PlannerKind::None => "none",
            PlannerKind::Uniform => "uniform",
            PlannerKind::Sqrt => "sqrt",
            PlannerKind::Segments => "segments",
            PlannerKind::Revolve => "revolve",
            PlannerKind::Optimal => "optimal",
            PlannerKind::Auto => "auto",
        }
    }
}

impl fmt::Display for PlannerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no planner's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a planner: expected none, uniform, sqrt, segments, revolve, optimal or auto"
)]
pub struct PlannerParseError {
    /// The name as it was given.
    pub name: String,
}

impl FromStr for PlannerKind {
    type Err = PlannerParseError;

    fn from_str(name: &str) -> Result<PlannerKind, PlannerParseError> {
        let found = PlannerKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name);
        found.ok_or_else(|| PlannerParseError {
            name: name.to_owned(),
        })
    }
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Which planner.
    pub planner: PlannerKind,
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// The number of segments, for `uniform` and `segments`; `None` leaves it to the planner.
    pub segments: Option<usize>,
    /// Into how many slots `optimal` cuts the memory that nothing need be recomputed in; fewer where the table would pass
    /// 2 GB (from about 1,200 stages on, at the default), more where exactness is free.
    pub slots: usize,
}

impl PlanRequest {
    /// The default number of slots.
    pub const SLOTS: usize = 500;
    /// The largest number of slots.
    pub const MOST_SLOTS: usize = 1_000_000;

    /// The fastest schedule within a budget.
    pub fn within(budget: Bytes) -> PlanRequest {
        PlanRequest {
            budget: Some(budget),
            ..PlanRequest::default()
        }
    }
}

impl Default for PlanRequest {
    fn default() -> PlanRequest {
        PlanRequest {
            planner: PlannerKind::Auto,
            budget: None,
            segments: None,
            slots: PlanRequest::SLOTS,
        }
    }
}

/// A schedule with its predicted cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planner that was asked; of `auto`, the one that answered.
    pub planner: PlannerKind,
    /// The schedule.
    pub schedule: Schedule,
    /// Its simulated peak, everything counted.
    pub peak: Bytes,
    /// Its simulated time, the optimizer's included.
    pub step: Seconds,
    /// Which method the schedule came from.
    pub source: Source,
}

/// Where a plan came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nothing is recomputed, and every stage is recorded in its fastest way: no schedule is faster.
    Fastest,
    /// `uniform` with so many segments.
    Uniform {
        /// The number of segments.
        segments: usize,
    },
    /// `sqrt`.
    Sqrt,
    /// `segments`: the best single-level cut, in exact bytes.
    Segments,
    /// `revolve` with so many snapshots, the chain's input among them.
    Revolve {
        /// The number of snapshots.
        snapshots: usize,
    },
    /// The persistent program, over slots.
    Slots(Slots),
    /// The persistent schedule of the smallest peak, in exact bytes.
    SmallestPeak,
}

/// How memory was cut into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// How many slots the plan was given.
    pub count: usize,
    /// The bytes of one.
    pub bytes: Bytes,
    /// Whether every size was a whole number of slots: then the plan is the optimum; otherwise sizes were rounded up.
    pub exact: bool,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Fastest => f.write_str("nothing recomputed"),
            Source::Uniform { segments } => write!(f, "{segments} equal segments"),
            Source::Sqrt => f.write_str("about sqrt(n) segments, cut by bytes"),
            Source::Segments => f.write_str("best single-level cut, exact bytes"),
            Source::Revolve { snapshots } => {
                write!(f, "binomial schedule with {snapshots} snapshots")
            }
            Source::Slots(Slots {
                count,
                bytes,
                exact: true,
            }) => {
                write!(
                    f,
                    "persistent program, {count} slots of {} bytes, exact",
                    bytes.0
                )
            }
            Source::Slots(Slots {
                count,
                bytes,
                exact: false,
            }) => {
                write!(
                    f,
                    "persistent program, {count} slots of {} bytes, sizes rounded up",
                    bytes.0
                )
            }
            Source::SmallestPeak => f.write_str("smallest peak, exact bytes"),
        }
    }
}

/// Makes a plan.
///
/// Every planner but `none` and `auto` returns its fastest schedule that fits; `sqrt` without a budget returns its
/// smallest.
///
/// # Errors
/// [`PlanError::Infeasible`] with the smallest budget that the planner can meet, exactly, and other errors for a chain
/// or a request that makes no sense.
///
/// ```
/// use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, PlanRequest, Seconds, Stage, plan};
///
/// let stage = Stage {
///     forward_s: Seconds(1.0),
///     backward_s: Seconds(2.0),
///     output_bytes: Bytes(100),
///     saved_bytes: Bytes(300),
///     ..Stage::default()
/// };
/// let chain = Chain {
///     input_bytes: Bytes(100),
///     input_grad: false,
///     fixed_bytes: Bytes(0),
///     stages: vec![stage; 8],
///     loss: LossCost::default(),
///     optimizer: OptimizerCost::default(),
/// };
/// let plan = plan(&chain, &PlanRequest { budget: Some(Bytes(1_500)), ..PlanRequest::default() })?;
/// assert!(plan.peak <= Bytes(1_500));
/// # Ok::<(), rekindle_plan::PlanError>(())
/// ```
pub fn plan(chain: &Chain, request: &PlanRequest) -> Result<Plan, PlanError> {
    chain.validate()?;
    let stages = chain.stages.len();
    let takes_segments = matches!(
        request.planner,
        PlannerKind::Uniform | PlannerKind::Segments
    );
    match request.segments {
        Some(_) if !takes_segments => {
            return Err(PlanError::SegmentsUnused {
                planner: request.planner,
            });
        }
        Some(segments) if segments == 0 || segments > stages => {
            return Err(PlanError::Segments { segments, stages });
        }
        _ => {}
    }
    if request.slots == 0 || request.slots > PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount {
            slots: request.slots,
        });
    }
    let budget = request.budget.unwrap_or(Bytes::MAX);
    match request.planner {
        PlannerKind::None | PlannerKind::Uniform | PlannerKind::Sqrt | PlannerKind::Revolve => {
            let candidates = candidates(chain, request.planner, request.segments)?;
            if request.planner == PlannerKind::Sqrt && request.budget.is_none() {
                let smallest = candidates.into_iter().min_by(|a, b| {
                    (a.peak, a.time)
                        .partial_cmp(&(b.peak, b.time))
                        .unwrap_or(std::cmp::Ordering::Equal)
                });
                return smallest
                    .map(|found| finish(request.planner, found))
                    .ok_or(PlanError::NoStages);
            }
            let smallest = candidates.iter().map(|candidate| candidate.peak).min();
            match fastest_within(candidates, budget) {
                Some(found) => Ok(finish(request.planner, found)),
                None => Err(infeasible(
                    chain,
                    request.planner,
                    budget,
                    smallest.unwrap_or(Bytes::MAX),
                )?),
            }
        }
        PlannerKind::Segments => match planner::segments(chain, budget, request.segments)? {
            Some(schedule) => Ok(finish(
                request.planner,
                Candidate::new(chain, schedule, Source::Segments)?,
            )),
            None => {
                let smallest = smallest_segments_peak(chain, request.segments)?;
                Err(infeasible(chain, request.planner, budget, smallest)?)
            }
        },
        PlannerKind::Auto => {
            let plain = Candidate::new(
                chain,
                planner::none(stages)?,
                Source::Uniform { segments: 1 },
            )?;
            if plain.peak <= budget {
                Ok(finish(PlannerKind::None, plain))
            } else {
                optimal(chain, budget, request)
            }
        }
        PlannerKind::Optimal => optimal(chain, budget, request),
    }
}

fn optimal(chain: &Chain, budget: Bytes, request: &PlanRequest) -> Result<Plan, PlanError> {
    let terms = Terms::new(chain);
    let optimal = Optimal::new(chain, &terms, request.slots)?;
    let smallest = optimal.smallest.peak;
    match optimal.within(budget)? {
        Some(found) => Ok(finish(PlannerKind::Optimal, found)),
        None => Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
            smallest_of_all: smallest,
        }),
    }
}

/// All schedules that a planner without a search of its own would consider.
pub(crate) fn candidates(
    chain: &Chain,
    kind: PlannerKind,
    segments: Option<usize>,
) -> Result<Vec<Candidate>, PlanError> {
    let stages = chain.stages.len();
    match kind {
        PlannerKind::Uniform => {
            let counts = segments.map_or(1..=stages, |segments| segments..=segments);
            let source = |segments| Source::Uniform { segments };
            counts
                .map(|k| Candidate::new(chain, planner::uniform(stages, k)?, source(k)))
                .collect()
        }
        PlannerKind::Sqrt => planner::sqrt(chain)?
            .into_iter()
            .map(|schedule| Candidate::new(chain, schedule, Source::Sqrt))
            .collect(),
        PlannerKind::Revolve => {
            let source = |snapshots| Source::Revolve { snapshots };
            (1..=stages)
                .map(|s| Candidate::new(chain, planner::revolve(stages, s)?, source(s)))
                .collect()
        }
        PlannerKind::None | PlannerKind::Segments | PlannerKind::Optimal | PlannerKind::Auto => {
            Ok(vec![Candidate::new(
                chain,
                planner::none(stages)?,
                Source::Uniform { segments: 1 },
            )?])
        }
    }
}

fn fastest_within(candidates: Vec<Candidate>, budget: Bytes) -> Option<Candidate> {
    let fitting = candidates
        .into_iter()
        .filter(|candidate| candidate.peak <= budget);
    fitting.min_by(|a, b| a.time.total_cmp(&b.time).then(a.peak.cmp(&b.peak)))
}

pub(crate) fn finish(planner: PlannerKind, found: Candidate) -> Plan {
    Plan {
        planner,
        schedule: found.schedule,
        peak: found.peak,
        step: Seconds(found.time),
        source: found.source,
    }
}

fn infeasible(
    chain: &Chain,
    planner: PlannerKind,
    budget: Bytes,
    smallest: Bytes,
) -> Result<PlanError, PlanError> {
    let (smallest_of_all, _) = smallest_peak(chain)?;
    Ok(PlanError::Infeasible {
        planner,
        budget,
        smallest,
        smallest_of_all,
    })
}
