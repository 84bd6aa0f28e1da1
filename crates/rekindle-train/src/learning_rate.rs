//! The learning rate of each step.

use std::f64::consts::PI;

use super::settings::LearningRate;

impl LearningRate {
    /// Whether a step's rate depends on the number of steps: such a run cannot be extended.
    #[must_use]
    pub fn depends_on_steps(&self) -> bool {
        match self {
            Self::Constant { .. } => false,
            Self::WarmupCosine { .. } => true,
        }
    }

    /// The rate of step `step` (from 0) in a run of `steps` steps.
    ///
    /// With a warm-up of w steps, step i < w has `rate (i + 1) / w`; after it the rate follows
    /// `final + (rate - final) (1 + cos(pi p)) / 2` (Loshchilov & Hutter 2017, eq. 5, one period), where p goes from
    /// 0 at the first step after the warm-up to 1 at the last step.
    #[must_use]
    pub fn at(&self, step: usize, steps: usize) -> f64 {
        match *self {
            Self::Constant { rate } => rate,
            Self::WarmupCosine {
                rate,
                warmup_steps,
                final_rate,
            } => {
                if step < warmup_steps {
                    return rate * (step + 1) as f64 / warmup_steps as f64;
                }
                let span = steps.saturating_sub(warmup_steps + 1).max(1);
                let progress = ((step - warmup_steps) as f64 / span as f64).min(1.0);
                final_rate + (rate - final_rate) * (1.0 + (PI * progress).cos()) / 2.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are sums and products of a few numbers near 1.
    const ROUNDING: f64 = 1e-12;

    #[test]
    fn warms_up_linearly_then_falls_along_half_a_cosine() {
        let schedule = LearningRate::WarmupCosine {
            rate: 1.0,
            warmup_steps: 4,
            final_rate: 0.2,
        };
        let close = |step: usize, expected: f64| {
            let rate = schedule.at(step, 15);
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
