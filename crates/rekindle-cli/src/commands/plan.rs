//! `rekindle plan`: the fastest schedule that fits, explained.

use std::fmt::Write;

use rekindle::{
    profile::{Measured, with_reserve},
    train::session::Job,
};
use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Seconds, frontier, plan,
    simulate,
};
use serde_json::json;

use super::{profile, train};
use crate::{
    args::PlanArgs,
    config::{self, Overrides},
    device::DeviceChoice,
    failure::{Failure, Outcome},
    infeasible::Infeasible,
    output,
    plan_file::PlanFile,
    table,
};

/// Format tag of the document that `--frontier --json` writes.
const FRONTIER_FORMAT: &str = "rekindle-frontier/1";

/// Rows of a frontier that a person looks at.
const FRONTIER_ROWS: usize = 24;

/// Plans.
pub fn run(args: &PlanArgs) -> Outcome {
    let planner = train::planner(args.planner, args.segments);
    let request = PlanRequest {
        planner,
        budget: budget(args)?,
        segments: args.segments,
        slots: args.slots,
    };
    let subject = Subject::new(args)?;
    if args.frontier {
        return frontier_of(args, &subject, planner);
    }
    let plan = match subject.plan(&request) {
        Ok(plan) => plan,
        Err(error) => {
            if args.json {
                Infeasible::report(&error)?;
            }
            return Err(error.into());
        }
    };
    let chain = subject.under(&plan);
    let file = PlanFile::new(&plan, subject.chain(), request.budget);
    if let Some(path) = &args.output {
        let text = serde_json::to_string_pretty(&file).map_err(Failure::other)?;
        output::file(path, &text)?;
    }
    if args.json {
        return output::json(&file);
    }
    let plain = subject.plain()?;
    let mut text = String::new();
    let _ = writeln!(text, "planner    {} ({})", plan.planner, plan.source);
    if let Some(budget) = request.budget {
        let _ = writeln!(text, "budget     {budget}");
    }
    let _ = writeln!(text, "peak       {} (plain run {})", plan.peak, plain.peak);
    let _ = writeln!(
        text,
        "step       {} ({:.2}x the plain run's {})",
        plan.step,
        plan.step.0 / plain.step.0,
        plain.step
    );
    let _ = writeln!(text, "schedule   {}", shape(&plan));
    if args.explain {
        explain(&chain, &plan, &mut text)?;
    }
    output::text(&text)
}

/// What is planned: a model that was measured, or a chain from a file.
struct Subject {
    measured: Measured,
    /// A chain from a file is taken at its word: it says nothing of what graphs hold, and nothing is held back.
    from_file: bool,
}

impl Subject {
    fn new(args: &PlanArgs) -> Result<Self, Failure> {
        if let Some(path) = &args.chain {
            let text =
                std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            let chain = Chain::from_json(&text)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            return Ok(Self {
                measured: Measured {
                    chain,
                    holds: Vec::new(),
                    sweep_s: Seconds::ZERO,
                },
                from_file: true,
            });
        }
        let Some(config) = &args.config else {
            return Err(Failure::usage("name a CONFIG, or a chain by --chain FILE"));
        };
        let config = config::load(config, &Overrides::from(&args.replace))?;
        let device = args.measure.device.unwrap_or_default().resolve()?;
        let count = config.count(args.count);
        let measured =
            profile::measure(&args.measure, &config, &device, |job| Job { count, ..job })?;
        Ok(Self {
            measured,
            from_file: false,
        })
    }

    fn chain(&self) -> &Chain {
        &self.measured.chain
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        if self.from_file {
            plan(self.chain(), request)
        } else {
            self.measured.plan(request)
        }
    }

    fn frontier(&self, planner: PlannerKind, slots: usize) -> Result<Vec<Plan>, PlanError> {
        if self.from_file {
            frontier(self.chain(), planner, slots)
        } else {
            self.measured.frontier(planner, slots)
        }
    }

    /// The smallest budget that a plan of this peak is made for.
    fn budget_for(&self, peak: Bytes) -> Bytes {
        if self.from_file {
            peak
        } else {
            with_reserve(peak)
        }
    }

    /// The run without recomputing.
    fn plain(&self) -> Result<Plan, PlanError> {
        self.plan(&PlanRequest {
            planner: PlannerKind::None,
            ..PlanRequest::default()
        })
    }

    /// The chain as a plan meets it.
    fn under(&self, plan: &Plan) -> Chain {
        if self.from_file {
            self.chain().clone()
        } else {
            self.measured.under(&plan.schedule)
        }
    }
}

fn budget(args: &PlanArgs) -> Result<Option<Bytes>, Failure> {
    let Some(size) = args.budget else {
        return Ok(None);
    };
    let device = match args.measure.device {
        None if args.chain.is_some() => None,
        choice => choice.unwrap_or(DeviceChoice::Auto).resolve()?.total_bytes,
    };
    let budget = size.of(device).map_err(Failure::usage)?;
    match device {
        Some(all) if budget > all => Err(Failure::usage(format!(
            "a budget of {budget} is more than the device has, which is {all}"
        ))),
        _ => Ok(Some(budget)),
    }
}

fn shape(plan: &Plan) -> String {
    let counts = plan.schedule.forward_counts();
    let again = counts.iter().filter(|&&count| count > 1).count();
    let most = counts.iter().max().copied().unwrap_or(0);
    match plan.schedule.segments() {
        Some(segments) if segments.len() > 1 => format!(
            "{} segments of {} stages; {again} stages run forward twice",
            segments.len(),
            counts.len()
        ),
        Some(_) => format!("all {} stages kept, nothing recomputed", counts.len()),
        None => format!(
            "nested: {again} of {} stages run again, up to {most} times",
            counts.len()
        ),
    }
}

fn frontier_of(args: &PlanArgs, subject: &Subject, planner: PlannerKind) -> Outcome {
    let points = subject.frontier(planner, args.slots)?;
    let plain = subject.plain()?;
    if args.json {
        let points: Vec<_> = points
            .iter()
            .map(|plan| {
                json!({
                    "budget_bytes": subject.budget_for(plan.peak), "predicted_peak_bytes": plan.peak,
                    "predicted_step_s": plan.step, "planner": plan.planner,
                    "segments": plan.schedule.segments().map(|segments| segments.len()),
                })
            })
            .collect();
        return output::json(&json!({
            "format": FRONTIER_FORMAT, "planner": planner, "plain_peak_bytes": plain.peak, "plain_step_s": plain.step, "points": points,
        }));
    }
    let mut table = table::table(
        ["budget", "peak", "of plain", "step", "x plain", "schedule"],
        0..5,
    );
    let shown = spread(points.len());
    for plan in shown.iter().map(|&index| &points[index]) {
        table.add_row([
            subject.budget_for(plan.peak).to_string(),
            plan.peak.to_string(),
            format!("{:.0}%", 100.0 * plan.peak.0 as f64 / plain.peak.0 as f64),
            plan.step.to_string(),
            format!("{:.2}x", plan.step.0 / plain.step.0),
            match plan.schedule.segments() {
                Some(segments) => several(segments.len(), "segment"),
                None => "nested".into(),
            },
        ]);
    }
    let rest = if shown.len() < points.len() {
        format!(
            "\n{} of {} points; `--json` has all of them.",
            shown.len(),
            points.len()
        )
    } else {
        String::new()
    };
    output::text(&format!("{table}\n{rest}\n"))
}

/// `1 stage`, `2 stages`.
fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The indices of at most [`FRONTIER_ROWS`] of `count` points, evenly spread, both ends among them.
fn spread(count: usize) -> Vec<usize> {
    if count <= FRONTIER_ROWS {
        return (0..count).collect();
    }
    (0..FRONTIER_ROWS)
        .map(|row| row * (count - 1) / (FRONTIER_ROWS - 1))
        .collect()
}

/// What is kept, from when to when, how often stages run, and what the peak is made of.
fn explain(chain: &Chain, plan: &Plan, text: &mut String) -> Outcome {
    let simulation = simulate(chain, &plan.schedule).map_err(Failure::usage)?;
    let actions = plan.schedule.actions();
    let parts = simulation.at_peak;
    let _ = writeln!(
        text,
        "\nThe peak of {} comes at action {} of {}, `{}`:",
        simulation.peak,
        simulation.peak_action + 1,
        actions.len(),
        actions[simulation.peak_action]
    );
    for (name, bytes) in [
        ("parameters, data, optimizer state", parts.fixed),
        ("input", parts.input),
        ("kept boundaries", parts.activations),
        ("recorded graphs", parts.graphs),
        ("gradients of activations", parts.gradients),
        ("gradients of parameters", parts.parameter_gradients),
        ("temporaries of the action", parts.temporary),
    ] {
        if bytes.0 > 0 {
            let _ = writeln!(text, "  {name:<34} {:>12}", bytes.to_string());
        }
    }
    let _ = writeln!(
        text,
        "\nKept boundaries (the input of a stage, held apart from any graph):"
    );
    let mut table = table::table(["before stage", "bytes", "from action", "to action"], 1..4);
    for (stage, from, to) in boundaries(actions) {
        table.add_row([
            format!("{stage} {}", chain.stages[stage].name),
            chain.activation_bytes(stage).to_string(),
            (from + 1).to_string(),
            (to + 1).to_string(),
        ]);
    }
    let _ = writeln!(text, "{table}");
    let mut times: Vec<(usize, usize)> = Vec::new();
    for count in &simulation.forward_counts {
        match times.iter_mut().find(|(times, _)| times == count) {
            Some((_, stages)) => *stages += 1,
            None => times.push((*count, 1)),
        }
    }
    times.sort_unstable();
    let times: Vec<String> = times
        .iter()
        .map(|(times, stages)| format!("{} {times}x", several(*stages, "stage")))
        .collect();
    let _ = writeln!(text, "\nForwards: {}.", times.join(", "));
    let balanced = actions
        .iter()
        .filter(|action| matches!(action, Action::ForwardTracked { alternative, .. } if *alternative > 0))
        .count();
    if balanced > 0 {
        let _ = writeln!(
            text,
            "{balanced} stages are recorded by burn's balanced strategy, which keeps less."
        );
    }
    Ok(())
}

/// Inputs that `forward_keep` leaves standing: the stage, the action that first keeps it, the backward that frees it.
fn boundaries(actions: &[Action]) -> Vec<(usize, usize, usize)> {
    let mut found: Vec<(usize, usize, usize)> = Vec::new();
    for (from, action) in actions.iter().enumerate() {
        let Action::ForwardKeep(stage) = action else {
            continue;
        };
        let freed = actions[from..]
            .iter()
            .position(|later| matches!(later, Action::Backward(freed) if freed == stage));
        if let Some(after) = freed
            && !found
                .iter()
                .any(|(known, _, to)| *known == stage.0 && *to == from + after)
        {
            found.push((stage.0, from, from + after));
        }
    }
    found
}
