//! Changes at random: the runs always are a program, cost what the simulator says, and can be undone.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "these are tests, which use only some of the graphs"
)]
#[path = "../graph_support/graphs.rs"]
mod graphs;

use proptest::prelude::*;

use super::net::Net;
use super::runs::{END, Runs, key};
use crate::bytes::Bytes;
use crate::graph::{Link, Rate};
use crate::seconds::Seconds;
use graphs::Sequence;

/// A link over which moving takes some time and room.
const LINK: Link = {
    let rate = Rate {
        bytes_per_s: 1.0,
        latency_s: Seconds::ZERO,
    };
    Link {
        to_host: rate,
        to_device: rate,
        host_bytes: Bytes::MAX,
        staging_bytes: Bytes(3),
    }
};

/// Inserts a run whose inputs are there, or removes one that is not needed.
fn change(runs: &mut Runs<'_>, net: &Net<'_>, random: &mut Sequence) {
    let at = random.below(net.ranks as u64) as usize;
    let place = random.below(runs.buckets[at].len().max(1) as u64) as u32;
    let place = key(at as u32, place);
    let op = random.below(net.ops.len() as u64) as u32;
    let of = &net.ops[op as usize];
    let there = |&value: &u32| runs.made_before(value, place).is_some();
    if !of.once && !of.fixed && of.inputs.iter().all(there) && random.below(3) > 0 {
        runs.insert(op, place);
    } else if let Some(&run) = runs.buckets[at].first()
        && runs.is_extra(run)
        && runs.removable(run)
    {
        runs.remove(run);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn changed_runs_cost_what_the_simulator_says(seed: u64, operations in 1_usize..14) {
        let mut random = Sequence(seed);
        let mut graph = graphs::any(&mut random, operations);
        // Views, which the search does not count, take no time.
        for view in graph.operations.iter_mut().filter(|one| one.view) {
            view.seconds = Seconds::ZERO;
        }
        let net = Net::new(&graph, Some(&LINK)).unwrap();
        let mut runs = Runs::of(&net, &net.recorded());
        for _ in 0..20 {
            let (before, order) = (runs.changes.len(), runs.order());
            let costs = (runs.peak(), runs.host_peak());
            for _ in 0..random.below(12) {
                change(&mut runs, &net, &mut random);
            }
            runs.settle();
            if random.below(2) == 0 {
                runs.undo(before);
                prop_assert_eq!((runs.order(), (runs.peak(), runs.host_peak())), (order, costs));
            }
            // The simulator gets no runs whose results are unused.
            let all: Vec<u32> = runs.buckets.iter().flatten().copied().collect();
            for run in all.into_iter().rev() {
                if runs.is_extra(run) && runs.removable(run) && runs.unread(run, END) {
                    runs.remove(run);
                }
            }
            runs.settle();
            let simulated = net.plan(&runs.order()).unwrap().simulated;
            prop_assert_eq!((simulated.peak - graph.fixed_bytes).0 as i64, runs.peak());
            prop_assert_eq!(simulated.host_peak.0 as i64, runs.host_peak());
            prop_assert!((simulated.time.0 - runs.seconds).abs() < 1e-9);
        }
    }
}
