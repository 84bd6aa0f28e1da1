//! Arguments of commands that run a config in many ways: `sweep`, `max` and `verify`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rekindle::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnswerArgs, ConfigArgs, MeasureArgs};

#[derive(Debug, Args)]
#[command(
    next_help_heading = "Schedule",
    after_help = "Examples:\n  rekindle sweep configs/deep-linear.toml -o sweeps/first\n  rekindle sweep configs/deep-linear.toml --segments 1,4,16 --budgets 40MiB,60MiB"
)]
pub struct SweepArgs {
    /// Segment counts to run (by default all powers of two below the number of stages)
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    pub segments: Vec<usize>,
    /// Budgets to plan for and run (512MiB, 2GB, 50% of the plain peak; by default spread from the smallest to the plain peak)
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub budgets: Vec<Size>,
    /// Optimizer steps of each row
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub steps: usize,
    #[command(flatten, next_help_heading = None::<&str>)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write sweep.json, sweep.csv and frontier.svg to this folder, after each row
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(
    next_help_heading = "Schedule",
    after_help = "Examples:\n  rekindle max configs/deep-linear.toml --vary batch --budget 1GiB\n  rekindle max configs/deep-linear.toml --vary depth --slowdown 1.5 --confirm"
)]
pub struct MaxArgs {
    /// What to enlarge: batch (with --accumulate auto, each in the parts that `train` would choose), or depth (how often the
    /// largest `repeat` group repeats)
    #[arg(long, value_name = "WHAT")]
    pub vary: Lever,
    /// Maximum peak memory (512MiB, 2GB, 80%-of-device; by default what is free)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub budget: Option<Size>,
    /// Maximum step time, as a multiple of the plain step
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    pub slowdown: f64,
    #[command(flatten, next_help_heading = None::<&str>)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Run the answer for two steps, and compare its peak with the prediction
    #[arg(long, help_heading = "Output")]
    pub confirm: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// What `max` varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// Samples in each step.
    Batch,
    /// How often the largest group repeats.
    Depth,
}

impl Lever {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Depth => "depth",
        }
    }
}

#[derive(Debug, Args)]
#[command(
    next_help_heading = "Schedule",
    after_help = "Examples:\n  rekindle verify configs/parity/conv.toml\n  rekindle verify configs/deep-linear.toml --segments 4,8 --budgets 50MiB"
)]
pub struct VerifyArgs {
    /// Segment counts to check (by default the config's own plan, and all powers of two up to the number of stages)
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    pub segments: Vec<usize>,
    /// Check the plans for these budgets (512MiB, 2GB, 50% of the plain peak)
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub budgets: Vec<Size>,
    /// Optimizer steps of each check
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub steps: usize,
    #[command(flatten, next_help_heading = None::<&str>)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
}
