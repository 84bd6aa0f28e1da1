//! The factor by which a loss is multiplied before its backward pass, so that small gradients do not vanish in `f16`.
//!
//! `f16` has no number between 0 and `2^-24`, 6e-8. A loss that is `s` times as large has gradients that are `s` times
//! as large; the optimizer divides them by `s` in `f32` (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). `s`
//! is passed with each batch: if it were a constant in the recording, each change would require a new recording.
//!
//! A dynamic scale works like PyTorch's `GradScaler`: it starts at `2^16`, is halved when a gradient overflows, and
//! doubled after 2,000 steps without overflow. The step that overflowed is skipped. Unlike in `GradScaler`, it does not
//! fall below 1: gradients that still overflow then would do so without a scale, and `on_nonfinite` determines what
//! happens.

use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const FIRST: f64 = 65536.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
const GROWTH_INTERVAL: u32 = 2000;
const FLOOR: f64 = 1.0;

/// What the loss is multiplied by before its backward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected a number above 0, \"auto\", \"dynamic\" or \"none\""
)]
pub enum LossScale {
    /// Dynamic with `f16`, nothing with the other types.
    #[default]
    Auto,
    /// A number that falls where gradients overflow.
    Dynamic,
    /// Nothing.
    None,
    /// This number.
    #[serde(untagged)]
    Fixed(f64),
}

/// The scale of a run's next step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LossScaler {
    dynamic: bool,
    /// `None` where the loss is not scaled.
    scale: Option<f64>,
    /// Steps that updated parameters since the scale changed.
    good_steps: u32,
}

impl LossScaler {
    /// Of a setting that is not [`LossScale::Auto`].
    pub(crate) fn new(setting: LossScale) -> Self {
        Self {
            dynamic: setting == LossScale::Dynamic,
            scale: match setting {
                LossScale::Auto | LossScale::None => None,
                LossScale::Fixed(scale) => Some(scale),
                LossScale::Dynamic => Some(FIRST),
            },
            good_steps: 0,
        }
    }

    /// The scale, where the loss is scaled.
    pub(crate) fn scale(&self) -> Option<f64> {
        self.scale
    }

    /// The scale as it goes with a batch, shape `[1]`.
    pub(crate) fn tensor(&self, device: &Device) -> Option<Tensor<1>> {
        let scale = self.scale? as f32;
        Some(Tensor::from_data([scale], device))
    }

    /// The scale to continue with where gradients overflow; `None` where that is no matter of the scale.
    pub(crate) fn lower(&self) -> Option<f64> {
        let scale = self.scale.filter(|scale| self.dynamic && *scale > FLOOR)?;
        Some((scale * BACKOFF).max(FLOOR))
    }

    /// Counts a step that was skipped because gradients overflowed.
    pub(crate) fn overflowed(&mut self) {
        self.scale = self.lower().or(self.scale);
        self.good_steps = 0;
    }

    /// Counts a step that updated parameters.
    pub(crate) fn updated(&mut self) {
        let Some(scale) = self.scale.filter(|_| self.dynamic) else {
            return;
        };
        self.good_steps += 1;
        if self.good_steps == GROWTH_INTERVAL {
            self.good_steps = 0;
            let larger = scale * GROWTH;
            self.scale = Some(match (larger as f32).is_finite() {
                true => larger,
                false => scale,
            });
        }
    }

    /// The scale, and steps since it changed, where it changes.
    pub(crate) fn saved(&self) -> Option<(f64, u32)> {
        let scale = self.scale.filter(|_| self.dynamic)?;
        Some((scale, self.good_steps))
    }

    /// Continues with the scale that one of the same settings has [saved](Self::saved).
    pub(crate) fn restored(mut self, saved: Option<(f64, u32)>) -> Result<Self, String> {
        if self.dynamic {
            let valid = saved.filter(|(scale, _)| scale.is_finite() && *scale >= FLOOR);
            let (scale, good_steps) = valid.ok_or("its loss scale is wrong")?;
            (self.scale, self.good_steps) = (Some(scale), good_steps);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PyTorch's `GradScaler`, as `torch/amp/grad_scaler.py` and the kernel `amp_update_scale_` compute it.
    struct GradScaler {
        scale: f32,
        growth_tracker: u32,
    }

    impl GradScaler {
        fn update(&mut self, found_inf: bool) {
            if found_inf {
                self.scale *= 0.5;
                self.growth_tracker = 0;
                return;
            }
            let successful = self.growth_tracker + 1;
            self.growth_tracker = if successful == 2000 {
                if (self.scale * 2.0).is_finite() {
                    self.scale *= 2.0;
                }
                0
            } else {
                successful
            };
        }
    }

    fn dynamic() -> LossScaler {
        LossScaler::new(LossScale::Dynamic)
    }

    #[test]
    fn a_dynamic_scale_is_that_of_grad_scaler() {
        let (mut ours, mut torchs) = (
            dynamic(),
            GradScaler {
                scale: 65536.0,
                growth_tracker: 0,
            },
        );
        for step in 0..300_000_u32 {
            // Long stretches without an overflow, up to the largest scale, and some with several.
            let overflows = step % 9973 < 3 && step < 60_000;
            match overflows {
                true => ours.overflowed(),
                false => ours.updated(),
            }
            torchs.update(overflows);
            assert_eq!(ours.scale(), Some(f64::from(torchs.scale)), "step {step}");
        }
        assert_eq!(ours.scale(), Some(f64::from(2.0_f32.powi(127))));
    }

    #[test]
    fn a_scale_of_one_does_not_fall() {
        let mut scaler = dynamic();
        for power in (0..16).rev() {
            assert_eq!(scaler.lower(), Some(2.0_f64.powi(power)));
            scaler.overflowed();
        }
        assert_eq!((scaler.scale(), scaler.lower()), (Some(1.0), None));
    }
}
