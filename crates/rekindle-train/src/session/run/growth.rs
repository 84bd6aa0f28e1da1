//! Detects growth of the memory in use over the steps, and the phase that causes it.
//!
//! The process's allocator reports which phase allocated the remaining blocks. A GPU's pools only give the change of
//! the bytes in use by phase. The surplus of a phase is its change beyond the expected one: the change in the steps
//! before the watch began, or, if memory was already growing then, the simulator's prediction. If the surpluses do not
//! match the growth, no phase is named: the simulator may be wrong by some kilobytes.

use rekindle_plan::Bytes;

use crate::{
    record::MemoryGrowth,
    timeline::{Pass, Timeline},
};
use rekindle::meter::{Leftover, Leftovers, Meter, Phase, PhaseChanges};

/// Minimum growth that is investigated: tables and scratch memory of threads vary by this much.
const NOTICED: Bytes = Bytes(64 << 10);

/// Number of steps in an observation of a device's pools, whose queues free some buffers later than others.
const POOLED_STEPS: usize = 16;

/// 1/SEEN is the minimum share of the growth for which a phase is named, and the share that all phases together may
/// miss.
const SEEN: i64 = 4;

/// Watches what is in use after each step.
pub(super) struct GrowthWatch {
    /// Number of steps after which all one-time allocations are made.
    settles: usize,
    /// Bytes in use after these steps, and the bytes above which an observation starts.
    due: Option<(Bytes, Bytes)>,
    /// What each phase changed in the last of these steps.
    settled: PhaseChanges,
    /// What each phase of a step should change, as simulated.
    pub(super) predicted: Option<PhaseChanges>,
    look: Option<Look>,
    /// The result of the last observation, if any.
    pub(super) found: Option<MemoryGrowth>,
}

/// An observation of memory that steps leave behind.
enum Look {
    /// Of the process's own memory.
    Blocks(Leftovers),
    /// Of a device's pools: what was in use after each step, and what phases changed from the first to the last.
    Pools(Vec<Bytes>, PhaseChanges),
}

/// Bytes that each step adds, if the bytes in use after every step of the later half exceed those after all earlier
/// ones.
fn pools_grow(seen: &[Bytes]) -> Option<Bytes> {
    let (earlier, later) = seen.split_at(seen.len() / 2);
    let (most, least) = (earlier.iter().max()?, later.iter().min()?);
    let grown = *later.last()? - *earlier.first()?;
    (least > most).then(|| Bytes(grown.0 / (seen.len() - 1) as u64))
}

/// The surplus of each phase, largest first, if the surpluses match the growth per step.
fn surplus(changes: &PhaseChanges, expected: &PhaseChanges, step: Bytes) -> Option<Vec<Leftover>> {
    let step = step.0 as i64;
    let surplus = PhaseChanges::KINDS.map(|phase| (phase, changes.of(phase) - expected.of(phase)));
    let missing: i64 = surplus.iter().map(|(_, bytes)| bytes.min(&0)).sum();
    let all: i64 = surplus.iter().map(|(_, bytes)| bytes).sum();
    let left = surplus.iter().filter(|(_, bytes)| *bytes >= step / SEEN);
    let mut left: Vec<_> = left
        .map(|&(phase, bytes)| Leftover {
            phase,
            step_bytes: Bytes(bytes as u64),
        })
        .collect();
    left.sort_by_key(|left| std::cmp::Reverse(left.step_bytes));
    (missing.abs().max((all - step).abs()) <= step / SEEN).then_some(left)
}

/// What each phase of a step on so many parts of a batch should change, where a part takes so many bytes.
pub(super) fn predicted(timeline: &Timeline, parts: i64, batch: Bytes) -> Option<PhaseChanges> {
    let before = timeline.actions.last()?.predicted_after_bytes.0 as i64;
    let mut changes = PhaseChanges::default();
    let (mut phase, mut held) = (Phase::Forward, before);
    for action in &timeline.actions {
        phase = match (action.pass, phase) {
            (Pass::Loss, Phase::Forward) => Phase::Loss,
            (Pass::Forward | Pass::Loss | Pass::Offload | Pass::Fetch, phase) => phase,
            (Pass::Recompute | Pass::Backward, _) => Phase::Backward,
            (Pass::Optimizer, _) => break,
        };
        let after = action.predicted_after_bytes.0 as i64;
        changes.add(Some(phase), parts * (after - held));
        held = after;
    }
    // A part is freed after its backward pass, and so are gradients that are added to those of an earlier part.
    let (gradients, batch) = (held - before, parts * batch.0 as i64);
    changes.add(Some(Phase::ZeroGrad), batch);
    changes.add(None, -batch - (parts - 1) * gradients);
    changes.add(Some(Phase::Optimizer), -gradients);
    Some(changes)
}

impl GrowthWatch {
    /// Uses the bytes in use after `settles` steps as the expected value for all later steps.
    pub(super) fn new(settles: usize) -> Self {
        Self {
            settles,
            due: None,
            settled: PhaseChanges::default(),
            predicted: None,
            look: None,
            found: None,
        }
    }

    /// Records the end of a step. Returns whether an observation has ended with a result.
    pub(super) fn stepped(&mut self, step: usize, meter: &dyn Meter) -> bool {
        let in_use = meter.read().in_use_bytes;
        let changes = meter.take_changes();
        if self.look.is_some() {
            let Some((step_bytes, left)) = self.looked(in_use, changes.unwrap_or_default()) else {
                return false;
            };
            self.look = None;
            self.found = (step_bytes > Bytes::ZERO).then_some(MemoryGrowth {
                last_step: step,
                step_bytes,
                left,
            });
            return self.found.is_some();
        }
        match self.due {
            None if self.settles > 1 => self.settles -= 1,
            None => {
                self.due = Some((in_use, in_use + NOTICED));
                self.settled = changes.unwrap_or_default();
            }
            Some((settled, due)) if in_use > due => {
                self.due = Some((settled, in_use + (in_use - settled)));
                self.look = match changes {
                    Some(_) => Some(Look::Pools(
                        Vec::with_capacity(POOLED_STEPS),
                        PhaseChanges::default(),
                    )),
                    None => Leftovers::start().ok().map(Look::Blocks),
                };
            }
            Some(_) => {}
        }
        false
    }

    /// Adds a step to an observation. After the last one, returns what each step adds, by phase.
    fn looked(&mut self, in_use: Bytes, changes: PhaseChanges) -> Option<(Bytes, Vec<Leftover>)> {
        match self.look.as_mut()? {
            Look::Blocks(leftovers) => {
                let left = leftovers.stepped()?;
                Some((left.iter().map(|left| left.step_bytes).sum(), left))
            }
            Look::Pools(seen, all) => {
                let steps = seen.len() as i64;
                seen.push(in_use);
                if steps > 0 {
                    for phase in PhaseChanges::KINDS {
                        all.add(phase, changes.of(phase));
                    }
                }
                if seen.len() < POOLED_STEPS {
                    return None;
                }
                let step_bytes = pools_grow(seen).unwrap_or_default();
                let mut mean = PhaseChanges::default();
                for phase in PhaseChanges::KINDS {
                    mean.add(phase, all.of(phase) / steps);
                }
                let expected = [Some(self.settled), self.predicted];
                let left = expected
                    .iter()
                    .flatten()
                    .find_map(|expected| surplus(&mean, expected, step_bytes));
                Some((step_bytes, left.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rekindle_plan::{Action, Parts, Seconds, StageId};

    use super::*;
    use crate::timeline::TimedAction;
    use rekindle::meter::{MemoryReading, PeakMemory};

    /// Pools in which so much is in use, and what the last step's phases changed.
    struct Pools(Mutex<(Bytes, PhaseChanges)>);

    impl Meter for Pools {
        fn read(&self) -> MemoryReading {
            MemoryReading {
                in_use_bytes: self.0.lock().expect("one thread").0,
                ..MemoryReading::default()
            }
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }

        fn take_changes(&self) -> Option<PhaseChanges> {
            Some(std::mem::take(&mut self.0.lock().expect("one thread").1))
        }
    }

    const LEAK: i64 = 10_000;

    /// What a step changes that leaks nothing.
    const SOUND: [(Option<Phase>, i64); 5] = [
        (Some(Phase::ZeroGrad), 500),
        (Some(Phase::Forward), 3_000_000),
        (Some(Phase::Loss), 20_000),
        (Some(Phase::Backward), -2_600_000),
        (Some(Phase::Optimizer), -420_500),
    ];

    fn changes(all: &[(Option<Phase>, i64)]) -> PhaseChanges {
        let mut changes = PhaseChanges::default();
        for (phase, bytes) in all {
            changes.add(*phase, *bytes);
        }
        changes
    }

    /// What is found in 60 steps, each of which changes so much beyond [`SOUND`], by a simulator that errs by so much.
    fn found(
        error: i64,
        beyond: impl Fn(i64) -> Vec<(Option<Phase>, i64)>,
    ) -> Option<MemoryGrowth> {
        let pools = Pools(Mutex::new((Bytes(1 << 20), PhaseChanges::default())));
        let mut watch = GrowthWatch::new(4);
        let errors = [
            (Some(Phase::Forward), error),
            (Some(Phase::Backward), -error),
        ];
        watch.predicted = Some(changes(&[&SOUND[..], &errors].concat()));
        for step in 1..=60 {
            let beyond = beyond(step);
            let grown: i64 = beyond.iter().map(|(_, bytes)| bytes).sum();
            {
                let (in_use, last) = &mut *pools.0.lock().expect("one thread");
                *in_use = Bytes(in_use.0.strict_add_signed(grown));
                *last = changes(&[&SOUND[..], &beyond].concat());
            }
            watch.stepped(step as usize, &pools);
        }
        watch.found
    }

    #[test]
    fn pools_that_grow_are_told_by_the_phase_that_changes_more_than_it_should() {
        // Some buffers are freed one step later than others: what is in use goes 0, 1,000, 2,000, 0, ..
        let wave = |step: i64| (None, if step % 3 == 0 { -2_000 } else { 1_000 });
        for phase in PhaseChanges::KINDS {
            for first in [1, 30] {
                let grown = found(1_000, |step| match step < first {
                    true => vec![wave(step)],
                    false => vec![wave(step), (phase, LEAK)],
                });
                let grown = grown.expect("growth");
                let [left] = grown.left[..] else {
                    panic!("{phase:?} from step {first}: {grown:?}");
                };
                assert_eq!(left.phase, phase, "from step {first}");
                for bytes in [left.step_bytes, grown.step_bytes] {
                    assert!(bytes.0.abs_diff(LEAK as u64) <= 1_500, "{grown:?}");
                }
            }
        }
        // Two phases at once.
        let [of, and] = [Some(Phase::Loss), Some(Phase::Optimizer)];
        let grown = found(0, |_| vec![(of, LEAK), (and, 2 * LEAK)]).expect("growth");
        let left = |phase, times| Leftover {
            phase,
            step_bytes: Bytes((times * LEAK) as u64),
        };
        assert_eq!(grown.left, [left(and, 2), left(of, 1)]);
        // Waves, and what is made once, however late.
        assert_eq!(found(0, |step| vec![(None, wave(step).1 * 100)]), None);
        let once = |step| vec![(None, i64::from(step == 20) << 20)];
        assert_eq!(found(0, once), None);
    }

    #[test]
    fn a_simulator_that_errs_by_more_than_the_growth_blames_no_phase() {
        let leak = |first| move |step| vec![(Some(Phase::Loss), LEAK * i64::from(step >= first))];
        let grown = found(LEAK, leak(1)).expect("growth");
        assert_eq!(
            (grown.step_bytes.0, &grown.left[..]),
            (LEAK as u64, &[][..])
        );
        assert_eq!(
            grown.to_string(),
            format!(
                "up to step {} each step leaves behind 9.8 KiB in a phase that is not known",
                grown.last_step
            )
        );
        // It is not asked where the first steps were sound.
        let late = found(LEAK, leak(30)).expect("growth");
        assert_eq!(late.left[0].phase, Some(Phase::Loss));
    }

    /// Two parts of a batch of 100 bytes, which is there from the start: a stage of 40 bytes, a loss of 8, gradients of 30.
    #[test]
    fn a_timeline_tells_what_phases_should_change() {
        let action = |action, pass, after| TimedAction {
            action,
            pass,
            start_s: Seconds::ZERO,
            duration_s: Seconds::ZERO,
            predicted_at_peak: Parts::default(),
            predicted_after_bytes: Bytes(after),
            measured_peak_bytes: Bytes::ZERO,
            measured_after_bytes: Bytes::ZERO,
            reserved_bytes: None,
        };
        let actions = vec![
            action(Action::Forward(StageId(0)), Pass::Forward, 1_040),
            action(Action::Loss, Pass::Loss, 1_048),
            action(Action::Forward(StageId(0)), Pass::Recompute, 1_060),
            action(Action::Loss, Pass::Loss, 1_062),
            action(Action::Backward(StageId(0)), Pass::Backward, 1_030),
            action(Action::Optimize, Pass::Optimizer, 1_000),
        ];
        let timeline = Timeline {
            step: 4,
            beside_buffers_bytes: Bytes::ZERO,
            actions,
            exchanges: Vec::new(),
        };
        let expected = [
            (None, -230),
            (Some(Phase::ZeroGrad), 200),
            (Some(Phase::Forward), 80),
            (Some(Phase::Loss), 16),
            (Some(Phase::Backward), -36),
            (Some(Phase::Optimizer), -30),
        ];
        assert_eq!(
            predicted(&timeline, 2, Bytes(100)),
            Some(changes(&expected))
        );
        assert_eq!(expected.iter().map(|(_, bytes)| bytes).sum::<i64>(), 0);
    }
}
