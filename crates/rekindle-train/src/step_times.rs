//! The median step time in bounded memory.

use std::collections::VecDeque;

use rekindle_plan::Seconds;

/// Steps whose times are kept.
const KEPT: usize = 1_000;

/// Times of the last 1,000 steps that count.
#[derive(Debug)]
pub(super) struct StepTimes {
    counted: VecDeque<f64>,
    /// The last one that does not count.
    set_aside: f64,
}

impl StepTimes {
    /// Empty, with all memory allocated in advance.
    pub(super) fn new() -> Self {
        Self {
            counted: VecDeque::with_capacity(KEPT),
            set_aside: 0.0,
        }
    }

    /// Adds the time of a step. A time that does not `count` is used only if there is no other.
    pub(super) fn add(&mut self, time: Seconds, counts: bool) {
        if !counts {
            self.set_aside = time.0;
            return;
        }
        if self.counted.len() == KEPT {
            self.counted.pop_front();
        }
        self.counted.push_back(time.0);
    }

    /// The times that count, the least first.
    fn sorted(&self) -> Vec<f64> {
        let mut times: Vec<f64> = self.counted.iter().copied().collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    }

    /// The least and the most of the middle half of the times that count: a pause of the machine does not widen it.
    pub(super) fn range(&self) -> Option<[Seconds; 2]> {
        let times = self.sorted();
        let quarter = times.len() / 4;
        let [least, most] = [quarter, times.len().checked_sub(1 + quarter)?].map(|at| times[at]);
        Some([Seconds(least), Seconds(most)])
    }

    /// The median of those that count.
    pub(super) fn median(&self) -> Seconds {
        let times = self.sorted();
        Seconds(*times.get(times.len() / 2).unwrap_or(&self.set_aside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_last_thousand_that_count() {
        let mut times = StepTimes::new();
        times.add(Seconds(9.0), false);
        assert_eq!(times.median(), Seconds(9.0));
        for step in 1..=3_001 {
            times.add(Seconds(f64::from(step)), step % 7 != 0);
        }
        let mut counted: Vec<i32> = (1..=3_001).filter(|step| step % 7 != 0).collect();
        let mut last = counted.split_off(counted.len() - KEPT);
        last.sort_unstable();
        assert_eq!(times.median(), Seconds(f64::from(last[KEPT / 2])));
        let ends = [last[KEPT / 4], last[KEPT - 1 - KEPT / 4]].map(|step| Seconds(f64::from(step)));
        assert_eq!(times.range(), Some(ends));
    }
}
