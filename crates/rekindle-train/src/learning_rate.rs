//! The learning rate of each step.

use std::f64::consts::PI;

use super::settings::{RateSchedule, TrainSettings};

impl TrainSettings {
    /// The learning rate of step `step`, from 0.
    ///
    /// With a warm-up of w steps, step i < w has `rate (i + 1) / w`; after it the rate follows
    /// `final + (rate - final) (1 + cos(pi p)) / 2` (Loshchilov & Hutter 2017, eq. 5, one period), where p goes from
    /// 0 at the first step after the warm-up to 1 at the last step.
    #[must_use]
    pub fn rate_at(&self, step: usize) -> f64 {
        let (rate, warmup) = (self.rate(), self.warmup());
        if self.schedule == RateSchedule::Constant {
            return rate;
        }
        if step < warmup {
            return rate * (step + 1) as f64 / warmup as f64;
        }
        let span = self.steps.saturating_sub(warmup + 1).max(1);
        let progress = ((step - warmup) as f64 / span as f64).min(1.0);
        self.final_rate + (rate - self.final_rate) * (1.0 + (PI * progress).cos()) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are sums and products of a few numbers near 1.
    const ROUNDING: f64 = 1e-12;

    #[test]
    fn warms_up_linearly_then_falls_along_half_a_cosine() {
        let settings = TrainSettings {
            steps: 15,
            learning_rate: Some(1.0),
            schedule: RateSchedule::WarmupCosine,
            warmup_steps: Some(4),
            final_rate: 0.2,
            ..TrainSettings::default()
        };
        let close = |step: usize, expected: f64| {
            let rate = settings.rate_at(step);
            assert!((rate - expected).abs() < ROUNDING, "step {step}: {rate}");
        };
        close(0, 0.25);
        close(3, 1.0);
        close(4, 1.0);
        // Halfway between steps 4 and 14 the cosine is zero: the mean of both rates.
        close(9, 0.6);
        close(14, 0.2);
        close(99, 0.2);
    }
}
