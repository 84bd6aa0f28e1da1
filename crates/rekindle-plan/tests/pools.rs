//! The pools of a device, against cases worked by hand, a slower model of pages, and the simulator.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use proptest::prelude::*;
use rekindle_plan::pools::{Buffer, PoolDevice, PoolError, PoolMode, Pools, choose, reserved};
use rekindle_plan::{
    Action, Bytes, Chain, LossCost, OptimizerCost, Schedule, Stage, StageId, Violation, planner,
    simulate, smallest_peak,
};

mod support;
use support::{Shape, cases, random_chain};

const MIB: u64 = 1 << 20;

/// Pages of 8, 32 and 128 MiB.
const DEVICE: PoolDevice = PoolDevice {
    max_page_bytes: Bytes(128 * MIB),
    alignment: Bytes(256),
};

/// A device without alignment, where the bytes in use are the simulator's.
const UNALIGNED: PoolDevice = PoolDevice {
    max_page_bytes: Bytes(128 * MIB),
    alignment: Bytes(1),
};

/// Two stages of sizes that an alignment of 4 takes to 4, 8 and 20.
fn two_stages() -> Chain {
    Chain {
        input_bytes: Bytes(3),
        input_grad: false,
        fixed_bytes: Bytes(10),
        stages: vec![
            Stage {
                output_bytes: Bytes(5),
                saved_bytes: Bytes(11),
                forward_temp_bytes: Bytes(2),
                tracked_temp_bytes: Bytes(2),
                backward_temp_bytes: Bytes(3),
                param_bytes: Bytes(6),
                grad_bytes: Bytes(6),
                ..Stage::default()
            },
            Stage {
                output_bytes: Bytes(4),
                saved_bytes: Bytes(9),
                ..Stage::default()
            },
        ],
        loss: LossCost {
            backward_temp_bytes: Bytes(1),
            ..LossCost::default()
        },
        optimizer: OptimizerCost {
            temp_bytes: Bytes(20),
            state_bytes: Bytes(12),
            ..OptimizerCost::default()
        },
    }
}

/// Stage 0 is recomputed.
fn halves() -> Schedule {
    let actions = vec![
        Action::Forward(StageId(0)),
        Action::tracked(1),
        Action::Loss,
        Action::Backward(StageId(1)),
        Action::tracked(0),
        Action::Backward(StageId(0)),
        Action::Optimize,
    ];
    Schedule::new(2, actions).unwrap()
}

fn device(max_page: u64) -> PoolDevice {
    PoolDevice {
        max_page_bytes: Bytes(max_page),
        alignment: Bytes(4),
    }
}

/// Two steps, of which the second takes nothing more than the first left.
fn twice(first: [u64; 7]) -> Vec<Bytes> {
    let second = [first[6]; 7];
    first.into_iter().chain(second).map(Bytes).collect()
}

// Held, aligned, as (of 4, of 8), with the most so far in brackets where it grows:
// before       parameters 8, other fixed 4, input 4, state 12 = 2 x 6 as 8 + 8      (2, 3)
// forward 0    temp 2 as 4, a_1 8                        during (3, 4), after (2, 4)   [3 x 4 + 4 x 8 = 44]
// tracked 1    9 = 4 + 5: the output, 4 and a rest of 1  during (5, 4), after (5, 4)   [5, 4: 52]
// loss         temp 1 as 4, y_2 4                        during (7, 4), after (6, 4)   [7, 4: 60]
// backward 1   y_1 8; frees y_2, X_2, a_1                during (6, 5), after (2, 4)   [7, 5: 68]
// tracked 0    temp 4; 11 = 5 + 6: the output, 5, rest 1 during (4, 6), after (3, 6)   [7, 6: 76]
// backward 0   temp 3 as 4, g_0 8; frees y_1, X_1        during (4, 7), after (2, 4)   [7, 7: 84]
// optimize     temp 20                                                                 [and one of 20: 104]
// Most in use at once: backward 0, 4 x 4 + 7 x 8 = 72.
#[test]
fn exact_sizes_take_the_most_of_each_size() {
    let used = reserved(&two_stages(), &halves(), PoolMode::ExactSizes, device(40)).unwrap();
    assert_eq!(used.at_each_action, twice([44, 52, 60, 68, 76, 84, 104]));
    assert_eq!(used.peak_reserved, Bytes(104));
    assert_eq!(used.peak_in_use, Bytes(72));
}

// A largest page of 40 bytes is below 32 MiB, so all pages have 40 bytes. The parameters are a long-lived buffer of 8, so
// all of 8 have their exact size: 4, 4, 4, 5, 6, 7, 7 of them. At most seven of 4 are held, 28 bytes of one page; the
// optimizer's 20 fit behind the two that stay.
#[test]
fn pages_take_what_the_parameters_sizes_do_not() {
    let used = reserved(&two_stages(), &halves(), PoolMode::Pages, device(40)).unwrap();
    assert_eq!(used.at_each_action, twice([72, 72, 72, 80, 88, 96, 96]));
    assert_eq!(used.peak_in_use, Bytes(72));
}

#[test]
fn the_mode_that_takes_less_is_chosen() {
    let choice = choose(&two_stages(), &halves(), device(40)).unwrap();
    assert_eq!(
        choice.reason(),
        "pages reserve 96 B here, exact sizes 104 B"
    );
    let choice = choose(&two_stages(), &halves(), device(48)).unwrap();
    assert_eq!(choice.mode, PoolMode::ExactSizes, "both take 104");
    assert_eq!(choice.pages, Some(Bytes(56 + 48)));
    // No page holds the optimizer's 20.
    let choice = choose(&two_stages(), &halves(), device(16)).unwrap();
    assert_eq!((choice.mode, choice.pages), (PoolMode::ExactSizes, None));
}

#[test]
fn a_schedule_that_does_not_fit_the_chain_is_refused() {
    let other = planner::none(3).unwrap();
    let expected = Err(PoolError::Violation(Violation::OtherLength {
        schedule: 3,
        chain: 2,
    }));
    assert_eq!(choose(&two_stages(), &other, DEVICE), expected);
}

#[test]
fn an_alternative_that_the_chain_lacks_is_refused() {
    let mut actions = halves().actions().to_vec();
    actions[1] = Action::ForwardTracked {
        stage: StageId(1),
        alternative: 1,
    };
    let schedule = Schedule::new(2, actions).unwrap();
    let expected = simulate(&two_stages(), &schedule).unwrap_err();
    assert_eq!(
        choose(&two_stages(), &schedule, DEVICE),
        Err(PoolError::Violation(expected))
    );
}

#[test]
fn modes_are_written_in_snake_case() {
    let text = serde_json::to_string(&PoolMode::ALL).unwrap();
    assert_eq!(text, r#"["exact_sizes","pages"]"#);
    assert_eq!(PoolMode::ExactSizes.to_string(), "exact sizes");
}

/// The pages of [`DEVICE`], one flag per MiB, with its rules written out as a table.
#[derive(Default)]
struct Cells {
    /// The size of each page's pool, and which MiB of the page are held.
    pages: Vec<(usize, Vec<bool>)>,
}

impl Cells {
    /// 8 MiB: up to a quarter of it, or above 80 %. 32 MiB: up to half of it, or above 80 %. 128 MiB: the others.
    fn page_of(size: usize) -> usize {
        match size {
            1 | 2 | 7 | 8 => 8,
            3..=6 | 9..=16 | 26..=32 => 32,
            _ => 128,
        }
    }

    fn take(&mut self, size: usize) -> (usize, usize) {
        let page_size = Cells::page_of(size);
        for (page, (of, cells)) in self.pages.iter_mut().enumerate() {
            if *of != page_size {
                continue;
            }
            let free = |start: &usize| cells[*start..*start + size].iter().all(|held| !held);
            if let Some(start) = (0..=page_size - size).find(free) {
                cells[start..start + size].fill(true);
                return (page, start);
            }
        }
        self.pages.push((page_size, vec![false; page_size]));
        self.take(size)
    }

    fn give_back(&mut self, (page, start): (usize, usize), size: usize) {
        self.pages[page].1[start..start + size].fill(false);
    }

    fn reserved(&self) -> Bytes {
        let pages: u64 = self.pages.iter().map(|&(size, _)| size as u64).sum();
        Bytes(pages * MIB)
    }
}

/// Sizes in MiB, many small ones among them.
fn megabytes() -> impl Strategy<Value = usize> {
    prop_oneof![1_usize..=4, 1_usize..=34, 1_usize..=128]
}

/// A random chain whose parameters are as large as their gradients, and its schedules.
fn chain_and_schedules() -> impl Strategy<Value = (Chain, Vec<Schedule>)> {
    let shape = Shape {
        stages: 8,
        unit: 1_000_003,
        grads: true,
        alternatives: false,
        tracked_temps: true,
    };
    random_chain(shape).prop_map(|mut chain| {
        for stage in &mut chain.stages {
            stage.param_bytes = stage.grad_bytes;
            chain.fixed_bytes += stage.param_bytes;
        }
        let schedules = schedules(&chain);
        (chain, schedules)
    })
}

/// Everything kept, two segments, and the nested schedule of the smallest peak; each with and without an optimizer.
fn schedules(chain: &Chain) -> Vec<Schedule> {
    let stages = chain.stages.len();
    let planned = [
        planner::none(stages).unwrap(),
        planner::uniform(stages, 2.min(stages)).unwrap(),
        smallest_peak(chain).unwrap().1,
    ];
    let mut schedules = Vec::new();
    for schedule in planned {
        let mut actions = schedule.actions().to_vec();
        actions.retain(|&action| action != Action::Optimize);
        schedules.push(Schedule::new(stages, actions.clone()).unwrap());
        actions.push(Action::Optimize);
        schedules.push(Schedule::new(stages, actions).unwrap());
    }
    schedules
}

/// Every buffer that the chain makes has one size, or none.
fn of_one_size(mut chain: Chain, size: Bytes) -> Chain {
    let one = |bytes: Bytes| {
        if bytes > Bytes(2_000_000) {
            size
        } else {
            Bytes::ZERO
        }
    };
    chain.input_bytes = one(chain.input_bytes);
    chain.fixed_bytes = one(chain.fixed_bytes);
    chain.optimizer.state_bytes = Bytes::ZERO;
    for stage in &mut chain.stages {
        stage.saved_bytes = Bytes(size.0 * (1 + stage.saved_bytes.0 / 2_000_000));
        stage.output_bytes = size;
        stage.forward_temp_bytes = one(stage.forward_temp_bytes);
        stage.tracked_temp_bytes = one(stage.tracked_temp_bytes);
        stage.backward_temp_bytes = one(stage.backward_temp_bytes);
        stage.grad_bytes = one(stage.grad_bytes);
        stage.param_bytes = stage.grad_bytes;
        chain.fixed_bytes += stage.param_bytes;
        // Two moments of each parameter.
        chain.optimizer.state_bytes += stage.grad_bytes + stage.grad_bytes;
    }
    chain.loss.forward_temp_bytes = one(chain.loss.forward_temp_bytes);
    chain.loss.backward_temp_bytes = one(chain.loss.backward_temp_bytes);
    chain.optimizer.temp_bytes = one(chain.optimizer.temp_bytes);
    chain
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn pages_are_those_of_a_slower_model(
        steps in proptest::collection::vec((megabytes(), any::<bool>(), any::<prop::sample::Index>()), 1..120),
    ) {
        let mut pools = Pools::new(PoolMode::Pages, DEVICE);
        let mut cells = Cells::default();
        let mut held: Vec<(Buffer, (usize, usize), usize)> = Vec::new();
        for (size, frees, which) in steps {
            if frees && !held.is_empty() {
                let (buffer, spot, size) = held.swap_remove(which.index(held.len()));
                pools.free(buffer);
                cells.give_back(spot, size);
            } else {
                let buffer = pools.reserve(Bytes(size as u64 * MIB)).unwrap();
                held.push((buffer, cells.take(size), size));
            }
            prop_assert_eq!(pools.reserved(), cells.reserved());
        }
    }

    #[test]
    fn what_is_taken_holds_the_simulated_peak_and_never_falls((chain, schedules) in chain_and_schedules()) {
        for (schedule, mode) in schedules.iter().flat_map(|schedule| PoolMode::ALL.map(|mode| (schedule, mode))) {
            let used = reserved(&chain, schedule, mode, DEVICE).unwrap();
            let run = simulate(&chain, schedule).unwrap();
            for (taken, moment) in used.at_each_action.iter().zip(&run.moments) {
                prop_assert!(*taken >= moment.peak, "{mode}: {} < {}", taken.0, moment.peak.0);
            }
            prop_assert!(used.at_each_action.is_sorted());
            prop_assert!(used.peak_in_use <= used.peak_reserved);
            prop_assert_eq!(used.at_each_action.last(), Some(&used.peak_reserved));
        }
    }

    // The first room is found in the same pages again, since the pages that came later are searched last.
    #[test]
    fn a_second_step_takes_nothing_more((chain, schedules) in chain_and_schedules()) {
        for (schedule, mode) in schedules.iter().flat_map(|schedule| PoolMode::ALL.map(|mode| (schedule, mode))) {
            let used = reserved(&chain, schedule, mode, DEVICE).unwrap();
            let first = used.at_each_action[schedule.actions().len() - 1];
            prop_assert_eq!(first, used.peak_reserved);
        }
    }

    #[test]
    fn what_is_in_use_is_what_the_simulator_counts((chain, schedules) in chain_and_schedules()) {
        for schedule in &schedules {
            let run = simulate(&chain, schedule).unwrap();
            for mode in PoolMode::ALL {
                let used = reserved(&chain, schedule, mode, UNALIGNED).unwrap();
                prop_assert_eq!(used.peak_in_use, run.peak);
            }
        }
    }

    #[test]
    fn exact_sizes_take_no_more_than_is_in_use_where_all_sizes_are_one(
        (chain, _) in chain_and_schedules(),
        size in 1_u64..5_000_000,
    ) {
        let chain = of_one_size(chain, Bytes(size));
        for schedule in schedules(&chain) {
            let used = reserved(&chain, &schedule, PoolMode::ExactSizes, DEVICE).unwrap();
            let run = simulate(&chain, &schedule).unwrap();
            let buffers = run.peak.0 / size;
            prop_assert_eq!(used.peak_in_use, Bytes(buffers * size.next_multiple_of(256)));
            prop_assert_eq!(used.peak_reserved, used.peak_in_use);
        }
    }
}
