//! Memory and speed of several ranks, from shapes.

use rekindle::record::{self, Kernels, Rate, Ring, Update};
use rekindle_plan::{Bytes, Planner, Request, Seconds};
use rekindle_train::{
    Estimated,
    fit::{Limit, MOST_OPERATIONS, largest},
    optimizer_state::{OptimizerState, StateChoice},
    ranks::RanksRefused,
    settings::TrainSettings,
    update::{UpdateChoice, Updates},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    config::Config,
    failure::Failure,
    network::{Flops, LinkChoice, in_words},
    table::{self, thousands},
};

/// Maximum batch in the search.
const MOST_SAMPLES: usize = 1 << 30;

/// The batch shared by several ranks; all bytes and times are of the rank with most samples.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RanksEstimate {
    /// Number of ranks.
    ranks: usize,
    /// The most samples of a rank in each step.
    batch: usize,
    /// Its peak without recomputing, with a whole optimizer's state.
    plain_peak_bytes: Bytes,
    /// Who would keep the optimizer's state. By itself it is sharded where no plan of the recorded step, by shapes, is within
    /// the budget with a whole one; `null` where none is with either, or the step
    /// has too many operations to be planned.
    optimizer_state: Option<OptimizerState>,
    /// What a rank holds of a whole state.
    whole_state_bytes: Bytes,
    /// What it holds of a sharded one, at most.
    sharded_state_bytes: Bytes,
    /// The largest batch of all ranks together whose plain step fits the budget, or else the device, on each; `null` where
    /// neither is known or none fits.
    largest_plain_batch: Option<usize>,
    /// The plain step on each link that was named.
    links: Vec<LinkEstimate>,
}

/// A step on one kind of link.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkEstimate {
    /// From each rank to its neighbour in a ring.
    link: Rate,
    /// What a rank computes.
    computing_s: Seconds,
    /// What the exchange adds, with a whole optimizer's state unless it would be sharded; copies between device and network
    /// are not counted.
    exchange_s: Seconds,
    /// What of that sending updated parameters is, or would be with a sharded state.
    sharded_s: Seconds,
    /// The share of the step that is not the exchange.
    efficiency: f64,
}

/// Ranks and links to count.
pub struct Asked<'a> {
    pub ranks: &'a [usize],
    pub links: &'a [LinkChoice],
    pub flops: Option<Flops>,
}

impl RanksEstimate {
    /// Counts for each number of ranks that was asked for.
    pub fn all(
        asked: &Asked<'_>,
        config: &Config,
        kernels: Kernels,
        limit: Option<&Limit>,
    ) -> Result<Vec<Self>, Failure> {
        let all = asked.ranks.iter();
        all.map(|&ranks| Self::new(asked, ranks, config, kernels, limit))
            .collect()
    }

    fn new(
        asked: &Asked<'_>,
        ranks: usize,
        config: &Config,
        kernels: Kernels,
        limit: Option<&Limit>,
    ) -> Result<Self, Failure> {
        let whole = config.training.batch;
        RanksRefused::check_samples(whole, ranks).map_err(Failure::usage)?;
        let settings = |batch| TrainSettings {
            batch,
            ..config.training.clone()
        };
        let own = settings(whole.div_ceil(ranks));
        let parts = own.accumulate.max(1);
        let estimated = |settings: &TrainSettings, ranks| -> Result<_, Failure> {
            let estimated = Estimated {
                ranks,
                ..config.estimated(settings, kernels)
            };
            Ok(estimated.estimate()?)
        };
        let peak = estimated(&own, 1)?.plain_peak;
        let largest = match limit {
            Some(limit) => {
                let mut fits = |samples: usize| -> Result<bool, Failure> {
                    let settings = settings(samples * parts);
                    let step = config.estimated(&settings, kernels).step()?;
                    let plain = Request {
                        planner: Planner::None,
                        budget: Some(limit.bytes),
                        ..Request::default()
                    };
                    Ok(step.try_plan(&plain)?.is_ok())
                };
                let share = limit.bytes.0 as f64 / peak.0.max(1) as f64;
                let first = (own.micro_batch() as f64 * share) as usize;
                largest(MOST_SAMPLES, first, 2.0, 0.0, &mut fits)?
            }
            None => None,
        };
        let estimate = |settings: &TrainSettings| estimated(settings, ranks);
        let step = estimate(&own)?;
        let whole = own.state_bytes(config.shape.param_count());
        let shared = own.state_bytes(step.fullest_share(ranks));
        let budget = limit.filter(|limit| limit.of == Limit::BUDGET);
        let budget = budget.map(|limit| limit.bytes);
        let updates = Updates::of(&own, budget.is_some());
        let mut steps = vec![step];
        if updates != Updates::One(Update::After) && own.update == UpdateChoice::Auto {
            steps.push(estimate(&TrainSettings {
                update: UpdateChoice::InBackward,
                ..own.clone()
            })?);
        }
        let optimizer_state = chosen(own.optimizer_state, [whole, shared], budget, &steps)?;
        let step = &steps[0];
        let sharded = optimizer_state == Some(OptimizerState::Sharded);
        let links = match asked.flops {
            Some(flops) => {
                let links = asked.links.iter().map(|&LinkChoice(link)| {
                    let ring = Ring { ranks, link };
                    let (computing, taken) = step.on_ranks(ring, flops.0, true);
                    let taken = taken.repeated(parts);
                    let computing_s = computing * parts as f64;
                    let exchange_s = match sharded {
                        true => taken.added(),
                        false => taken.added() - taken.parameters_s,
                    };
                    LinkEstimate {
                        link,
                        computing_s,
                        exchange_s,
                        sharded_s: taken.parameters_s,
                        efficiency: computing_s.0 / (computing_s + exchange_s).0,
                    }
                });
                links.collect()
            }
            None => Vec::new(),
        };
        Ok(Self {
            ranks,
            batch: own.batch,
            plain_peak_bytes: peak,
            optimizer_state,
            whole_state_bytes: whole,
            sharded_state_bytes: shared,
            largest_plain_batch: largest.map(|samples| samples * parts * ranks),
            links,
        })
    }
}

/// How the optimizer's state would be kept within a budget, given its bytes whole and sharded, for a step with either
/// update.
fn chosen(
    asked: StateChoice,
    [whole_bytes, sharded]: [Bytes; 2],
    budget: Option<Bytes>,
    steps: &[record::Estimate],
) -> Result<Option<OptimizerState>, Failure> {
    let (whole, sharded) = (
        (OptimizerState::Whole, whole_bytes),
        (OptimizerState::Sharded, sharded),
    );
    let states = match asked {
        StateChoice::Auto => vec![whole, sharded],
        StateChoice::Whole => vec![whole],
        StateChoice::Sharded => vec![sharded],
    };
    let Some(budget) = budget else {
        return Ok(states.first().map(|(state, _)| *state));
    };
    for (state, held) in states {
        // Estimates hold a whole state.
        let left = budget + whole_bytes - held;
        for step in steps
            .iter()
            .filter(|step| step.operations <= MOST_OPERATIONS)
        {
            if step.within(left)?.is_some() {
                return Ok(Some(state));
            }
        }
    }
    Ok(None)
}

/// For people.
pub fn text(all: &[RanksEstimate]) -> String {
    let header = [
        "\nranks",
        "samples\neach",
        "plain peak\neach",
        "state\nwhole",
        "state\nsharded",
        "largest\nbatch",
        "\nlink",
        "\nstep",
        "exchange\nadds",
        "\nefficiency",
    ];
    let mut table = table::table(header, 0..0);
    for one in all {
        let largest = one.largest_plain_batch;
        // The one that would be chosen is marked.
        let state = |state, bytes: Bytes| match one.optimizer_state == Some(state) {
            true => format!("{bytes} *"),
            false => bytes.to_string(),
        };
        let mut first = [
            one.ranks.to_string(),
            one.batch.to_string(),
            one.plain_peak_bytes.to_string(),
            state(OptimizerState::Whole, one.whole_state_bytes),
            state(OptimizerState::Sharded, one.sharded_state_bytes),
            largest.map_or(String::new(), |batch| thousands(batch as u64)),
        ];
        if one.links.is_empty() {
            table.add_row(first.iter().cloned());
        }
        for link in &one.links {
            let of_link = [
                in_words(link.link),
                (link.computing_s + link.exchange_s).to_string(),
                link.exchange_s.to_string(),
                format!("{:.0}%", 100.0 * link.efficiency),
            ];
            table.add_row(std::mem::take(&mut first).into_iter().chain(of_link));
        }
    }
    table::dense(&mut table, 0..header.len());
    let table = table::shown(&table, &[8]);
    match all.iter().any(|one| one.optimizer_state.is_some()) {
        true => format!("{table}\n* the option that is chosen for the optimizer's state"),
        false => table,
    }
}
