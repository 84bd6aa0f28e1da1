//! What several ranks take and give, from shapes.

use std::convert::Infallible;

use rekindle::{
    profile::with_reserve,
    record::{Rate, Ring},
};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{
    self as train, model::kernels::Kernels, ranks::RanksRefused, settings::TrainSettings,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::Limit;
use crate::{
    config::Config,
    failure::Failure,
    max::search::largest,
    network::{Flops, LinkChoice, in_words},
    table::{self, thousands},
};

/// A batch is never found to be larger.
const MOST_SAMPLES: usize = 1 << 30;

/// The batch shared by several ranks; all bytes and times are of the rank with most samples.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RanksEstimate {
    /// Number of ranks.
    ranks: usize,
    /// The most samples of a rank in each step.
    batch: usize,
    /// Its peak without recomputing.
    plain_peak_bytes: Bytes,
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
    /// What the exchange of gradients adds; copies between device and network are not counted.
    exchange_s: Seconds,
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
        let peak = |settings: &TrainSettings| {
            let plain = config.counted(settings, kernels).chain().plain();
            plain.map(|plain| plain.peak)
        };
        let own = settings(whole.div_ceil(ranks));
        let parts = own.accumulate.max(1);
        let largest = limit.and_then(|limit| {
            let Ok(found) = largest(MOST_SAMPLES, 1, 2.0, 0.0, |samples| {
                let peak = peak(&settings(samples * parts));
                Ok::<_, Infallible>(peak.is_ok_and(|peak| with_reserve(peak) <= limit.bytes))
            });
            found
        });
        let links = match asked.flops {
            Some(flops) if !asked.links.is_empty() => {
                let target = config.data.source.target();
                let estimate = train::estimate(&config.model, &own, target)?;
                let links = asked.links.iter().map(|&LinkChoice(link)| {
                    let (computing, taken) = estimate.on_ranks(Ring { ranks, link }, flops.0);
                    let taken = taken.repeated(parts);
                    let computing_s = computing * parts as f64;
                    let exchange_s = taken.added();
                    LinkEstimate {
                        link,
                        computing_s,
                        exchange_s,
                        efficiency: computing_s.0 / (computing_s + exchange_s).0,
                    }
                });
                links.collect()
            }
            _ => Vec::new(),
        };
        Ok(Self {
            ranks,
            batch: own.batch,
            plain_peak_bytes: peak(&own)?,
            largest_plain_batch: largest.map(|samples| samples * parts * ranks),
            links,
        })
    }
}

/// For people.
pub fn text(all: &[RanksEstimate]) -> String {
    let header = [
        "\nranks",
        "samples\neach",
        "plain peak\neach",
        "largest\nbatch",
        "\nlink",
        "\nstep",
        "exchange\nadds",
        "\nefficiency",
    ];
    let mut table = table::table(header, 0..0);
    for one in all {
        let largest = one.largest_plain_batch;
        let mut first = [
            one.ranks.to_string(),
            one.batch.to_string(),
            one.plain_peak_bytes.to_string(),
            largest.map_or("-".into(), |batch| thousands(batch as u64)),
        ];
        if one.links.is_empty() {
            table.add_row(first.iter().cloned().chain([const { String::new() }; 4]));
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
    if all.iter().all(|one| one.links.is_empty()) {
        for column in 4..header.len() {
            table::hide(&mut table, column);
        }
    }
    table::shown(&table, &[6])
}
