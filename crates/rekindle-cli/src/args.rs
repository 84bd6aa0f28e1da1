//! The command line as typed.

use std::{ffi::OsString, path::PathBuf};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use rekindle::{
    Dtype,
    device::DeviceId,
    executor::Recheck,
    meter::Count,
    train::{ExecutorKind, settings::OnNonFinite},
};
use rekindle_plan::PlannerKind;
use serde::{Deserialize, Serialize};

use rekindle::size::Size;

use crate::{commands::supervise, device::DeviceChoice};

/// Train sequential models that do not fit in memory.
///
/// Layers are cut into segments, activations inside them are dropped on the way forward and computed again on the
/// way back. Loss and gradients are the plain run's.
#[derive(Debug, Parser)]
#[command(
    name = "rekindle",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 other; 2 bad usage, config or input file; \
3 no plan fits the budget; 4 out of memory; 5 the system refused a file; 6 a loss or \
gradient is not finite; 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count a model's layers and memory, and say whether it fits, without running anything
    Estimate(EstimateArgs),
    /// Train a model, checkpointed, and compare what was predicted with what was measured
    Train(TrainArgs),
    /// Measure each stage of a model: bytes and seconds
    Profile(ProfileArgs),
    /// Find the fastest schedule that fits a budget, and explain it
    Plan(PlanArgs),
    /// Plan what another process of this program has measured
    #[command(name = crate::commands::plan_elsewhere::GRAPH, hide = true)]
    PlanGraph,
    #[command(name = crate::commands::plan_elsewhere::MEASURED, hide = true)]
    PlanMeasured,
    /// Run a config under many schedules, and show what each takes: table, files, and a picture of the frontier
    Sweep(SweepArgs),
    /// Find the largest batch, depth or width that fits, plain and under a plan, by planning
    Max(MaxArgs),
    /// Show that checkpointed training computes what plain training computes
    Verify(VerifyArgs),
    /// Make one self-contained HTML page of a run, of several beside each other, or of a sweep
    Report(ReportArgs),
    /// List what this machine can run on
    Devices(DevicesArgs),
}

/// What every command that reads a config takes.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// The TOML file that describes model, data and training
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    #[command(flatten)]
    pub replace: ReplaceArgs,
}

/// What replaces values of a config.
#[derive(Debug, Clone, Args)]
pub struct ReplaceArgs {
    /// Samples in each step, instead of the config's
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// How often the largest `repeat` group repeats, instead of the config's number
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// The most common `out` of hidden layers, instead of the config's; all hidden sizes follow in proportion
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// `synthetic`: random data of the same shape, instead of the config's
    #[arg(long, value_name = "KIND", value_parser = ["synthetic"], hide_possible_values = true)]
    pub data: Option<String>,
    /// Folder of the data set, instead of the config's
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub data_dir: Option<PathBuf>,
    /// Type of parameters and activations, instead of the config's: f32, f16 or bf16
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
}

impl ReplaceArgs {
    /// These, and where they leave a value, those.
    pub fn or(self, other: Self) -> Self {
        Self {
            batch: self.batch.or(other.batch),
            depth: self.depth.or(other.depth),
            width: self.width.or(other.width),
            data_dir: match self.data {
                Some(_) => None,
                None => self.data_dir.clone().or(other.data_dir),
            },
            data: match self.data_dir {
                Some(_) => None,
                None => self.data.or(other.data),
            },
            dtype: self.dtype.or(other.dtype),
        }
    }
}

impl ConfigArgs {
    /// Arguments of another process of this program that takes `command` to the same config on `device`, and answers in
    /// JSON.
    pub fn for_child(
        &self,
        command: &str,
        device: DeviceId,
        count: Option<CountChoice>,
    ) -> Vec<OsString> {
        let mut arguments = vec![command.into()];
        arguments.extend(self.typed());
        arguments.extend(["--device".into(), device.to_string().into()]);
        if let Some(count) = count {
            arguments.extend(["--count".into(), count.name().into()]);
        }
        arguments.push("--json".into());
        arguments
    }

    /// The config and what replaces its values, as they are typed.
    pub fn typed(&self) -> Vec<OsString> {
        let number = |value: Option<usize>| value.map(|value| value.to_string().into());
        let replace = &self.replace;
        let options: [(&str, Option<OsString>); 6] = [
            ("--batch", number(replace.batch)),
            ("--depth", number(replace.depth)),
            ("--width", number(replace.width)),
            ("--data", replace.data.as_ref().map(Into::into)),
            ("--data-dir", replace.data_dir.as_ref().map(Into::into)),
            (
                "--dtype",
                replace.dtype.map(|dtype| dtype.to_string().into()),
            ),
        ];
        let mut typed = vec![self.config.clone().into_os_string()];
        for (name, value) in options {
            typed.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        }
        typed
    }
}

#[derive(Debug, Args)]
pub struct EstimateArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Beside the plain run, one in K segments
    #[arg(long, value_name = "K", conflicts_with = "budget")]
    pub segments: Option<usize>,
    /// Beside the plain run, the fastest plan whose peak stays below SIZE (512MiB, 2GB, 80%)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub budget: Option<Size>,
    /// How the schedule is found: none, uniform, sqrt, segments, revolve, optimal, auto
    #[arg(long, value_name = "NAME")]
    pub planner: Option<PlannerKind>,
    /// Whose memory it must fit: auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D")]
    pub device: Option<DeviceChoice>,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("schedule").multiple(false))]
pub struct TrainArgs {
    /// The TOML file that describes model, data and training. With --resume alone: what the run was started with
    #[arg(value_name = "CONFIG", required_unless_present = "resume")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    /// Cut the layers into K segments
    #[arg(long, value_name = "K", group = "schedule")]
    pub segments: Option<usize>,
    /// Find the fastest schedule whose peak stays below SIZE (512MiB, 2GB, 80%)
    #[arg(
        long,
        value_name = "SIZE",
        group = "schedule",
        allow_hyphen_values = true
    )]
    pub budget: Option<Size>,
    /// Run the schedule in FILE, which `rekindle plan -o` wrote
    #[arg(
        long,
        value_name = "FILE",
        group = "schedule",
        conflicts_with = "planner"
    )]
    pub plan: Option<PathBuf>,
    /// How the schedule is found: none, uniform, sqrt, segments, revolve, optimal, auto
    #[arg(long, value_name = "NAME")]
    pub planner: Option<PlannerKind>,
    /// Optimizer steps, instead of the config's
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Seed of weights, shuffling and random layers, instead of the config's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Which bytes a budget bounds on a GPU: reserved (what pools and driver take of it) or in-use (live
    /// buffers)
    #[arg(long, value_name = "WHICH", hide_possible_values = true)]
    pub count: Option<CountChoice>,
    /// Compare recomputed activations with the first ones: off, shapes, or values (which must also be finite)
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    pub verify: Option<VerifyChoice>,
    /// Write to FILE, as JSON lines, what each action of the first three steps allocates and frees; and beside it as text
    #[arg(long, value_name = "FILE")]
    pub track: Option<PathBuf>,
    /// Where a loss or gradient is not finite: stop, skip the update, or continue with it; instead of the config's
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    pub on_nonfinite: Option<NonFiniteChoice>,
    /// Run a few plain steps and measure them, however short the run (on the CPU in another process, by itself where the
    /// run is long enough)
    #[arg(long)]
    pub compare: bool,
    /// Leave evaluations out
    #[arg(long, hide = true)]
    pub no_eval: bool,
    /// Start from these weights (safetensors, such as a run's `weights.safetensors`) instead of random ones
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    pub weights: Option<PathBuf>,
    /// Leave the run's record, history, snapshots and weights in this new folder
    #[arg(short, long, value_name = "RUN_DIR")]
    pub output: Option<PathBuf>,
    /// Go on with the run in this folder, from its newest whole snapshot: with what it was started with, or with another schedule, on another device, for more
    /// steps
    #[arg(long, value_name = "RUN_DIR", conflicts_with = "output")]
    pub resume: Option<PathBuf>,
    /// Train in a process of its own, and start it again from its last snapshot, within less memory, where the system
    /// ends it or its memory runs out; needs -o or --resume
    #[arg(long)]
    pub supervise: bool,
    /// Write what the plan takes to this file, for the process that supervises this one
    #[arg(long, hide = true, value_name = "FILE")]
    pub supervised: Option<PathBuf>,
    /// Go on with the run in -o
    #[arg(long, hide = true, requires = "supervised")]
    pub again: bool,
    /// Within this budget
    #[arg(long, hide = true, value_name = "SIZE", requires = "again")]
    pub again_within: Option<Size>,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

impl TrainArgs {
    /// What a supervisor asks for: the same run from its snapshot where it has one, within another budget where one is
    /// named.
    pub fn again(mut self) -> Self {
        if self.again
            && self.resume.is_none()
            && self.output.as_deref().is_some_and(supervise::has_snapshot)
        {
            self.resume = self.output.take();
        }
        if let Some(budget) = self.again_within {
            (self.segments, self.plan, self.planner) = (None, None, None);
            self.budget = Some(budget);
        }
        self
    }
}

/// What every command that measures takes.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D")]
    pub device: Option<DeviceChoice>,
    /// What runs the steps: recorded (operations, the default) or modules (stage by stage)
    #[arg(long, value_name = "WHAT")]
    pub executor: Option<ExecutorKind>,
    /// Measure again what an earlier command has measured (the folder in REKINDLE_CACHE, or the user's cache folder)
    #[arg(long)]
    pub fresh: bool,
}

/// Which bytes a budget bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CountChoice {
    /// What the device loses: the pools' reserved bytes and the driver's context.
    Reserved,
    /// Live buffers.
    InUse,
}

impl CountChoice {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::InUse => "in-use",
        }
    }
}

/// How closely recomputed activations are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VerifyChoice {
    /// Not at all.
    Off,
    /// Shapes.
    Shapes,
    /// Shapes and values.
    Values,
}

/// What happens where a step's loss or gradients are not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NonFiniteChoice {
    /// The run ends.
    Stop,
    /// Nothing is updated in that step.
    Skip,
    /// The update is made all the same.
    Continue,
}

impl From<NonFiniteChoice> for OnNonFinite {
    fn from(choice: NonFiniteChoice) -> Self {
        match choice {
            NonFiniteChoice::Stop => Self::Stop,
            NonFiniteChoice::Skip => Self::Skip,
            NonFiniteChoice::Continue => Self::Continue,
        }
    }
}

impl From<VerifyChoice> for Recheck {
    fn from(choice: VerifyChoice) -> Self {
        match choice {
            VerifyChoice::Off => Self::Off,
            VerifyChoice::Shapes => Self::Shapes,
            VerifyChoice::Values => Self::Values,
        }
    }
}

impl From<CountChoice> for Count {
    fn from(choice: CountChoice) -> Self {
        match choice {
            CountChoice::Reserved => Self::Reserved,
            CountChoice::InUse => Self::InUse,
        }
    }
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Which bytes budgets of later plans bound on a GPU: reserved (what pools and driver take of it) or in-use (live
    /// buffers)
    #[arg(long, value_name = "WHICH", hide_possible_values = true)]
    pub count: Option<CountChoice>,
    /// Write the chain to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The chain as one JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The TOML file whose model is measured and planned
    #[arg(value_name = "CONFIG", required_unless_present = "chain")]
    pub config: Option<PathBuf>,
    /// A chain that `rekindle profile -o` wrote, instead of a config
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "ReplaceArgs"])]
    pub chain: Option<PathBuf>,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Which bytes the budget bounds on a GPU: reserved (what pools and driver take of it) or in-use (live
    /// buffers)
    #[arg(long, value_name = "WHICH", hide_possible_values = true)]
    pub count: Option<CountChoice>,
    /// The most bytes at any moment (512MiB, 2GB, 80%)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub budget: Option<Size>,
    /// none, uniform, sqrt, segments, revolve, optimal or auto
    #[arg(long, value_name = "NAME")]
    pub planner: Option<PlannerKind>,
    /// Cut the layers into K segments
    #[arg(long, value_name = "K")]
    pub segments: Option<usize>,
    /// Into how many slots `optimal` cuts the memory where that is less than exact; short chains get more
    #[arg(long, value_name = "N", default_value_t = rekindle_plan::PlanRequest::SLOTS)]
    pub slots: usize,
    /// Write the plan to this file, for `rekindle train --plan`
    #[arg(short, long, value_name = "FILE", conflicts_with = "frontier")]
    pub output: Option<PathBuf>,
    /// Say what is kept, from when to when, and what the peak is made of
    #[arg(long, conflicts_with_all = ["frontier", "json"])]
    pub explain: bool,
    /// All useful points of the planner: which budgets buy which times
    #[arg(long, conflicts_with_all = ["budget", "segments"])]
    pub frontier: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Segment counts to run; all powers of two below the number of stages where no list is given
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    pub segments: Vec<usize>,
    /// Budgets to plan for and run (512MiB, 2GB, 80%); spread from the smallest to plain where no list is given
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub budgets: Vec<Size>,
    /// Optimizer steps of each row
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub steps: usize,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Which bytes a budget bounds on a GPU: reserved (by the pools, and the driver's) or in-use (live buffers)
    #[arg(long, value_name = "WHICH")]
    pub count: Option<CountChoice>,
    /// Leave sweep.json, sweep.csv, sweep.md and frontier.svg in this folder, renewed after each row
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Go on with the sweep in this folder: run the rows that it lacks
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    pub resume: Option<PathBuf>,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MaxArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// batch; depth: how often the largest `repeat` group repeats; width: the most common `out` of hidden layers, the others in proportion
    #[arg(long, value_name = "WHAT")]
    pub vary: Lever,
    /// The most bytes at any moment (512MiB, 2GB, 80%); what the device has, or on the processor what is free, if not given
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub budget: Option<Size>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Which bytes the budget bounds on a GPU: reserved (by the pools, and the driver's) or in-use (live buffers)
    #[arg(long, value_name = "WHICH")]
    pub count: Option<CountChoice>,
    /// Longest step to accept, as a multiple of the plain step
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    pub slowdown: f64,
    /// Count from shapes and measure nothing, however small the model is
    #[arg(long)]
    pub counted: bool,
    /// Run the answer for two steps, and compare its peak with what was predicted
    #[arg(long)]
    pub confirm: bool,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// What `max` varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// Samples in each step.
    Batch,
    /// How often the largest group repeats.
    Depth,
    /// The size that most hidden layers have.
    Width,
}

impl Lever {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Depth => "depth",
            Self::Width => "width",
        }
    }
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Segment counts to check. Without any option: what the config trains, and all powers of two up to the number of
    /// stages
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    pub segments: Vec<usize>,
    /// Budgets whose plans to check (512MiB, 2GB, 80% of the device)
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub budgets: Vec<Size>,
    /// How schedules within budgets are found: sqrt, segments, revolve, optimal, auto
    #[arg(long, value_name = "NAME", requires = "budgets")]
    pub planner: Option<PlannerKind>,
    /// A plan to check, which `rekindle plan -o` wrote
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Optimizer steps of each check
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub steps: usize,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folders that `rekindle train -o` wrote, or one that `rekindle sweep -o` did
    #[arg(value_name = "RUN_DIR", required = true)]
    pub runs: Vec<PathBuf>,
    /// Where the page goes, by default into the first folder: `report.html`, or `comparison.html` of several runs. A FILE
    /// that ends in .svg gets the picture alone
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// One JSON document on standard output, which says where the page is
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}
