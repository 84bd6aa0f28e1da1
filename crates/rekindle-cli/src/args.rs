//! The command line as typed.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use rekindle_plan::PlannerKind;

use crate::{device::DeviceChoice, size::Size};

/// Train sequential models that do not fit in memory.
///
/// Layers are cut into segments, activations inside them are dropped on the way forward and computed again on the
/// way back. Loss and gradients are the plain run's.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 other; 2 bad usage, config or input file; \
3 no plan fits the budget; 4 out of memory; 5 the system refused a file; 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count a model's layers, parameters and activations without running anything
    Estimate(EstimateArgs),
    /// Train a model, checkpointed, and compare what was predicted with what was measured
    Train(TrainArgs),
    /// Show that checkpointed training computes what plain training computes
    Verify(VerifyArgs),
    /// List what this machine can run on
    Devices(DevicesArgs),
}

/// What every command that reads a config takes.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The TOML file that describes model, data and training
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Samples in each step, instead of the config's
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Random data of the same shape, instead of the config's
    #[arg(long, value_name = "KIND", value_parser = ["synthetic"])]
    pub data: Option<String>,
    /// Folder of the data set, instead of the config's
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct EstimateArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("schedule").multiple(false))]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Cut the layers into K segments
    #[arg(long, value_name = "K", group = "schedule")]
    pub segments: Option<usize>,
    /// Find the fastest schedule whose peak stays below SIZE (512MiB, 2GB, 80%)
    #[arg(long, value_name = "SIZE", group = "schedule")]
    pub budget: Option<Size>,
    /// How the schedule is found: none, uniform, sqrt, segments, revolve, optimal, auto
    #[arg(long, value_name = "NAME")]
    pub planner: Option<PlannerKind>,
    /// Optimizer steps, instead of the config's
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Seed of weights, shuffling and random layers, instead of the config's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D")]
    pub device: Option<DeviceChoice>,
    /// Run one plain step after the training and measure it
    #[arg(long)]
    pub compare: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Segment counts to check; all powers of two up to the number of stages by default
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    pub segments: Vec<usize>,
    /// Optimizer steps of each check
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub steps: usize,
    /// auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D")]
    pub device: Option<DeviceChoice>,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}
