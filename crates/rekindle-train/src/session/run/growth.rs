//! Whether memory in use grows with the steps, and which phase it stays behind from.

use rekindle_plan::Bytes;

use crate::record::MemoryGrowth;
use rekindle::meter::{Leftovers, Meter};

/// Growth that is worth a look: tables and threads' scratch come and go by so much.
const NOTICED: Bytes = Bytes(64 << 10);

/// Steps of a look at a device's pools, whose queues free some buffers later than others.
const POOLED_STEPS: usize = 16;

/// Watches what is in use after each step.
pub(super) struct GrowthWatch {
    /// Steps until all is there that is made once.
    settles: usize,
    /// What is in use then, and beyond what a look is due.
    due: Option<(Bytes, Bytes)>,
    look: Option<Look>,
    /// What the last look found, if anything.
    pub(super) found: Option<MemoryGrowth>,
}

/// A look at what steps leave behind.
enum Look {
    /// Of the process's own memory, by phase.
    Blocks(Leftovers),
    /// Of a device's pools, whose buffers are not told apart: what was in use after each step.
    Pools(Vec<Bytes>),
}

impl Look {
    /// A step is over: after the last, what was found.
    fn stepped(&mut self, step: usize, in_use: Bytes) -> Option<Option<MemoryGrowth>> {
        match self {
            Self::Blocks(leftovers) => {
                let left = leftovers.stepped()?;
                Some((!left.is_empty()).then_some(MemoryGrowth {
                    last_step: step,
                    device_step_bytes: None,
                    left,
                }))
            }
            Self::Pools(seen) => {
                seen.push(in_use);
                (seen.len() == POOLED_STEPS).then(|| {
                    pools_grow(seen).map(|step_bytes| MemoryGrowth {
                        last_step: step,
                        device_step_bytes: Some(step_bytes),
                        left: Vec::new(),
                    })
                })
            }
        }
    }
}

/// What each step adds, if more is in use after each of the later half of the steps than after any of the earlier.
fn pools_grow(seen: &[Bytes]) -> Option<Bytes> {
    let (earlier, later) = seen.split_at(seen.len() / 2);
    let (most, least) = (earlier.iter().max()?, later.iter().min()?);
    let grown = *later.last()? - *earlier.first()?;
    (least > most).then(|| Bytes(grown.0 / (seen.len() - 1) as u64))
}

impl GrowthWatch {
    /// Takes what is in use after so many steps for what should be in use after all later ones.
    pub(super) fn new(settles: usize) -> Self {
        Self {
            settles,
            due: None,
            look: None,
            found: None,
        }
    }

    /// A step is over. Whether a look was finished that found something.
    pub(super) fn stepped(&mut self, step: usize, meter: &dyn Meter) -> bool {
        let memory = meter.read();
        let in_use = memory.in_use_bytes;
        if let Some(look) = &mut self.look {
            let Some(found) = look.stepped(step, in_use) else {
                return false;
            };
            self.look = None;
            self.found = found;
            return self.found.is_some();
        }
        match self.due {
            None if self.settles > 1 => self.settles -= 1,
            None => self.due = Some((in_use, in_use + NOTICED)),
            Some((settled, due)) if in_use > due => {
                self.due = Some((settled, in_use + (in_use - settled)));
                self.look = match memory.reserved_bytes {
                    Some(_) => Some(Look::Pools(Vec::with_capacity(POOLED_STEPS))),
                    None => Leftovers::start().ok().map(Look::Blocks),
                };
            }
            Some(_) => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use rekindle::meter::{MemoryReading, PeakMemory};

    /// Pools in which so much is in use.
    struct Pools(AtomicU64);

    impl Meter for Pools {
        fn read(&self) -> MemoryReading {
            let in_use = Bytes(self.0.load(Relaxed));
            MemoryReading {
                in_use_bytes: in_use,
                reserved_bytes: Some(in_use),
                ..MemoryReading::default()
            }
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }
    }

    /// What is found in 60 steps, after which so much is in use.
    fn found(in_use: impl Fn(u64) -> u64) -> Option<MemoryGrowth> {
        let pools = Pools(AtomicU64::new(0));
        let mut watch = GrowthWatch::new(4);
        for step in 1..=60 {
            pools.0.store(in_use(step), Relaxed);
            watch.stepped(step as usize, &pools);
        }
        watch.found
    }

    #[test]
    fn pools_that_grow_are_told_by_bytes_a_step() {
        const BASE: u64 = 1 << 20;
        const LEAK: u64 = 10_000;
        // Some buffers are freed one step later than others.
        let waves = |step: u64| step % 3 * 1_000;
        let grown = found(|step| BASE + step * LEAK + waves(step)).expect("growth");
        let bytes = grown.device_step_bytes.expect("pools").0;
        assert!(bytes.abs_diff(LEAK) < 200, "{bytes}");
        assert_eq!(grown.left, []);
        assert_eq!(
            grown.to_string(),
            format!(
                "up to step {} each step leaves {} more of the device's memory in use",
                grown.last_step,
                Bytes(bytes)
            )
        );
        // Waves, and what is made once, however late.
        assert_eq!(found(|step| BASE + waves(step) * 100), None);
        assert_eq!(found(|step| BASE + u64::from(step > 20) * (1 << 20)), None);
    }
}
