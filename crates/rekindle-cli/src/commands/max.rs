//! `rekindle max`: the largest batch, depth or width that fits, by planning.
//!
//! Sizes are found on chains that are counted from shapes, which runs nothing. Where the answer is small enough to be
//! measured in passing, its stages are measured in a process of its own, planned, and the count corrected, until what
//! was measured fits.

use std::ffi::OsString;

use rekindle::{
    device::{DeviceId, DeviceInfo},
    profile::Measured,
    train::{
        record::RunRecord,
        settings::{Clip, TrainSettings},
    },
};
use rekindle_plan::{Bytes, Stage};

use super::train;
use crate::{
    args::{Lever, MaxArgs},
    child::Children,
    config::{self, Overrides},
    exit,
    failure::{Failure, Outcome},
    infeasible::Infeasible,
    max::{
        needs::{Way, updated_in_backward},
        record::{Confirmed, Difference, Largest, MAX_FORMAT, MaxRecord, Split},
        search::{corrected, largest},
        subject::Subject,
    },
    output,
    plan_file::PlanFile,
    stop,
};

/// Above so many bytes nothing is measured without being asked for: parameters alone would take long to draw.
const MEASURED_BYTES: Bytes = Bytes(2 << 30);

/// Above so many seconds, as counted for two cores, neither.
const MEASURED_SECONDS: f64 = 20.0;

/// Forwards that measuring a stage comes to: four runs or more of each pass, in two ways.
const FORWARDS_TO_MEASURE: f64 = 32.0;

/// Share of a budget that is left when sizes are measured: what a process holds beside its training differs a little
/// from one to the next. Seen: 0.04% of 40 MiB.
const LEFT: f64 = 1e-3;

/// Steps of a run that confirms: the optimizer's state appears in the first, so that the peak comes in the second.
const CONFIRMING_STEPS: usize = 2;

/// Searches, and shows what was found.
pub fn run(args: &MaxArgs) -> Outcome {
    check_arguments(args)?;
    let config = config::load(&args.config.config, &Overrides::from(&args.config.replace))?;
    let device = train::device(args.measure.device, &config)?.resolve()?;
    let budget = match args.budget {
        Some(size) => train::bytes_of(size, &device)?,
        None => all_there_is(&device)?,
    };
    let samples = match args.vary {
        Lever::Batch => config.open_data().ok().map(|data| data.train.len()),
        Lever::Depth | Lever::Width => None,
    };
    let subject = Subject::new(&config, args.vary, device.device, samples)?;
    let children = Children::new()?;
    let measurer = Measurer {
        children: &children,
        args,
        device: device.device,
        subject: &subject,
    };

    let mut record = MaxRecord {
        format: MAX_FORMAT.into(),
        config: args.config.config.display().to_string(),
        device: device.device.to_string(),
        budget_bytes: budget,
        budget_asked: args.budget.is_some(),
        count: config.count(args.count),
        varied: subject.varied.clone(),
        batch: (args.vary != Lever::Batch).then_some(config.training.batch),
        measured: false,
        not_measured_because: None,
        largest: Vec::new(),
        with_update_in_backward: None,
        lever: Difference::NothingFits,
        confirmed: None,
    };
    let search = Search {
        subject: &subject,
        budget,
    };
    record.largest = search.counted()?;
    if goes_alone(&config.training) {
        record.with_update_in_backward = search.largest(|chain| {
            let chain = updated_in_backward(chain);
            Ok(Way::Plan.need(&chain)?.min(Way::Plain.need(&chain)?))
        })?;
    }
    record.not_measured_because = search.reason_not_to_measure(args, &record)?;
    stop::in_order("stopping");
    if record.not_measured_because.is_none() && !record.largest.is_empty() {
        match search.measured(&measurer, &record) {
            Ok(largest) => {
                record.largest = largest;
                record.measured = true;
            }
            Err(failure) if failure.code == exit::INTERRUPTED => return Err(failure),
            Err(failure) => record.not_measured_because = Some(failure.report.to_string()),
        }
    }
    record.judge();
    let confirmed = match record.of(Way::Plan) {
        Some(answer) if args.confirm => measurer.confirm(answer.size, budget).map(Some),
        _ => Ok(None),
    };
    let unconfirmed = match confirmed {
        Ok(confirmed) => {
            record.confirmed = confirmed;
            None
        }
        Err(failure) => Some(failure),
    };

    if args.json {
        output::json(&record)?;
    } else {
        output::text(&record.text())?;
    }
    if let Some(failure) = unconfirmed {
        return Err(failure);
    }
    match record.lever {
        Difference::NothingFits => Err(Failure {
            code: exit::NO_PLAN,
            report: miette::miette!("not even {} 1 fits {budget}", args.vary.name()),
        }),
        _ => Ok(()),
    }
}

/// What is searched for cannot be given.
fn check_arguments(args: &MaxArgs) -> Outcome {
    let given = match args.vary {
        Lever::Batch => args.config.replace.batch,
        Lever::Depth => args.config.replace.depth,
        Lever::Width => args.config.replace.width,
    };
    let name = args.vary.name();
    match given {
        Some(_) => Err(Failure::usage(format!(
            "`--vary {name}` finds the {name}: leave `--{name}` out"
        ))),
        None => Ok(()),
    }
}

/// Whether a gradient could go before all others are there.
fn goes_alone(settings: &TrainSettings) -> bool {
    let clipped_together = matches!(settings.clip, Some(Clip::GlobalNorm { .. }));
    !clipped_together && settings.accumulate <= 1
}

fn all_there_is(device: &DeviceInfo) -> Result<Bytes, Failure> {
    let bytes = match device.device {
        DeviceId::Cpu => device.free_bytes.or(device.total_bytes),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => device.total_bytes,
    };
    bytes.ok_or_else(|| {
        Failure::usage(format!(
            "nothing says how much memory {} has: give a `--budget`",
            device.device
        ))
    })
}

struct Search<'a> {
    subject: &'a Subject<'a>,
    budget: Bytes,
}

impl Search<'_> {
    /// The largest size whose counted chain needs no more than the budget.
    fn largest(
        &self,
        need: impl Fn(&Measured) -> Result<Bytes, Failure>,
    ) -> Result<Option<usize>, Failure> {
        let unit = self.subject.unit();
        let found = largest(self.subject.varied.limit / unit, self.budget, |units| {
            need(&self.subject.counted(units * unit)?)
        })?;
        Ok(found.map(|units| units * unit))
    }

    /// The largest sizes of all ways, as counted.
    fn counted(&self) -> Result<Vec<Largest>, Failure> {
        let mut found = Vec::new();
        for way in Way::ALL {
            if let Some(size) = self.largest(|chain| Ok(way.need(chain)?))? {
                found.push(self.counted_at(way, size)?);
            }
        }
        Ok(found)
    }

    fn counted_at(&self, way: Way, size: usize) -> Result<Largest, Failure> {
        let chain = self.subject.counted(size)?;
        let plain = chain.plain()?;
        // What was measured to fit may be counted not to.
        let budget = self.budget.max(way.need(&chain)?);
        let plan = way.plan(&chain, budget)?;
        let split = Split::new(&chain, &plan.schedule)?;
        Ok(Largest {
            way,
            size,
            segments: plan.schedule.segments().map(|segments| segments.len()),
            predicted_peak_bytes: plan.peak,
            overhead: plan.step.0 / plain.step.0 - 1.0,
            fixed_bytes: split.fixed,
            gradient_bytes: split.gradients,
            activation_bytes: split.activations,
        })
    }

    /// Why the answers are left as they were counted, if they are.
    fn reason_not_to_measure(
        &self,
        args: &MaxArgs,
        record: &MaxRecord,
    ) -> Result<Option<String>, Failure> {
        if args.counted {
            return Ok(Some("`--counted` asks for that".into()));
        }
        let Some(answer) = record.largest.iter().max_by_key(|largest| largest.size) else {
            return Ok(None);
        };
        if answer.predicted_peak_bytes > MEASURED_BYTES {
            return Ok(Some(format!(
                "it takes more than {MEASURED_BYTES}; `--confirm` runs it"
            )));
        }
        let chain = self.subject.counted(answer.size)?.chain;
        let seconds = seconds_to_measure(&chain.stages);
        Ok((seconds > MEASURED_SECONDS).then(|| {
            format!("that would take about {seconds:.0} s on two cores; `--confirm` runs it")
        }))
    }

    /// The largest sizes of all ways that were counted to have one, as measured.
    fn measured(
        &self,
        measurer: &Measurer<'_>,
        record: &MaxRecord,
    ) -> Result<Vec<Largest>, Failure> {
        let unit = self.subject.unit();
        let mut found = Vec::new();
        for counted in &record.largest {
            let way = counted.way;
            let room = Bytes((self.budget.0 as f64 * (1.0 - LEFT)) as u64);
            let size = corrected(
                self.subject.varied.limit / unit,
                room,
                counted.size / unit,
                |units| Ok(way.need(&self.subject.counted(units * unit)?)?),
                |units| measurer.need(way, units * unit),
            )?;
            if let Some(units) = size {
                let at = self.counted_at(way, units * unit)?;
                found.push(measurer.measured_at(at, self.budget)?);
            }
        }
        Ok(found)
    }
}

/// Equal stages are measured once.
fn seconds_to_measure(stages: &[Stage]) -> f64 {
    let mut distinct: Vec<&Stage> = Vec::new();
    let mut seconds = 0.0;
    for stage in stages {
        seconds += stage.forward_s.0;
        let known = distinct.iter().any(|known| {
            (known.forward_s, known.saved_bytes) == (stage.forward_s, stage.saved_bytes)
        });
        if !known {
            distinct.push(stage);
            seconds += FORWARDS_TO_MEASURE * stage.forward_s.0;
        }
    }
    seconds
}

/// Asks other processes of this program.
struct Measurer<'a> {
    children: &'a Children,
    args: &'a MaxArgs,
    device: DeviceId,
    subject: &'a Subject<'a>,
}

impl Measurer<'_> {
    fn arguments(&self, command: &str, size: usize) -> Vec<OsString> {
        let args = self.args;
        let mut arguments = args.config.for_child(command, self.device, args.count);
        arguments.extend(self.subject.arguments(size));
        arguments
    }

    fn plan(&self, way: Way, size: usize, budget: Option<Bytes>) -> Vec<OsString> {
        let mut arguments = self.arguments("plan", size);
        arguments.extend(["--planner".into(), way.planner().to_string().into()]);
        if let Some(budget) = budget {
            arguments.extend(["--budget".into(), format!("{}B", budget.0).into()]);
        }
        arguments
    }

    /// The smallest budget that a size fits, by its measured stages.
    fn need(&self, way: Way, size: usize) -> Result<Bytes, Failure> {
        note!("measuring {} {size}", self.subject.varied.lever.name());
        // As it would run: `train` plans in another process, and holds a little more itself.
        let mut arguments = self.arguments("train", size);
        arguments.extend(["--planner".into(), way.planner().to_string().into()]);
        arguments.extend([
            "--budget".into(),
            format!("{}B", Infeasible::NO_ROOM.0).into(),
        ]);
        if self.args.measure.fresh {
            arguments.push("--fresh".into());
        }
        let ended = self.children.run(&arguments)?;
        match serde_json::from_str::<Infeasible>(&ended.stdout) {
            Ok(answer) => Ok(answer.smallest_budget_bytes),
            Err(_) => Err(Failure::other(ended.complaint())),
        }
    }

    /// What was counted, with what its measured stages say instead.
    fn measured_at(&self, counted: Largest, budget: Bytes) -> Result<Largest, Failure> {
        let (way, size) = (counted.way, counted.size);
        let planned = |way, budget| -> Result<PlanFile, Failure> {
            let ended = self.children.run(&self.plan(way, size, budget))?;
            serde_json::from_str(&ended.stdout).map_err(|_| Failure::other(ended.complaint()))
        };
        let plan = planned(way, Some(budget))?;
        let plain = planned(Way::Plain, None)?;
        Ok(Largest {
            segments: plan.segments.as_ref().map(Vec::len),
            predicted_peak_bytes: plan.predicted_peak_bytes,
            overhead: plan.predicted_step_s.0 / plain.predicted_step_s.0 - 1.0,
            ..counted
        })
    }

    /// Trains a size for a moment.
    fn confirm(&self, size: usize, budget: Bytes) -> Result<Confirmed, Failure> {
        note!("running {} {size}", self.subject.varied.lever.name());
        let mut arguments = self.arguments("train", size);
        arguments.extend(["--budget".into(), format!("{}B", budget.0).into()]);
        arguments.extend(["--steps".into(), CONFIRMING_STEPS.to_string().into()]);
        let ended = self.children.run(&arguments)?;
        if ended.code() != exit::DONE {
            return Err(Failure {
                code: ended.code(),
                report: miette::miette!(
                    "{} {size} was not confirmed: {}",
                    self.subject.varied.lever.name(),
                    ended.complaint()
                ),
            });
        }
        let run: RunRecord = serde_json::from_str(&ended.stdout).map_err(Failure::other)?;
        Ok(Confirmed {
            size,
            predicted_peak_bytes: run.predicted_peak_bytes,
            measured_peak_bytes: run.measured_peak_bytes,
            measured_step_s: run.measured_step_s,
            fits: run.measured_peak_bytes <= budget,
        })
    }
}
