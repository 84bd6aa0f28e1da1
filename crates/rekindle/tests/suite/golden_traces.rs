//! Schedules that other programs found, run by the executor on real layers: the trace is the schedule, action by action.

use std::sync::Arc;

use crate::compare::Blind;
use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use rekindle::{Executor, Layer, Sequential, StepSeed};
use rekindle_plan::{
    Action, Bytes, Chain, LossCost, OptimizerCost, PlanRequest, PlannerKind, Schedule, Seconds,
    Stage, StageId, plan, planner, simulate,
};

const WIDTH: usize = 2;

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

/// What a chain of linear layers does under a schedule, and how often each of them runs.
fn trace(schedule: &Schedule) -> (Vec<Action>, Vec<usize>) {
    let device = Device::flex().autodiff();
    let layers: Vec<Dense> = (0..schedule.stages())
        .map(|_| Dense {
            linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
        })
        .collect();
    let executor = Executor::new(schedule.clone())
        .with_meter(Arc::new(Blind))
        .traced();
    let input = Tensor::<2>::ones([1, WIDTH], &device);
    let output = executor
        .step(
            &Sequential::new(layers),
            input,
            StepSeed::new(0, 0),
            Tensor::mean,
        )
        .expect("the schedule fits");
    let actions = output.trace.iter().map(|entry| entry.action).collect();
    (actions, output.forward_counts)
}

fn without_optimizer(schedule: &Schedule) -> Vec<Action> {
    let actions = schedule.actions().iter().copied();
    actions
        .filter(|action| *action != Action::Optimize)
        .collect()
}

/// What the program of Griewank & Walther 2000 (Algorithm 799, ACM TOMS 26(1)) prints for 10 steps and 3 snapshots, its
/// number of untracked forwards included. A shot is taken of the state that an `advance` starts from, or restored before;
/// `firsturn` and `youturn` are a tracked forward and its backward, the first with the loss between them.
const REVOLVE_10_3: &str = "\
    takeshot 0; advance 0 4; takeshot 4; advance 4 7; takeshot 7; advance 7 9; firsturn 9; restore 7; advance 7 8; \
    youturn 8; restore 7; youturn 7; restore 4; advance 4 5; takeshot 5; advance 5 6; youturn 6; restore 5; youturn 5; \
    restore 4; youturn 4; restore 0; advance 0 1; takeshot 1; advance 1 2; takeshot 2; advance 2 3; youturn 3; \
    restore 2; youturn 2; restore 1; youturn 1; restore 0; youturn 0";
const REVOLVE_10_3_ADVANCES: usize = 15;

#[test]
fn revolve_does_what_algorithm_799_does() {
    let mut golden = Vec::new();
    for command in REVOLVE_10_3.split("; ") {
        let words: Vec<&str> = command.split(' ').collect();
        let number = |word: usize| words[word].parse::<usize>().expect("a number");
        match words[0] {
            "takeshot" | "restore" => {}
            "advance" => {
                golden.push(Action::ForwardKeep(StageId(number(1))));
                golden.extend(
                    (number(1) + 1..number(2)).map(|stage| Action::Forward(StageId(stage))),
                );
            }
            "firsturn" | "youturn" => {
                golden.push(Action::tracked(number(1)));
                golden.extend((words[0] == "firsturn").then_some(Action::Loss));
                golden.push(Action::Backward(StageId(number(1))));
            }
            other => unreachable!("{other}"),
        }
    }
    let schedule = planner::revolve(10, 3).expect("in range");
    let (trace, counts) = trace(&schedule);
    assert_eq!(trace, golden);
    assert_eq!(counts.iter().sum::<usize>() - 10, REVOLVE_10_3_ADVANCES);
}

/// A chain of 12 stages, and at five memory limits the optimal persistent schedule (Beaumont et al., RR-9302) with its
/// makespan and its peak, as an independent implementation of the program found them. `CF` keeps its input, `Fn` drops
/// it, `Fe` records the graph.
const FORWARD: [u64; 12] = [7, 6, 12, 5, 13, 15, 2, 14, 2, 4, 10, 14];
const BACKWARD: [u64; 12] = [14, 13, 25, 9, 27, 29, 6, 29, 7, 12, 17, 29];
const ACTIVATION: [u64; 13] = [3, 5, 1, 2, 2, 5, 3, 2, 2, 3, 5, 4, 5];
const SAVED: [u64; 12] = [11, 4, 7, 9, 18, 4, 2, 2, 10, 20, 10, 23];
const FORWARD_TEMP: [u64; 12] = [2, 3, 4, 2, 2, 2, 1, 3, 4, 2, 1, 1];
const BACKWARD_TEMP: [u64; 13] = [0, 0, 5, 3, 5, 1, 1, 5, 2, 0, 0, 5, 2];
const OPTIMAL: [(u64, f64, u64, &str); 5] = [
    (
        46,
        433.0,
        46,
        "CF_0 Fn_1 Fn_2 Fn_3 Fn_4 Fn_5 Fn_6 CF_7 Fn_8 Fn_9 Fn_10 Fe_11 L B_11 Fe_7 Fe_8 CF_9 Fe_10 B_10 Fe_9 B_9 B_8 B_7 \
         CF_0 Fn_1 Fe_2 CF_3 Fe_4 Fe_5 Fe_6 B_6 B_5 B_4 Fe_3 B_3 B_2 Fe_0 Fe_1 B_1 B_0",
    ),
    (
        58,
        384.0,
        58,
        "CF_0 Fn_1 CF_2 Fn_3 Fn_4 Fe_5 Fe_6 Fe_7 CF_8 Fn_9 Fn_10 Fe_11 L B_11 Fe_8 CF_9 Fe_10 B_10 Fe_9 B_9 B_8 B_7 B_6 \
         B_5 Fe_2 Fe_3 Fe_4 B_4 B_3 B_2 Fe_0 Fe_1 B_1 B_0",
    ),
    (
        72,
        368.0,
        70,
        "CF_0 Fn_1 Fe_2 CF_3 CF_4 Fe_5 Fe_6 Fe_7 CF_8 CF_9 Fn_10 Fe_11 L B_11 Fe_9 Fe_10 B_10 B_9 Fe_8 B_8 B_7 B_6 B_5 \
         Fe_4 B_4 Fe_3 B_3 B_2 Fe_0 Fe_1 B_1 B_0",
    ),
    (
        100,
        339.0,
        99,
        "CF_0 Fe_1 Fe_2 CF_3 Fe_4 Fe_5 Fe_6 Fe_7 CF_8 Fn_9 Fe_10 Fe_11 L B_11 B_10 Fe_8 Fe_9 B_9 B_8 B_7 B_6 B_5 B_4 Fe_3 \
         B_3 B_2 B_1 Fe_0 B_0",
    ),
    (
        128,
        325.0,
        122,
        "Fe_0 Fe_1 Fe_2 Fe_3 Fe_4 Fe_5 Fe_6 Fe_7 Fe_8 CF_9 Fe_10 Fe_11 L B_11 B_10 Fe_9 B_9 B_8 B_7 B_6 B_5 B_4 B_3 B_2 \
         B_1 B_0",
    ),
];

fn chain() -> Chain {
    let stages = (0..12).map(|i| Stage {
        forward_s: Seconds(FORWARD[i] as f64),
        backward_s: Seconds(BACKWARD[i] as f64),
        output_bytes: Bytes(ACTIVATION[i + 1]),
        saved_bytes: Bytes(SAVED[i]),
        forward_temp_bytes: Bytes(FORWARD_TEMP[i]),
        tracked_temp_bytes: Bytes(FORWARD_TEMP[i]),
        backward_temp_bytes: Bytes(BACKWARD_TEMP[i]),
        ..Stage::default()
    });
    Chain {
        input_bytes: Bytes(ACTIVATION[0]),
        input_grad: true,
        fixed_bytes: Bytes(0),
        stages: stages.collect(),
        loss: LossCost {
            backward_temp_bytes: Bytes(BACKWARD_TEMP[12]),
            ..LossCost::default()
        },
        optimizer: OptimizerCost::default(),
    }
}

#[test]
fn optimal_schedules_of_another_program_run_as_they_are() {
    let chain = chain();
    for (limit, makespan, peak, operations) in OPTIMAL {
        let golden: Vec<Action> = operations
            .split(' ')
            .map(|operation| {
                let (kind, stage) = operation.split_once('_').unwrap_or((operation, "0"));
                let stage = stage.parse().expect("a number");
                match kind {
                    "CF" => Action::ForwardKeep(StageId(stage)),
                    "Fn" => Action::Forward(StageId(stage)),
                    "Fe" => Action::tracked(stage),
                    "B" => Action::Backward(StageId(stage)),
                    _ => Action::Loss,
                }
            })
            .collect();
        let schedule = Schedule::new(12, golden.clone()).expect("a valid schedule");
        assert_eq!(trace(&schedule).0, golden, "in {limit}");

        let cost = simulate(&chain, &schedule).expect("fits the chain");
        assert_eq!((cost.time, cost.peak), (Seconds(makespan), Bytes(peak)));
        let request = PlanRequest {
            planner: PlannerKind::Optimal,
            budget: Some(Bytes(limit)),
            ..PlanRequest::default()
        };
        // Another schedule may take the same time.
        let ours = plan(&chain, &request).expect("feasible");
        assert_eq!(ours.step, Seconds(makespan), "in {limit}");
        assert_eq!(trace(&ours.schedule).0, without_optimizer(&ours.schedule));
    }
}
