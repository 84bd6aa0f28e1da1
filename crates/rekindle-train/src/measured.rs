//! What steps took, and how many times as long as plain ones.
//!
//! The quotient of two medians is taken to lie between the least of the middle half of one's steps by the most of the other's, and
//! the reverse. A machine is faster at one time than at another, so both run in turns: the quotient is the middle one, between the
//! least and the most of all turns. Where 1 is between these, which of the two takes longer is not known, and no gain is shown.

use std::fmt;

use rekindle_plan::{Bytes, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run took, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// The peak of the counted bytes, over everything that the process did.
    #[serde(rename = "measured_peak_bytes")]
    pub peak: Bytes,
    /// The peak of live buffers: at every moment on the processor, between actions on a GPU.
    #[serde(rename = "measured_in_use_bytes")]
    pub in_use: Bytes,
    /// The median time of the last 1,000 steps, without the first step and a traced one where there are others.
    #[serde(rename = "measured_step_s")]
    pub step: Seconds,
    /// The least and the most of the middle half of these times; `null` where there is none.
    #[serde(rename = "step_range_s")]
    pub range: Option<[Seconds; 2]>,
}

impl Measured {
    /// The range, or twice the median.
    fn ends(&self) -> [f64; 2] {
        self.range.unwrap_or([self.step; 2]).map(|time| time.0)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peak {}, step {}", self.peak, self.step)?;
        self.range
            .map_or(Ok(()), |[least, most]| write!(f, " ({least} to {most})"))
    }
}

/// A few steps by the run's plan, and as many plain ones after them. Peaks are those of the steps; where the plain ones ran in
/// another process, that of all that it did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Turn {
    /// By the plan.
    pub planned: Measured,
    /// Without recomputing.
    pub plain: Measured,
}

impl Turn {
    /// The plain steps with the middle time of some turns, if there are any.
    pub(super) fn middle(turns: &[Self]) -> Option<Measured> {
        let mut plain: Vec<Measured> = turns.iter().map(|turn| turn.plain).collect();
        plain.sort_unstable_by(|a, b| a.step.0.total_cmp(&b.step.0));
        plain.get(plain.len() / 2).copied()
    }
}

/// How many times as long as the plain step one takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slowdown {
    /// The step's time by the plain step's: the middle one of all turns.
    #[serde(rename = "slowdown")]
    pub times: f64,
    /// The least and the most of it in any turn. Where 1 is between them, the steps take about the same.
    #[serde(rename = "slowdown_range")]
    pub range: [f64; 2],
}

impl Slowdown {
    /// As measured in turns, if there are any.
    #[must_use]
    pub fn of(turns: &[Turn]) -> Option<Self> {
        let turns = turns.iter().filter(|turn| turn.plain.ends()[0] > 0.0);
        let times = turns
            .clone()
            .map(|turn| turn.planned.step.0 / turn.plain.step.0);
        let mut times: Vec<f64> = times.collect();
        times.sort_unstable_by(f64::total_cmp);
        let ranges = turns.map(|turn| {
            let ([least, most], plain) = (turn.planned.ends(), turn.plain.ends());
            [least / plain[1], most / plain[0]]
        });
        let range = ranges.reduce(|all, one| [all[0].min(one[0]), all[1].max(one[1])])?;
        let times = *times.get(times.len() / 2)?;
        Some(Self { times, range })
    }

    /// Whether it is known which of the two takes longer.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let [least, most] = self.range;
        least > 1.0 || most < 1.0
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_known() {
            true => write!(f, "{:.2}x the step time", self.times)?,
            false => f.write_str("about the same step time")?,
        }
        let [least, most] = self.range;
        write!(f, " ({least:.2}x to {most:.2}x)")
    }
}
