//! Notices memory in use that grows with the steps.
//!
//! What is made once, however late, raises the bytes in use once; buffers that a device frees some steps later than others
//! raise them for a few steps. A leak raises them in every step: then the least in use within ten steps is higher than ever
//! before, again and again.

use rekindle_plan::Bytes;

use crate::record::MemoryGrowth;

/// Steps after which everything that is made once is there, and steps of which the least in use is taken.
const STEPS: usize = 10;

/// Number of times, one after the other, that the least must be higher than ever before.
const RISES: usize = 5;

/// Growth that is ignored: tables and scratch memory of threads vary by this much.
const TOLERANCE: Bytes = Bytes(64 << 10);

/// Watches what is in use after each step.
#[derive(Default)]
pub(super) struct GrowthWatch {
    /// The steps since the last comparison: their number, and the least in use after one of them.
    steps: usize,
    least: Bytes,
    /// The first comparison's step, and the bytes in use after it.
    first: Option<(usize, Bytes)>,
    /// The highest of all least bytes so far.
    highest: Bytes,
    rises: usize,
    /// What was noticed, if anything.
    pub(super) found: Option<MemoryGrowth>,
}

impl GrowthWatch {
    /// Records the bytes in use after a step. Returns growth when it is noticed, once.
    pub(super) fn stepped(&mut self, step: usize, in_use: Bytes) -> Option<MemoryGrowth> {
        self.least = match self.steps {
            0 => in_use,
            _ => self.least.min(in_use),
        };
        self.steps = (self.steps + 1) % STEPS;
        if self.steps > 0 || self.found.is_some() {
            return None;
        }
        let Some((first_step, first_bytes)) = self.first else {
            (self.first, self.highest) = (Some((step, in_use)), in_use);
            return None;
        };
        self.rises = match self.least > self.highest {
            true => self.rises + 1,
            false => 0,
        };
        self.highest = self.highest.max(self.least);
        let grows = self.rises >= RISES && self.least > first_bytes + TOLERANCE;
        self.found = grows.then_some(MemoryGrowth {
            first_step,
            first_bytes,
            last_step: step,
            last_bytes: in_use,
        });
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: u64 = 1 << 20;

    /// What is found in 200 steps, of which each leaves so many bytes in use besides those that are always there.
    fn found(beside: impl Fn(u64) -> u64) -> Option<MemoryGrowth> {
        let mut watch = GrowthWatch::default();
        let reported: Vec<MemoryGrowth> = (1..=200)
            .filter_map(|step| watch.stepped(step as usize, Bytes(HELD + beside(step))))
            .collect();
        assert!(reported.len() <= 1, "reported once: {reported:?}");
        assert_eq!(watch.found, reported.first().copied());
        watch.found
    }

    /// Some buffers are freed one step later than others: 1, 2, 0, 1, ..
    fn wave(step: u64) -> u64 {
        step % 3
    }

    #[test]
    fn a_leak_is_noticed_when_it_has_risen_five_times() {
        let growth = |first: u64, (last_step, last): (usize, u64)| {
            Some(MemoryGrowth {
                first_step: STEPS,
                first_bytes: Bytes(HELD + first),
                last_step,
                last_bytes: Bytes(HELD + last),
            })
        };
        let leak = found(|step| 10_000 * step + 1_000 * wave(step));
        assert_eq!(leak, growth(101_000, (60, 600_000)));
        // One that begins after step 29 is higher in steps 31 to 40 for the first time.
        let late = found(|step| 10_000 * step.saturating_sub(29) + 1_000 * wave(step));
        assert_eq!(late, growth(1_000, (80, 512_000)));
        // 1,000 bytes a step pass the tolerance in the ten steps after step 80.
        let slow = found(|step| 1_000 * step);
        assert_eq!(slow, growth(10_000, (90, 90_000)));
    }

    #[test]
    fn waves_and_what_is_made_once_or_shrinks_are_no_leak() {
        assert_eq!(found(|_| 0), None);
        assert_eq!(found(|step| 100_000 * wave(step)), None);
        // Made once, however late, and before all is there.
        for once in [5, 20, 150] {
            assert_eq!(found(|step| u64::from(step >= once) << 20), None);
        }
        // Evaluations and snapshots that keep something, again and again, until there is no more to keep.
        let kept = |step: u64| [20, 30, 40, 50].into_iter().filter(|&at| step > at).count();
        assert_eq!(found(|step| (kept(step) as u64) << 20), None);
        assert_eq!(found(|step| 1_000_000 - 1_000 * step), None);
        // Less than tables and scratch memory vary.
        assert_eq!(found(|step| 300 * step), None);
    }
}
