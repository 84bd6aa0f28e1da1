//! Arguments of commands that analyse one step: `estimate`, `profile` and `plan`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use rekindle::record::Rate;

use super::{AnswerArgs, ConfigArgs, MeasureArgs, ReplaceArgs, ScheduleArgs};
use crate::{device::DeviceChoice, network};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle estimate configs/deep-linear.toml\n  rekindle estimate configs/deep-linear.toml --batch 4096 --budget 2GiB"
)]
#[command(group = ArgGroup::new("counted").args(["segments", "budget"]))]
pub struct EstimateArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Device that the model must fit: auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D", help_heading = "Device and measurement")]
    pub device: Option<DeviceChoice>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle profile configs/deep-linear.toml\n  rekindle profile configs/deep-linear.toml --device cpu -o chain.json"
)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write the chain to this file
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle plan configs/deep-linear.toml --budget 40MiB --explain\n  rekindle plan configs/deep-linear.toml --frontier\n  rekindle plan --chain chain.json --budget 40MiB -o plan.json\n  rekindle plan configs/deep-linear.toml --ranks 4 --link 12GB/s,5us"
)]
pub struct PlanArgs {
    /// The TOML file that describes model, data and training
    #[arg(value_name = "CONFIG", required_unless_present_any = ["chain", "graph"])]
    pub config: Option<PathBuf>,
    /// Plan for a chain written by `rekindle profile -o`, instead of a config
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "ReplaceArgs"])]
    pub chain: Option<PathBuf>,
    /// Plan for the graph of a recorded step in FILE (`-`: standard input), and answer with the operations to run
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "config", "chain", "ReplaceArgs", "MeasureArgs", "ranks", "output", "explain", "frontier"
        ]
    )]
    pub graph: Option<PathBuf>,
    /// Search N times as long as usual (about a second) for a faster plan
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "frontier",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000),
        help_heading = "Schedule"
    )]
    pub effort: u32,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Plan for one of N ranks that share the batch, and predict what summing gradients adds. Under `mpirun` the processes are
    /// the ranks: leave it out
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "chain",
        help_heading = "Several ranks"
    )]
    pub ranks: Option<u32>,
    /// Predict the step of several ranks on this link from each to its neighbour in a ring: bytes or bits a second, and the
    /// latency of a message (12GB/s,5us or 25Gb/s). Without it the link is measured under `mpirun`
    #[arg(
        long,
        value_name = "RATE[,LATENCY]",
        requires = "ranks",
        value_parser = network::link,
        help_heading = "Several ranks"
    )]
    pub link: Option<Rate>,
    #[command(flatten)]
    pub answer: AnswerArgs,
    /// Write the plan to this file, for `rekindle train --plan`
    #[arg(short, long, value_name = "FILE", conflicts_with = "frontier")]
    pub output: Option<PathBuf>,
    /// Show where the peak is, what it consists of, and which operations run again or wait on the host
    #[arg(long, conflicts_with_all = ["frontier", "json"])]
    pub explain: bool,
    /// Show all useful points: the fastest step for each budget
    #[arg(long, conflicts_with_all = ["budget", "segments"])]
    pub frontier: bool,
}
