//! `rekindle plan`: the fastest schedule that fits, explained.

use std::{fmt::Write, path::Path};

use rekindle_plan::{Bytes, PlanError, Planner, Request};
use rekindle_train::{
    device::DeviceInfo,
    ranks::Ranks,
    session::{Frontier, Job, MeasuredStep, Planned, RunError, ScheduleRequest},
};

use super::{explain, plan_graph, profile, train};
use crate::{
    args::PlanArgs,
    config::{self, Config, OffloadChoice, Overrides},
    failure::{Failure, Outcome},
    infeasible::Infeasible,
    input, network, output,
    plan_file::PlanFile,
    ranks, summary,
    table::{self, several, thousands},
    terminal,
};

/// Maximum number of rows of a frontier in the table.
const FRONTIER_ROWS: usize = 24;

/// Plans.
pub fn run(args: &PlanArgs) -> Outcome {
    if let Some(path) = &args.chain {
        return of_chain(args, path);
    }
    if let Some(path) = &args.graph {
        return plan_graph::of_graph(path, &of_file(args)?, args.answer.json);
    }
    let world = ranks::world()?;
    let ranks = ranks::settled(&world, ranks::planned_for(&world, args.ranks, args.link));
    let outcome = ranks.and_then(|ranks| of_config(args, &ranks));
    ranks::end(world, outcome)
}

/// The request to measure and plan.
struct Asked {
    config: Config,
    device: DeviceInfo,
    schedule: ScheduleRequest,
}

fn asked(args: &PlanArgs, ranks: &Ranks) -> Result<Asked, Failure> {
    let Some(config) = &args.config else {
        return Err(Failure::usage("name a CONFIG, or a chain by --chain FILE"));
    };
    let mut config = config::load(config, &Overrides::from(&args.replace))?;
    let local = ranks.local();
    let device = train::device(args.measure.device, &config).of_rank(local)?;
    let device = device.resolve()?.shared_by(local.ranks);
    config.run = config.run.replaced(&args.schedule, None);
    let schedule = train::request(&config.run, &device)?;
    Ok(Asked {
        config,
        device,
        schedule,
    })
}

fn of_config(args: &PlanArgs, ranks: &Ranks) -> Outcome {
    let Asked {
        config,
        device,
        schedule,
    } = ranks::settled(ranks, asked(args, ranks))?;
    let count = config.count(args.measure.count);
    let all = Request {
        planner: args.schedule.planner.unwrap_or_default(),
        ..Request::default()
    };
    profile::measured(
        &args.measure,
        &config,
        &device,
        |job| Job {
            count,
            schedule,
            ranks: ranks.clone(),
            ..job
        },
        |job, mut subject| {
            let speaks = ranks.rank() == 0;
            let outcome = match args.frontier {
                true => subject
                    .frontier(job, all)
                    .map_err(Failure::from)
                    .and_then(|points| match speaks {
                        true => frontier_of(args, &points),
                        false => Ok(()),
                    }),
                false => match subject.plan(job, &job.schedule) {
                    planned if !speaks => planned.map(drop).map_err(Failure::from),
                    planned => shown(args, planned, Some(job)),
                },
            };
            ranks::settled(ranks, outcome)
        },
    )
}

/// The request for a step from a file.
fn of_file(args: &PlanArgs) -> Result<Request, Failure> {
    Ok(Request {
        planner: Planner::asked(args.schedule.planner, args.schedule.segments)?,
        budget: budget(args)?,
        ..Request::default()
    })
}

/// Plans for a measured step from a file. The budget is used as it is, without a reserve.
fn of_chain(args: &PlanArgs, path: &Path) -> Outcome {
    let request = of_file(args)?;
    let text = input::text(path)?;
    let step = MeasuredStep::from_json(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let step = match (args.measure.offload, args.measure.host_budget) {
        (Some(OffloadChoice::Never), _) => step.with_host(None),
        (_, Some(size)) => step.with_host(Some(train::of_host(size)?)),
        _ => step,
    };
    if args.frontier {
        return frontier_of(args, &step.frontier(request)?);
    }
    shown(args, step.plan(&request), None)
}

fn shown(args: &PlanArgs, planned: Result<Planned, RunError>, job: Option<&Job<'_>>) -> Outcome {
    match planned {
        Ok(planned) => show(args, &planned, job.map_or(0, |job| job.part().len())),
        Err(RunError::Plan(error)) => Err(refused(args, error)),
        Err(error) => Err(error.into()),
    }
}

fn refused(args: &PlanArgs, error: PlanError) -> Failure {
    let reported = if args.answer.json {
        Infeasible::report(&error)
    } else {
        Ok(())
    };
    reported.err().unwrap_or_else(|| error.into())
}

/// Shows a plan; `batch` is this rank's if the plan is for several ranks.
fn show(args: &PlanArgs, plan: &Planned, batch: usize) -> Outcome {
    let file = PlanFile::new(plan, batch);
    if let Some(path) = &args.output {
        output::json_file(path, &file)?;
    }
    if args.answer.json {
        return output::json(&file);
    }
    let mut text = String::new();
    let _ = writeln!(text, "planner    {}", plan.planner);
    if let Some(budget) = plan.budget {
        let _ = writeln!(text, "budget     {budget}");
    }
    let _ = writeln!(
        text,
        "peak       {} (plain run {})",
        plan.peak, plan.plain_peak
    );
    let _ = writeln!(
        text,
        "step       {} ({:.2}x the plain run's {})",
        plan.step,
        plan.step.0 / plan.plain_step.0,
        plan.plain_step
    );
    let mut lines = Vec::new();
    if let Some(ranks) = &file.ranks {
        lines.extend([
            format!(
                "ranks      {}, each with {} of the batch at most; link {}",
                ranks.exchange.ring.ranks,
                several(batch, "sample"),
                network::link(&ranks.exchange)
            ),
            format!("exchange   {}", network::exchange(&ranks.exchange)),
            format!("efficiency {:.0}%", 100.0 * ranks.efficiency),
        ]);
    }
    lines.push(format!("schedule   {}", shape(plan)));
    lines.extend(summary::offload_line(plan).map(|offload| format!("offload    {offload}")));
    lines.extend(summary::state_line(plan).map(|state| format!("state      {state}")));
    lines.extend(summary::in_backward_line(plan).map(|update| format!("update     {update}")));
    for line in lines {
        let _ = writeln!(text, "{}", terminal::wrapped(&line, "           "));
    }
    if args.explain {
        explain::explain(plan, &mut text);
    }
    output::text(&text)
}

/// The budget for a step from a file: a percentage refers to the given device.
fn budget(args: &PlanArgs) -> Result<Option<Bytes>, Failure> {
    let Some(size) = args.schedule.budget else {
        return Ok(None);
    };
    match args.measure.device {
        Some(device) => train::bytes_of(size, &device.listed()?).map(Some),
        None => size.of(None).map(Some).map_err(Failure::usage),
    }
}

fn shape(plan: &Planned) -> String {
    let stages = plan.forwards.len();
    let again = plan.forwards.iter().filter(|&&count| count > 1).count();
    let most = plan.forwards.iter().max().copied().unwrap_or(0);
    match (&plan.segments, plan.operations) {
        (Some(segments), _) if segments.len() > 1 => format!(
            "{} of {}; {} run forward twice",
            several(segments.len(), "segment"),
            several(stages, "stage"),
            several(again, "stage"),
        ),
        (Some(_), _) => format!("{} kept, nothing recomputed", several(stages, "stage")),
        (None, Some((repeated, operations))) => format!(
            "{} of {} operations recomputed, in {again} of {stages} stages",
            thousands(repeated as u64),
            thousands(operations as u64)
        ),
        (None, None) => {
            format!("nested: {again} of {stages} stages run again, up to {most} times")
        }
    }
}

fn frontier_of(args: &PlanArgs, frontier: &Frontier) -> Outcome {
    if args.answer.json {
        return output::json(frontier);
    }
    let mut table = table::table(
        ["budget", "peak", "of plain", "step", "x plain", "schedule"],
        0..5,
    );
    let points = &frontier.points;
    let shown = spread(points.len());
    for point in shown.iter().map(|&index| &points[index]) {
        let peak = point.predicted_peak_bytes;
        let of_plain = 100.0 * peak.0 as f64 / frontier.plain_peak_bytes.0 as f64;
        let times_plain = point.predicted_step_s.0 / frontier.plain_step_s.0;
        table.add_row([
            point.budget_bytes.to_string(),
            peak.to_string(),
            format!("{of_plain:.0}%"),
            point.predicted_step_s.to_string(),
            format!("{times_plain:.2}x"),
            match (point.segments, point.repeated) {
                (Some(segments), _) => several(segments, "segment"),
                (None, Some(again)) => format!("{} recomputed", several(again, "operation")),
                (None, None) => "nested".into(),
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

/// The indices of at most [`FRONTIER_ROWS`] of `count` points, evenly spread, both ends among them.
fn spread(count: usize) -> Vec<usize> {
    if count <= FRONTIER_ROWS {
        return (0..count).collect();
    }
    (0..FRONTIER_ROWS)
        .map(|row| row * (count - 1) / (FRONTIER_ROWS - 1))
        .collect()
}
