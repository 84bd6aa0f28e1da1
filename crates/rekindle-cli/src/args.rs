//! The command line as typed.

use std::path::{Path, PathBuf};

use clap::{
    ArgGroup, Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use rekindle::size::Size;
use rekindle::{Dtype, executor::Recheck, meter::Count};
use rekindle_plan::PlannerKind;
use rekindle_train::{
    ExecutorKind,
    loss_scale::LossScale,
    optimizer_state::StateChoice,
    settings::{LossChunks, OnNonFinite},
    update::UpdateChoice,
};
use schemars::JsonSchema;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IntoDeserializer, value},
};
use serde_json::Value;

use crate::{
    config::OffloadChoice,
    device::DeviceChoice,
    failure::Failure,
    network::{Flops, LinkChoice},
    started::{self, Started},
    terminal::LookArgs,
};

/// Reads a word as serde does. Its schema says which words there are, and what each means.
fn word<T>() -> impl TypedValueParser<Value = T>
where
    T: JsonSchema + DeserializeOwned + Clone + Send + Sync + 'static,
{
    let schema = schemars::schema_for!(T).to_value();
    let words = schema["oneOf"].as_array().into_iter().flatten();
    let words = words.filter_map(|word| {
        // clap keeps its words as long as the program runs.
        let value = PossibleValue::new(&*word["const"].as_str()?.to_owned().leak());
        Some(match word["description"].as_str() {
            Some(help) => value.help(&*help.replace('\n', " ").leak()),
            None => value,
        })
    });
    PossibleValuesParser::new(words).try_map(|word| {
        let from: value::StrDeserializer<'_, value::Error> = word.as_str().into_deserializer();
        T::deserialize(from)
    })
}

/// Reads a number of ranks.
fn ranks() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u32)
        .range(1..)
        .map(|ranks| ranks as usize)
}

/// Train sequential models that do not fit in memory.
///
/// Gradient checkpointing within a memory budget: some activations are dropped in the forward pass and recomputed in the
/// backward pass. Loss and gradients are the plain run's.
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
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count a model's parameters and memory, and say whether it fits, without running it
    Estimate(EstimateArgs),
    /// Train a model within a memory budget, and compare predictions with measurements
    Train(Box<TrainArgs>),
    /// Measure the memory and time of each stage of a model
    Profile(ProfileArgs),
    /// Find the fastest schedule within a budget, and explain it
    Plan(PlanArgs),
    /// Do what another process of this program asks for
    #[command(name = crate::child::SUBCOMMAND, hide = true)]
    Child,
    /// Run a config under many schedules, and show time against memory: table, files, plot
    Sweep(SweepArgs),
    /// Find the largest batch, depth or width that fits, with and without checkpointing
    Max(MaxArgs),
    /// Check that checkpointed training computes the same numbers as plain training
    Verify(VerifyArgs),
    /// Make one self-contained HTML page of a run, of several runs, or of a sweep
    Report(ReportArgs),
    /// List the devices of this machine, and say why others cannot be used
    Devices(DevicesArgs),
    /// Write a commented config to start from
    Init(InitArgs),
    /// Write shell completions to standard output
    Completions(CompletionsArgs),
    /// Write manual pages to a folder
    Man(ManArgs),
}

/// What every command that reads a config takes.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct ConfigArgs {
    /// The TOML file that describes model, data and training
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    #[command(flatten)]
    pub replace: ReplaceArgs,
}

/// What replaces values of a config.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Instead of the config's values")]
pub struct ReplaceArgs {
    /// Samples in each step
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// How often the largest `repeat` group repeats
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// The most common `out` of hidden layers; all hidden sizes follow in proportion
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// `synthetic`: random data of the same shape
    #[arg(long, value_name = "KIND", value_parser = ["synthetic"], hide_possible_values = true)]
    pub data: Option<String>,
    /// Folder of the data set
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub data_dir: Option<PathBuf>,
    /// Type of parameters and activations: f32, f16 or bf16
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// With f16 and bf16, keep no f32 copy of the parameters in the optimizer: 4 bytes less for each, and small updates are
    /// lost
    #[arg(long)]
    pub no_master_weights: bool,
    /// What the loss is multiplied by before its backward pass: a number; dynamic; none; or auto (the default), dynamic with
    /// f16 and none with the others
    #[arg(long, value_name = "SCALE")]
    pub loss_scale: Option<LossScale>,
    /// When parameters are updated: after the step; in-backward, each as soon as its gradient is complete; or auto (the
    /// default), after the step unless a budget is not met so
    #[arg(long, value_name = "WHEN")]
    pub update: Option<UpdateChoice>,
    /// Chunks in which the last layer and the loss run together: a number, auto, or whole for none
    #[arg(long, value_name = "N")]
    pub loss_chunks: Option<LossChunks>,
    /// Who keeps the optimizer's state of several ranks: whole, every rank; sharded, each a part; or auto (the default),
    /// sharded only where a budget is not met otherwise
    #[arg(
        long,
        value_name = "WHO",
        hide_possible_values = true,
        value_parser = word::<StateChoice>()
    )]
    pub optimizer_state: Option<StateChoice>,
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
            no_master_weights: self.no_master_weights || other.no_master_weights,
            loss_scale: self.loss_scale.or(other.loss_scale),
            update: self.update.or(other.update),
            loss_chunks: self.loss_chunks.or(other.loss_chunks),
            optimizer_state: self.optimizer_state.or(other.optimizer_state),
        }
    }
}

impl ConfigArgs {
    /// The training of this config, as a child is told of it.
    pub fn training(&self, measure: MeasureArgs) -> TrainArgs {
        TrainArgs {
            config: Some(self.config.clone()),
            replace: self.replace.clone(),
            measure,
            json: true,
            ..TrainArgs::default()
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle estimate configs/deep-linear.toml\n  rekindle estimate configs/deep-linear.toml --batch 4096 --budget 2GiB\n  rekindle estimate configs/deep-linear.toml --ranks 2,4,8 --link 25Gb/s,30us --flops 10T"
)]
pub struct EstimateArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Also count a run in K segments
    #[arg(
        long,
        value_name = "K",
        conflicts_with = "budget",
        help_heading = "Schedule"
    )]
    pub segments: Option<usize>,
    /// Also count the fastest plan whose peak memory stays within SIZE (512MiB, 2GB, 80%)
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        help_heading = "Schedule"
    )]
    pub budget: Option<Size>,
    /// Planner: auto (the default), none, uniform, sqrt, segments, revolve or optimal
    #[arg(long, value_name = "NAME", help_heading = "Schedule")]
    pub planner: Option<PlannerKind>,
    /// Device whose memory it must fit: auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D", help_heading = "Device and measurement")]
    pub device: Option<DeviceChoice>,
    /// Also count what each of N ranks takes that share the batch
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        value_parser = ranks(),
        help_heading = "Several ranks"
    )]
    pub ranks: Vec<usize>,
    /// Predict the ranks' step on this link from each to its neighbour in a ring: bytes or bits a second, and the latency of a
    /// message (12GB/s,5us or 25Gb/s). May be given several times
    #[arg(
        long,
        value_name = "RATE[,LATENCY]",
        requires_all = ["ranks", "flops"],
        help_heading = "Several ranks"
    )]
    pub link: Vec<LinkChoice>,
    /// Operations on numbers that a device does in a second (100T)
    #[arg(
        long,
        value_name = "SPEED",
        requires = "link",
        help_heading = "Several ranks"
    )]
    pub flops: Option<Flops>,
    /// Show N levels of layers inside layers (all of them if not given)
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub levels: Option<usize>,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[command(
    after_help = "Examples:\n  rekindle train configs/deep-linear.toml\n  rekindle train configs/deep-linear.toml --budget 60MiB -o runs/first\n  rekindle train configs/deep-linear.toml --segments 8 --compare\n  rekindle train --resume runs/first --steps 600"
)]
#[command(group = ArgGroup::new("schedule").multiple(false))]
pub struct TrainArgs {
    /// The TOML file that describes model, data and training; not needed with --resume
    #[arg(value_name = "CONFIG", required_unless_present = "resume")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    /// Cut the layers into K segments
    #[arg(long, value_name = "K", group = "schedule", help_heading = "Schedule")]
    pub segments: Option<usize>,
    /// Use the fastest schedule whose peak memory stays within SIZE (512MiB, 2GB, 80%)
    #[arg(
        long,
        value_name = "SIZE",
        group = "schedule",
        allow_hyphen_values = true,
        help_heading = "Schedule"
    )]
    pub budget: Option<Size>,
    /// Use the schedule in FILE, written by `rekindle plan -o`
    #[arg(
        long,
        value_name = "FILE",
        group = "schedule",
        conflicts_with = "planner",
        help_heading = "Schedule"
    )]
    pub plan: Option<PathBuf>,
    /// Planner: auto (the default), none, uniform, sqrt, segments, revolve or optimal
    #[arg(long, value_name = "NAME", help_heading = "Schedule")]
    pub planner: Option<PlannerKind>,
    /// Optimizer steps (the config's if not given)
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<usize>,
    /// Seed of weights, shuffling and random layers (the config's if not given)
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Compare recomputed activations with the original ones: off, shapes, or values (which must also be finite)
    #[arg(
        long,
        value_name = "WHAT",
        hide_possible_values = true,
        help_heading = "Output and checks",
        value_parser = word::<Recheck>()
    )]
    pub verify: Option<Recheck>,
    /// Write what each action of the first three steps allocates and frees to FILE (JSON lines), and beside it as text
    #[arg(long, value_name = "FILE", help_heading = "Output and checks")]
    pub track: Option<PathBuf>,
    /// What to do if a loss or gradient is not finite: stop (the default), skip the update, or continue
    #[arg(
        long,
        value_name = "WHAT",
        hide_possible_values = true,
        help_heading = "Training",
        value_parser = word::<OnNonFinite>()
    )]
    pub on_nonfinite: Option<OnNonFinite>,
    /// Measure a few plain steps too. On the CPU, long runs do so without being asked
    #[arg(long, help_heading = "Output and checks")]
    pub compare: bool,
    /// Leave evaluations out
    #[arg(long, hide = true)]
    pub no_eval: bool,
    /// Start from the weights in FILE (safetensors, such as a run's `weights.safetensors`)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "resume",
        help_heading = "Training"
    )]
    pub weights: Option<PathBuf>,
    /// Write the run's record, history, snapshots and weights to this new folder
    #[arg(short, long, value_name = "RUN_DIR", help_heading = "Run folder")]
    pub output: Option<PathBuf>,
    /// Resume the run in this folder from its newest intact snapshot. The schedule, the device and the number of steps may
    /// differ
    #[arg(
        long,
        value_name = "RUN_DIR",
        conflicts_with = "output",
        help_heading = "Run folder"
    )]
    pub resume: Option<PathBuf>,
    /// Train in a child process; if the system kills it or memory runs out, restart it from its last snapshot with a
    /// smaller budget. Needs -o or --resume
    #[arg(long, help_heading = "Run folder")]
    pub supervise: bool,
    /// What the process that supervises this one tells it
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervised: Option<Supervised>,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output and checks")]
    pub json: bool,
}

impl TrainArgs {
    /// The config's path; empty where there is none.
    pub fn config_path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(""))
    }

    /// The command line, as it is typed.
    pub fn typed(&self) -> Result<String, Failure> {
        self.words("train").map(|words| started::line(&words))
    }

    /// The command line of a command that has these options.
    pub fn words(&self, command: &str) -> Result<Vec<String>, Failure> {
        let mut words = vec![command.to_owned()];
        let fields = serde_json::to_value(self).map_err(Failure::other)?;
        add_typed(&mut words, &fields);
        Ok(words)
    }
}

/// Fields are called what their options are called.
fn add_typed(words: &mut Vec<String>, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        let option = format!("--{}", name.replace('_', "-"));
        match value {
            Value::Bool(true) => words.push(option),
            Value::String(word) if name == "config" => words.push(word.clone()),
            Value::String(word) => words.extend([option, word.clone()]),
            Value::Number(number) => words.extend([option, number.to_string()]),
            _ => add_typed(words, value),
        }
    }
}

/// What a run is told by the process that supervises it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Supervised {
    /// Where to write what the plan takes.
    pub note: PathBuf,
    /// Whether it is tried within less memory than was asked for, and another follows where no plan fits that.
    pub tried_within_less: bool,
    /// What the supervisor was started with.
    pub started: Started,
}

/// What every command that measures takes.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Device and measurement")]
pub struct MeasureArgs {
    /// auto (the default: cuda:0 if it can be used, else cpu), cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D")]
    pub device: Option<DeviceChoice>,
    /// What runs a step: recorded (the default: single operations) or modules (stage by stage)
    #[arg(
        long,
        value_name = "WHAT",
        hide_possible_values = true,
        value_parser = word::<ExecutorKind>()
    )]
    pub executor: Option<ExecutorKind>,
    /// Which bytes a budget bounds on a GPU: reserved (the default: pools and the driver's context) or in-use (live buffers)
    #[arg(
        long,
        value_name = "WHICH",
        hide_possible_values = true,
        help_heading = "Schedule",
        value_parser = word::<Count>()
    )]
    pub count: Option<Count>,
    /// Whether a plan within a budget may keep tensors in host memory between forward and backward: auto (the default, on GPUs)
    /// or never
    #[arg(
        long,
        value_name = "WHEN",
        hide_possible_values = true,
        help_heading = "Schedule",
        value_parser = word::<OffloadChoice>()
    )]
    pub offload: Option<OffloadChoice>,
    /// The most host memory that such tensors may take (by default what is free less an eighth, and less 1 GiB at least)
    #[arg(long, value_name = "SIZE", help_heading = "Schedule")]
    pub host_budget: Option<Size>,
    /// Measure again, instead of using a profile that an earlier command kept (in REKINDLE_CACHE or the user's cache folder)
    #[arg(long)]
    pub fresh: bool,
}

#[derive(Debug, Args, Serialize, Deserialize)]
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
    /// Write the chain as one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle plan configs/deep-linear.toml --budget 40MiB --explain\n  rekindle plan configs/deep-linear.toml --frontier\n  rekindle plan --chain chain.json --budget 40MiB -o plan.json\n  rekindle plan configs/deep-linear.toml --ranks 4 --link 12GB/s,5us"
)]
pub struct PlanArgs {
    /// The TOML file whose model is measured and planned
    #[arg(value_name = "CONFIG", required_unless_present = "chain")]
    pub config: Option<PathBuf>,
    /// Plan for a chain written by `rekindle profile -o`, instead of a config
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "ReplaceArgs"])]
    pub chain: Option<PathBuf>,
    #[command(flatten)]
    pub replace: ReplaceArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// The largest peak memory to allow (512MiB, 2GB, 80%)
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        help_heading = "Schedule"
    )]
    pub budget: Option<Size>,
    /// Planner: auto (the default), none, uniform, sqrt, segments, revolve or optimal
    #[arg(long, value_name = "NAME", help_heading = "Schedule")]
    pub planner: Option<PlannerKind>,
    /// Cut the layers into K segments
    #[arg(long, value_name = "K", help_heading = "Schedule")]
    pub segments: Option<usize>,
    /// Memory slots that `optimal` rounds sizes to, where exact sizes would take too long; short chains get more
    #[arg(long, value_name = "N", default_value_t = rekindle_plan::PlanRequest::SLOTS, help_heading = "Schedule")]
    pub slots: usize,
    /// Plan for one of N ranks that share the batch, and predict what summing gradients adds. Under `mpirun` N is the number of
    /// processes
    #[arg(
        long,
        value_name = "N",
        value_parser = ranks(),
        conflicts_with = "chain",
        help_heading = "Several ranks"
    )]
    pub ranks: Option<usize>,
    /// The link from each rank to its neighbour in a ring: bytes or bits a second, and the latency of a message (12GB/s,5us or
    /// 25Gb/s). Under `mpirun` it is measured
    #[arg(
        long,
        value_name = "RATE[,LATENCY]",
        requires = "ranks",
        help_heading = "Several ranks"
    )]
    pub link: Option<LinkChoice>,
    /// Write the plan to this file, for `rekindle train --plan`
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with = "frontier",
        help_heading = "Output"
    )]
    pub output: Option<PathBuf>,
    /// Show what is kept, from when to when, and what the peak consists of
    #[arg(long, conflicts_with_all = ["frontier", "json"], help_heading = "Output")]
    pub explain: bool,
    /// Show all useful points: the fastest step for each budget
    #[arg(long, conflicts_with_all = ["budget", "segments"], help_heading = "Output")]
    pub frontier: bool,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle sweep configs/deep-linear.toml -o sweeps/first\n  rekindle sweep configs/deep-linear.toml --segments 1,4,16 --budgets 40MiB,60MiB\n  rekindle sweep configs/deep-linear.toml --ranks 1,2,4 --link 12GB/s,5us"
)]
pub struct SweepArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Segment counts to run (by default all powers of two below the number of stages)
    #[arg(
        long,
        value_name = "K,..",
        value_delimiter = ',',
        help_heading = "Schedule"
    )]
    pub segments: Vec<usize>,
    /// Budgets to plan for and run (512MiB, 2GB, 80%; by default spread from the smallest to the plain peak)
    #[arg(
        long,
        value_name = "SIZE,..",
        value_delimiter = ',',
        help_heading = "Schedule"
    )]
    pub budgets: Vec<Size>,
    /// Numbers of ranks to train on: each is a job under `mpirun`, on this machine's devices. Without MPI, or its feature, the
    /// rows are predicted for the link that --link names
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        value_parser = ranks(),
        help_heading = "Several ranks"
    )]
    pub ranks: Vec<usize>,
    /// Predict rows of several ranks on this link from each to its neighbour in a ring instead of training: bytes or bits a
    /// second, and the latency of a message (12GB/s,5us or 25Gb/s)
    #[arg(
        long,
        value_name = "RATE[,LATENCY]",
        requires = "ranks",
        help_heading = "Several ranks"
    )]
    pub link: Option<LinkChoice>,
    /// Optimizer steps of each row
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Schedule")]
    pub steps: usize,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write sweep.json, sweep.csv, sweep.md and frontier.svg to this folder, after each row
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Resume the sweep in this folder: run the rows that are missing
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "output",
        help_heading = "Output"
    )]
    pub resume: Option<PathBuf>,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle max configs/deep-linear.toml --vary batch --budget 1GiB\n  rekindle max configs/deep-linear.toml --vary depth --slowdown 1.5 --confirm"
)]
pub struct MaxArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What to enlarge: batch, depth (repeats of the largest `repeat` group) or width (all hidden sizes in proportion)
    #[arg(
        long,
        value_name = "WHAT",
        hide_possible_values = true,
        help_heading = "Schedule",
        value_parser = word::<Lever>()
    )]
    pub vary: Lever,
    /// The largest peak memory to allow (512MiB, 2GB, 80%; by default what is free)
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        help_heading = "Schedule"
    )]
    pub budget: Option<Size>,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// The longest step to accept, as a multiple of the plain step
    #[arg(
        long,
        value_name = "X",
        default_value_t = 2.0,
        help_heading = "Schedule"
    )]
    pub slowdown: f64,
    /// Count from shapes instead of measuring
    #[arg(long, help_heading = "Device and measurement")]
    pub counted: bool,
    /// Run the answer for two steps, and compare its peak with the prediction
    #[arg(long, help_heading = "Output")]
    pub confirm: bool,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What `max` varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[command(
    after_help = "Examples:\n  rekindle verify configs/parity/conv.toml\n  rekindle verify configs/deep-linear.toml --segments 4,8 --budgets 50MiB"
)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Segment counts to check (by default the config's own plan, and all powers of two up to the number of stages)
    #[arg(
        long,
        value_name = "K,..",
        value_delimiter = ',',
        help_heading = "Schedule"
    )]
    pub segments: Vec<usize>,
    /// Budgets whose plans to check (512MiB, 2GB, 80% of the device)
    #[arg(
        long,
        value_name = "SIZE,..",
        value_delimiter = ',',
        help_heading = "Schedule"
    )]
    pub budgets: Vec<Size>,
    /// Planner for the budgets: auto (the default), sqrt, segments, revolve or optimal
    #[arg(
        long,
        value_name = "NAME",
        requires = "budgets",
        help_heading = "Schedule"
    )]
    pub planner: Option<PlannerKind>,
    /// A plan to check, written by `rekindle plan -o`
    #[arg(long, value_name = "FILE", help_heading = "Schedule")]
    pub plan: Option<PathBuf>,
    /// Optimizer steps of each check
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Schedule")]
    pub steps: usize,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write one JSON document to standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle report runs/first\n  rekindle report runs/first runs/second -o comparison.html"
)]
pub struct ReportArgs {
    /// Folders written by `rekindle train -o`, or one written by `rekindle sweep -o`
    #[arg(value_name = "RUN_DIR", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write the page to FILE (by default `report.html`, or `comparison.html` for several runs, in the first folder). A
    /// FILE that ends in .svg gets the picture alone, one in .json the trace of a step for https://ui.perfetto.dev
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write one JSON document, which says where the page is, to standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle devices\n  rekindle devices --json")]
pub struct DevicesArgs {
    /// Write one JSON document to standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle init\n  rekindle init text -o my.toml")]
pub struct InitArgs {
    /// What the config trains: synthetic (runs at once), text, mnist or cifar10
    #[arg(
        value_name = "STORY",
        default_value = "synthetic",
        hide_possible_values = true
    )]
    pub story: Story,
    /// Write the config to FILE, which must not exist
    #[arg(short, long, value_name = "FILE", default_value = "rekindle.toml")]
    pub output: PathBuf,
}

/// What a config to start from trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Story {
    /// A deep multilayer perceptron on random data.
    Synthetic,
    /// A byte-level language model on a text of one's own.
    Text,
    /// A multilayer perceptron on MNIST.
    Mnist,
    /// Convolutions on CIFAR-10.
    Cifar10,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle completions bash > ~/.local/share/bash-completion/completions/rekindle"
)]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The folder, which is made if it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Every example that a help text shows is a command line that is understood.
    #[test]
    fn examples_are_understood() {
        let mut examples = 0;
        for command in Cli::command().get_subcommands() {
            let Some(help) = command.get_after_help() else {
                continue;
            };
            let help = help.to_string();
            for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
                let words = line.split_whitespace().take_while(|word| *word != ">");
                let parsed = Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{line}: {parsed:?}");
                examples += 1;
            }
        }
        assert!(examples >= 20, "{examples}");
    }
}
