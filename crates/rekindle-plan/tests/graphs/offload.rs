//! Plans that move tensors to the host's memory: against an exhaustive search, a second simulator and closed forms.
use crate::graph_support::exhaustive::least_time_with_host;
use crate::graph_support::graphs::{Sequence, any, equal_steps, training};
use crate::graph_support::naive::{self, needed_after};
use crate::graph_support::tensor_ids;
use rekindle_plan::graph::{
    GraphPlan, Link, Operation, OperationId, PlanError, Program, Rate, TensorId, Transfer,
    plan_graph, simulate,
};
use rekindle_plan::{Bytes, Graph, Request, Seconds};

fn link(latency: [u64; 2], bytes_per_s: f64, host: u64) -> Link {
    let [to_host, to_device] = latency.map(|latency| Rate {
        latency_s: Seconds(latency as f64),
        bytes_per_s,
    });
    Link {
        to_host,
        to_device,
        host_bytes: Bytes(host),
        staging_bytes: Bytes(1),
    }
}

fn request(budget: u64, link: Link) -> Request {
    Request {
        link: Some(link),
        ..Request::within(Bytes(budget))
    }
}

/// The tensors that an operation makes a storage for.
fn stored(graph: &Graph) -> Vec<TensorId> {
    let made = graph.operations.iter().filter(|one| !one.view);
    made.flat_map(|one| one.outputs.clone()).collect()
}

/// The most bytes of copies that are still needed after any step, by looking ahead.
fn host_peak(graph: &Graph, list: &[OperationId]) -> u64 {
    let copies = || tensor_ids(graph).filter(|t| graph.tensor(*t).host_bytes.0 > 0);
    let made = |step: usize, copy: TensorId| {
        let ran = list[..=step].iter();
        ran.rev()
            .any(|id| graph.operation(*id).outputs.contains(&copy))
    };
    let held = (0..list.len()).map(|step| {
        let held = copies().filter(|&copy| {
            // The copy that a fetch reads is there while it runs.
            let read = graph.operation(list[step]).inputs.contains(&copy);
            read || made(step, copy) && needed_after(graph, list, step, copy)
        });
        held.map(|copy| graph.tensor(copy).host_bytes.0).sum()
    });
    held.max().unwrap_or_default()
}

#[derive(Debug, Default)]
struct Distance {
    budgets: usize,
    fitting: usize,
    optimal: usize,
    moving: usize,
    worst: f64,
}

impl Distance {
    /// Adds a graph with a link of random prices, at three budgets from below what recomputing alone needs.
    fn add(&mut self, graph: &Graph, random: &mut Sequence) {
        graph.validate().unwrap();
        let plain = simulate(graph, &Program::recorded(graph).unwrap());
        let host = if random.below(2) == 0 { 6 } else { 1000 };
        let bytes_per_s = [1.0, f64::INFINITY][random.below(2) as usize];
        let link = link([random.below(4), random.below(4)], bytes_per_s, host);
        let all = graph.linked(&stored(graph), Some(&link)).unwrap();
        for part in 2..5 {
            let budget = plain.peak.0 * part / 5;
            let best = least_time_with_host(&all, budget, host);
            let plan = match (plan_graph(graph, &request(budget, link)), best) {
                (Err(PlanError::Infeasible { .. }), None) => continue,
                (Err(PlanError::Infeasible { leanest, .. }), Some(_)) => {
                    self.budgets += 1;
                    assert!(leanest.simulated.peak.0 > budget);
                    continue;
                }
                (plan, _) => plan.unwrap(),
            };
            let best = best.unwrap();
            let time = plan.simulated.time.0;
            let graph = graph.linked(&plan.offloaded, Some(&link)).unwrap();
            let list = plan.program.operations();
            let second = naive::simulate(&graph, list).unwrap();
            assert_eq!((plan.simulated.peak.0, time), (second.peak, second.seconds));
            assert!(plan.simulated.peak.0 <= budget);
            assert_eq!(plan.simulated.host_peak.0, host_peak(&graph, list));
            assert!(plan.simulated.host_peak.0 <= host);
            assert!(
                time >= best as f64,
                "the exhaustive search missed a program"
            );
            self.budgets += 1;
            self.fitting += 1;
            self.moving += usize::from(!plan.offloaded.is_empty());
            self.optimal += usize::from(time == best as f64);
            self.worst = self.worst.max(time / (best.max(1) as f64));
        }
    }
}

fn distance(graphs: usize, make: impl Fn(&mut Sequence) -> Graph) -> Distance {
    let mut random = Sequence(7);
    let mut distance = Distance::default();
    for _ in 0..graphs {
        let graph = make(&mut random);
        distance.add(&graph, &mut random);
    }
    distance
}

#[test]
fn nearly_all_plans_of_small_graphs_with_a_link_are_optimal() {
    let distance = distance(80, |random| any(random, 6));
    assert!(distance.budgets > 40 && distance.moving > 5, "{distance:?}");
    assert!(
        distance.fitting * 100 >= distance.budgets * 98,
        "{distance:?}"
    );
    assert!(
        distance.optimal * 100 >= distance.fitting * 95,
        "{distance:?}"
    );
    assert!(distance.worst <= 1.3, "{distance:?}");
}

/// `cargo test --release -p rekindle-plan --test graphs offload -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes; prints the numbers that the documentation states"]
fn distance_of_hundreds_of_graphs() {
    println!(
        "any graphs of 6 operations: {:?}",
        distance(400, |random| any(random, 6))
    );
    println!(
        "training steps of 8 operations: {:?}",
        distance(200, |random| training(random, 4))
    );
}

/// `n` equal steps make n - 1 states of a byte, in one storage where nobody wants the older one, and the backward reads
/// them from the last on. In s bytes, all but s go to the host and come back once, where that takes less than one step;
/// nothing runs again.
#[test]
fn equal_steps_move_all_that_has_no_room_to_a_fast_host() {
    let mut fast = link([0; 2], 4.0, 1000);
    fast.staging_bytes = Bytes(0);
    for (steps, bytes) in [(4, 1), (10, 1), (10, 2), (16, 3)] {
        let graph = equal_steps(steps as usize);
        let plan = plan_graph(&graph, &request(bytes, fast)).unwrap();
        let moved = steps - 1 - bytes;
        let run = &plan.simulated;
        assert_eq!(
            run.time.0,
            (2 * steps - 1) as f64 + 0.5 * moved as f64,
            "{steps} steps in {bytes}"
        );
        assert_eq!((run.peak.0, run.host_peak.0), (bytes, moved));
        assert_eq!(
            (run.offloaded.0, run.fetched.0, run.repeated),
            (moved, moved, 0)
        );
        assert_eq!(run.transfer_time.0, 0.5 * moved as f64);
    }
}

/// Copies that a walk makes at an earlier moment are on the host from then on, beside those that were there at the time.
#[test]
fn copies_never_take_more_of_the_host_than_there_is() {
    let mut random = Sequence(11);
    let (mut moving, mut full) = (0, 0);
    for _ in 0..10 {
        // Too many operations for the exact search.
        let graph = training(&mut random, 16);
        let plain = simulate(&graph, &Program::recorded(&graph).unwrap()).peak.0;
        for (part, host) in [(2, 6), (2, 12), (3, 9)] {
            let link = link([0; 2], f64::INFINITY, host);
            let Ok(plan) = plan_graph(&graph, &request(plain * part / 5, link)) else {
                continue;
            };
            let run = &plan.simulated;
            assert!(run.host_peak.0 <= host && run.peak.0 <= plain * part / 5);
            moving += usize::from(!plan.offloaded.is_empty());
            full += usize::from(run.host_peak.0 + 1 >= host);
        }
    }
    assert!(
        moving > 5 && full > 2,
        "{moving} move tensors, {full} fill the host"
    );
}

#[test]
fn without_a_link_or_with_one_too_slow_plans_are_the_same() {
    let mut random = Sequence(3);
    for _ in 0..20 {
        let graph = training(&mut random, 4);
        let text = serde_json::to_string(&graph).unwrap();
        assert!(
            !text.contains("host") && !text.contains("transfer"),
            "{text}"
        );
        let most = simulate(&graph, &Program::recorded(&graph).unwrap()).peak.0;
        for budget in [most / 2, most * 3 / 4, most] {
            let alone = plan_graph(&graph, &Request::within(Bytes(budget)));
            let slow = plan_graph(&graph, &request(budget, link([1 << 40; 2], 1e-9, 1000)));
            let Ok(alone) = alone else { continue };
            assert_eq!(slow.unwrap(), alone, "within {budget}");
        }
    }
}

/// A random draw is needed again at the end; its bytes and those of two others are more than there is room for.
#[test]
fn a_draw_that_cannot_be_made_again_goes_to_the_host() {
    let mut builder = crate::graph_support::graphs::Builder::default();
    let given = builder.given();
    let draw = builder.operation(&[given], 4, 1);
    builder.last().repeatable = false;
    let first = builder.operation(&[draw], 4, 1);
    let second = builder.operation(&[first], 4, 1);
    let third = builder.operation(&[second], 1, 1);
    let last = builder.operation(&[third, draw], 1, 1);
    builder.output(last);
    let graph = builder.graph;
    let alone = plan_graph(&graph, &Request::within(Bytes(9)));
    assert!(
        matches!(
            alone,
            Err(PlanError::Infeasible { ref leanest, .. })
                if leanest.simulated.peak == Bytes(12)
        ),
        "{alone:?}"
    );
    let plan = plan_graph(&graph, &request(9, link([1; 2], 4.0, 4))).unwrap();
    assert_eq!(plan.offloaded, [draw]);
    assert_eq!(
        (plan.simulated.time, plan.simulated.peak),
        (Seconds(5.0 + 4.0), Bytes(9))
    );
    // No room for it on the host.
    let plan = plan_graph(&graph, &request(9, link([1; 2], 4.0, 3)));
    assert!(
        matches!(
            plan,
            Err(PlanError::Infeasible { ref leanest, .. })
                if leanest.simulated.peak == Bytes(12)
        ),
        "{plan:?}"
    );
}

#[test]
fn a_fetch_of_what_is_not_on_the_host_is_refused() {
    let graph = equal_steps(4);
    let link = link([0; 2], 4.0, 1000);
    let offloaded = vec![graph.operations[0].outputs[0]];
    let linked = graph.linked(&offloaded, Some(&link)).unwrap();
    let fetch = OperationId(graph.operations.len() as u32 + 1);
    assert_eq!(linked.operation(fetch).transfer, Some(Transfer::Fetch));
    let mut operations = Program::recorded(&graph).unwrap().operations().to_vec();
    operations.insert(1, fetch);
    let plan =
        |link, operations, offloaded| GraphPlan::of_operations(&graph, link, operations, offloaded);
    let refused = plan(Some(&link), operations.clone(), offloaded.clone());
    let refused = refused.unwrap_err().to_string();
    let expected = format!("step 1 (operation {fetch}) reads tensor ");
    assert!(refused.starts_with(&expected), "{refused}");
    operations.insert(1, OperationId(fetch.0 - 1));
    assert!(plan(Some(&link), operations.clone(), offloaded.clone()).is_ok());
    // Without a link, without room on the host, and of what nothing makes.
    assert!(plan(None, operations.clone(), offloaded.clone()).is_err());
    let narrow = Link {
        host_bytes: Bytes(0),
        ..link
    };
    let refused = plan(Some(&narrow), operations.clone(), offloaded);
    let refused = refused.unwrap_err().to_string();
    let expected = "the plan holds 1 B in host memory, where it may hold 0 B";
    assert_eq!(refused, expected);
    assert!(plan(Some(&link), operations, vec![TensorId(0)]).is_err());
}

/// A profile is a file, which anybody may have edited: only a plan adds transfers.
#[test]
fn a_graph_with_transfers_of_its_own_is_refused() {
    let graph = equal_steps(4);
    let made = graph.operations[0].outputs[0];
    let link = link([0; 2], 1.0, 100);
    let moving = graph.linked(&[made], Some(&link)).unwrap();
    let refused = plan_graph(&moving, &request(1000, link)).unwrap_err();
    assert!(refused.to_string().contains("is a transfer"), "{refused}");
    let given = tensor_ids(&graph).find(|t| graph.tensor(*t).given).unwrap();
    let of_given = graph.linked(&[given], Some(&link)).unwrap_err();
    assert!(of_given.to_string().contains("cannot be moved to the host"));
}

/// What lies in the storage of one tensor can be had again from it.
#[test]
fn a_view_that_draws_or_reads_two_tensors_is_refused() {
    let graph = any(&mut Sequence(11), 12);
    let view = |one: &Operation| !one.inputs.is_empty();
    let place = graph.operations.iter().position(view).unwrap();
    let changed = |change: &dyn Fn(&mut Operation)| {
        let mut graph = graph.clone();
        graph.operations[place].view = true;
        change(&mut graph.operations[place]);
        graph.validate().unwrap_err().to_string()
    };
    for said in [
        changed(&|view| view.repeatable = false),
        changed(&|view| view.inputs = vec![view.inputs[0]; 2]),
    ] {
        assert!(said.contains("is a view: it reads one tensor"), "{said}");
    }
}
