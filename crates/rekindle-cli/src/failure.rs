//! What ends a command early: an exit code, and a report that says what, where and how to fix it.

use std::{
    fmt::Display,
    io::Write,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use miette::{Report, miette};
use rekindle::{executor::StepError, record::RecordError, reduce::ReduceError};
use rekindle_plan::{Bytes, PlanError, PlannerKind};
use rekindle_train::{
    RunDirError, TrainError, WeightsError,
    data::{DataError, error::Blame},
    device::{
        DeviceError, address_space_left, device_fault, innermost_cause, refused_kernel,
        seal_kernels,
    },
    model::largest::TensorRole,
    session::{Planned, RunError, holders},
    shortage::speaks_of_memory,
};

use crate::{error_document, exit, terminal};

/// An exit code and a report for people.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: i32,
    /// The report.
    pub report: Report,
}

/// A report in which names from files, whatever they hold, are only text.
fn said(message: impl Display) -> Report {
    miette!("{}", terminal::shown(&message.to_string()))
}

/// What a command gives.
pub type Outcome = Result<(), Failure>;

/// Says why a command failed: for people, and as JSON where that was asked for.
pub fn report(failure: &Failure) {
    complain!("{:?}", failure.report);
    error_document::write(failure);
}

/// Ends the process.
pub fn end(outcome: Outcome) -> ! {
    let code = match outcome {
        Ok(()) => exit::DONE,
        Err(failure) => {
            report(&failure);
            failure.code
        }
    };
    seal_kernels();
    std::process::exit(code);
}

impl Failure {
    /// Bad usage, or a file whose content is wrong.
    pub fn usage(message: impl Display) -> Self {
        Self::coded(exit::USAGE, message)
    }

    /// The system refused a file.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self {
            code: exit::FILE_REFUSED,
            report: said(format_args!("{}: {error}", path.display())),
        }
    }

    /// Anything that has no code of its own.
    pub fn other(message: impl Display) -> Self {
        Self::coded(exit::OTHER, message)
    }

    /// The same with a code of its own.
    pub fn coded(code: i32, message: impl Display) -> Self {
        Self {
            code,
            report: said(message),
        }
    }

    /// A device's failure, as a message tells of it, or `other`.
    fn of_device(message: &str, other: impl FnOnce() -> String) -> Self {
        match device_failure(message) {
            Some((code, text, help)) => Self::with_help(code, text, help),
            None => Self::other(other()),
        }
    }

    /// The same with a code and help of its own.
    pub fn with_help(code: i32, message: impl Display, help: impl Display) -> Self {
        Self {
            code,
            report: miette!(
                help = terminal::shown(&help.to_string()),
                "{}",
                terminal::shown(&message.to_string())
            ),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let code = if error.blame() == Blame::System {
            exit::FILE_REFUSED
        } else {
            exit::USAGE
        };
        Self {
            code,
            report: said(error),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match &error {
            PlanError::Infeasible {
                planner,
                smallest,
                smallest_of_all,
                ..
            } => {
                let own = format!("try `--budget {}`", advised(*smallest));
                let help = match smallest_of_all < smallest {
                    true => format!(
                        "{own} with this planner, and `--planner auto --budget {}`",
                        advised(*smallest_of_all)
                    ),
                    false => own,
                };
                let help = match planner {
                    PlannerKind::None => format!("{help} (`none` is the plain run)"),
                    _ => help,
                };
                Self::with_help(exit::NO_PLAN, &error, help)
            }
            _ => Self::usage(error),
        }
    }
}

impl From<RunDirError> for Failure {
    fn from(error: RunDirError) -> Self {
        let code = match error.blame() {
            Blame::System => exit::FILE_REFUSED,
            Blame::Content => exit::USAGE,
        };
        Self {
            code,
            report: said(error),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match &error {
            DeviceError::Dtype { .. } => Self::with_help(
                exit::USAGE,
                &error,
                "name one of these in `dtype` of [train], or by `--dtype`; another device may have more",
            ),
            DeviceError::NotBuiltIn { .. } | DeviceError::Meter(_) => Self::usage(error),
        }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        match &error {
            RecordError::Infeasible { smallest, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!("try `--budget {}`", advised(*smallest)),
            ),
            RecordError::Choosing { needed, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!(
                    "run one step without a budget, or with `--budget {}`: what is chosen is kept, and smaller budgets \
                     work then",
                    advised(*needed)
                ),
            ),
            RecordError::OutOfMemory(_) | RecordError::OverBudget { .. } => {
                Self::with_help(exit::OUT_OF_MEMORY, error, SMALLER)
            }
            RecordError::Device(message) => Self::of_device(message, || error.to_string()),
            RecordError::TensorTooLarge { .. } => Self {
                code: exit::NO_PLAN,
                report: said(error),
            },
            RecordError::Reduce(ReduceError::Differ { .. }) => Self::usage(error),
            RecordError::Reduce(ReduceError::TimedOut { .. }) => {
                Self::with_help(exit::RANK_HANGS, &error, SLOW_RANK)
            }
            RecordError::NotFinite { .. } => Self::with_help(exit::NOT_FINITE, &error, FINITE),
            RecordError::PartlyUpdated { source, .. } => {
                let code = Self::from((**source).clone()).code;
                Self::with_help(code, &error, PARTLY)
            }
            _ => Self::other(error),
        }
    }
}

/// Share of a smallest budget that is added where it is advised: what a process holds besides its training, and what is
/// measured of it, differs a little from one to the next.
const LEEWAY: f64 = 0.005;

/// The smallest budget as it may be typed: a little more, rounded up to a tenth of its unit.
fn advised(smallest: Bytes) -> String {
    let bytes = smallest.0 as f64 * (1.0 + LEEWAY);
    let (unit, size) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .map(|(unit, bits)| (unit, f64::from(1 << bits)))
        .into_iter()
        .rfind(|(_, size)| bytes >= *size)
        .unwrap_or(("KiB", 1024.0));
    format!("{:.1}{unit}", (bytes / size * 10.0).ceil() / 10.0)
}

/// What to do where a loss or gradient is not finite.
const FINITE: &str = "try a smaller learning rate or `clip`, and with `f16` `--loss-scale dynamic` or `--dtype bf16`; \
                      `--on-nonfinite skip` leaves such updates out, unless each is made in the backward pass; what was saved is from \
                      before";

/// What to do where a rank does not answer.
const SLOW_RANK: &str = "`--resume RUN_DIR` continues from the last snapshot; `REKINDLE_RANK_TIMEOUT=30min` has ranks wait for each \
                         other so long";

/// What to do where a step failed after it had updated some parameters.
const PARTLY: &str = "`--resume RUN_DIR` continues from the last snapshot; with `--update after` a step that fails leaves nothing";

/// What to do where a device failed.
const FAULT: &str = "the device does no more work for this process: `--resume RUN_DIR` continues from the last snapshot, \
                     `--supervise` does so by itself; `nvidia-smi -q` and the system's log may say more";

/// What to do where a kernel does not compile.
const KERNEL: &str = "`rekindle devices` shows which NVRTC and which headers are used: both belong to one CUDA version, which is \
                      no newer than the driver's (docs/cuda.md)";

/// The exit codes after which a supervisor goes on with another process. To be set once, where there is one.
pub static SUPERVISOR_GOES_ON: OnceLock<&'static [i32]> = OnceLock::new();

/// Whether the outcome is not this process's to tell: after this exit code its supervisor goes on with another.
pub fn supervisor_goes_on(code: i32) -> bool {
    let codes = SUPERVISOR_GOES_ON.get();
    codes.is_some_and(|codes| codes.contains(&code))
}

/// A device's failure, as a message tells of it: exit code, sentence, and what to do.
fn device_failure(message: &str) -> Option<(i32, String, &'static str)> {
    if speaks_of_memory(message) {
        let cause = innermost_cause(message);
        let text = format!("the device ran out of memory ({cause})");
        Some((exit::OUT_OF_MEMORY, text, SMALLER))
    } else if let Some(said) = refused_kernel(message) {
        let text = format!("the device failed: a kernel does not compile: {said}");
        Some((exit::OTHER, text, KERNEL))
    } else {
        let fault = device_fault(message)?;
        let code = match supervisor_goes_on(exit::DEVICE_FAILED) {
            true => exit::DEVICE_FAILED,
            false => exit::OTHER,
        };
        Some((code, format!("the device failed: {fault}"), FAULT))
    }
}
/// What to do where a weight is larger than a buffer may be.
const SMALLER_LAYER: &str =
    "no plan and no budget changes that: try `--dtype f16`, a smaller layer, or another device";

/// What to do where an activation is.
const SMALLER_PARTS: &str = "no plan and no budget changes that: a smaller `--batch` does, and so does `accumulate` in \
                             `[train]`, which trains the same batch in parts";

/// What to do where the system starts no thread.
const THREADS: &str = "limits of the address space (`ulimit -v`) or of the number of processes (`ulimit -u`) may be too low; \
                       `RAYON_NUM_THREADS=1` needs fewer";

/// What to do where memory runs out.
const SMALLER: &str = "a smaller `--batch`, more `--segments` or a `--budget` below what is free may do; \
                       `--resume RUN_DIR` continues from the last snapshot, `--supervise` does so by itself";

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Data(error) => error.into(),
            RunError::Plan(error) => error.into(),
            RunError::NotEnough { free, .. } => Self::with_help(
                exit::NO_PLAN,
                &error,
                format!(
                    "`--budget {}` plans for less; so do a smaller `--batch` and more `--segments`",
                    advised(Bytes(free.0 / 10 * 9))
                ),
            ),
            RunError::TensorTooLarge { ref tensor, .. } => {
                let help = match tensor.role {
                    TensorRole::Weight { .. } => SMALLER_LAYER,
                    TensorRole::Input | TensorRole::Output { .. } => SMALLER_PARTS,
                };
                Self::with_help(exit::NO_PLAN, error, help)
            }
            RunError::OutOfMemory(_) | RunError::Train(TrainError::Short(_)) => {
                Self::with_help(exit::OUT_OF_MEMORY, error, SMALLER)
            }
            RunError::OverBudget { .. } => Self {
                code: exit::NO_PLAN,
                report: said(error),
            },
            RunError::Device(error) => error.into(),
            RunError::Shape(_)
            | RunError::Schedule(_)
            | RunError::OtherModel(_)
            | RunError::Update(_)
            | RunError::LossChunks(_)
            | RunError::Ranks(_)
            | RunError::Train(TrainError::Update(_)) => Self::usage(error),
            RunError::RunDir(error) => error.into(),
            RunError::Weights(WeightsError::Refused { path, source }) => Self::file(&path, &source),
            RunError::Weights(_) => Self::usage(error),
            RunError::Train(TrainError::Recorded(error)) | RunError::Recorded(error) => {
                error.into()
            }
            RunError::NonFinite { .. }
            | RunError::Stage {
                source: StepError::NotFinite { .. },
                ..
            } => Self::with_help(exit::NOT_FINITE, error, FINITE),
            RunError::Train(TrainError::Device(message))
            | RunError::Train(TrainError::Step(StepError::Refused { refusal: message })) => {
                RecordError::Device(message).into()
            }
            RunError::OtherRank => Self::coded(exit::OTHER_RANK, error),
            RunError::Build(_) | RunError::Train(_) | RunError::Stage { .. } => Self::other(error),
        }
    }
}

/// What a run's largest stages hold, and the step that runs, for the moment when nothing can be allocated any more.
static HOLDERS: OnceLock<String> = OnceLock::new();
static STEP: AtomicUsize = AtomicUsize::new(0);

/// Notes what a run's plan holds, and that step 1, or the one after a snapshot, is next.
pub fn note_plan(planned: &Planned) {
    let holders = holders(planned).into_iter();
    let holders = holders.map(|(name, bytes)| format!("`{name}` {bytes}"));
    // The first plan's is as good as any.
    let _ = HOLDERS.set(holders.collect::<Vec<_>>().join(", "));
    note_step(1);
}

/// Notes the step that runs.
pub fn note_step(step: usize) {
    STEP.store(step, Relaxed);
}

/// Ends the process with a code of its own when memory runs out: the processor's by the allocator's word, a GPU's by
/// the panic of its queue, which cannot be caught and gone on from.
pub fn report_exhausted_memory() {
    rekindle_alloc::on_exhausted(|bytes| {
        // Nothing may be allocated here, so the line is written piece by piece.
        let mut stderr = std::io::stderr().lock();
        let (step, in_use) = (STEP.load(Relaxed), rekindle_alloc::in_use());
        let _ = write!(
            stderr,
            "rekindle: out of memory in step {step}: could not allocate {bytes} bytes with {in_use} in use"
        );
        if let Some(holders) = HOLDERS.get() {
            let _ = write!(stderr, ". The stages that hold the most: {holders}");
        }
        let _ = writeln!(stderr, "; {SMALLER}");
        std::process::exit(exit::OUT_OF_MEMORY);
    });
}

/// Refuses to start where the address space has a limit that leaves too little for stacks. Beyond it neither the main
/// stack can grow (SIGSEGV) nor can the C library register what a thread frees at its end (SIGABRT): no code of ours
/// runs then that could say so.
pub fn check_address_space() -> Outcome {
    /// For the main stack, which may grow to 8 MiB, and what libraries take as they start.
    const PROCESS: u64 = 24 << 20;
    /// For a thread of the pool: its stack and what it allocates first.
    const THREAD: u64 = 3 << 20;
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let threads = asked
        .and_then(|asked| asked.parse().ok())
        .filter(|threads| *threads > 0);
    let threads = threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |all| all.get() as u64));
    let needed = Bytes(PROCESS + threads.saturating_mul(THREAD));
    match address_space_left() {
        Some(left) if left < needed => Err(Failure::with_help(
            exit::OUT_OF_MEMORY,
            format_args!(
                "the limit of the address space leaves {left} of memory, and {threads} threads need {needed} to start"
            ),
            "raise the limit (`ulimit -v`); `RAYON_NUM_THREADS=1` needs less",
        )),
        _ => Ok(()),
    }
}

/// Whether a panic's message is that of a thread that the system did not start: both the standard library's and rayon's hold the
/// system's error.
fn speaks_of_threads(message: &str) -> bool {
    (message.contains("ThreadPoolBuildError") || message.contains("spawn thread"))
        && message.contains("kind: WouldBlock")
}

/// Turns a panic into one paragraph: it is a bug of ours, and the user should be told so in words.
pub fn report_panics_as_bugs() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::env::var("RUST_BACKTRACE").is_ok_and(|value| value != "0") {
            default(panic);
        }
        let message = panic.payload_as_str().unwrap_or("no message");
        // Kernels that were compiled until now are whole.
        seal_kernels();
        if let Some((code, text, help)) = device_failure(message) {
            complain!("rekindle: {text}; {help}");
            std::process::exit(code);
        }
        let cause = innermost_cause(message);
        if speaks_of_threads(message) {
            complain!("rekindle: the system could not start a thread ({cause}); {THREADS}");
            std::process::exit(exit::OTHER);
        }
        let place = panic
            .location()
            .map(|place| format!(" at {}:{}", place.file(), place.line()))
            .unwrap_or_default();
        complain!(
            "rekindle: this is a bug, please report it with the command that you ran ({cause}{place}; \
             RUST_BACKTRACE=1 shows more)"
        );
        std::process::exit(exit::OTHER);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle::size::Size;

    #[test]
    fn advised_budgets_can_be_typed_and_are_no_smaller() {
        for bytes in [1, 1000, 1024, 26_933_165, 1 << 30, (1 << 30) - 1, 13 << 40] {
            let typed = advised(Bytes(bytes));
            let Ok(Size::Bytes(read)) = typed.parse() else {
                panic!("{typed}");
            };
            assert!(read.0 >= bytes, "{typed} for {bytes}");
            let most = (bytes as f64 * 1.2).max(1024.0);
            assert!(read.0 as f64 <= most, "{typed} for {bytes}");
        }
        assert_eq!(advised(Bytes(26_933_165)), "25.9MiB");
    }
}
