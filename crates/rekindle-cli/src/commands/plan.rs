//! `rekindle plan`: the fastest schedule that fits, explained.

use std::{collections::HashMap, path::Path};

use rekindle::record::driver::{Extra, ExtraWork};
use rekindle_plan::{Bytes, Planner, Request, Seconds};
use rekindle_train::{
    device::DeviceId,
    ranks::Ranks,
    session::{Frontier, Job, MeasuredStep, PlanFile, Planned, RunError, ScheduleRequest},
};

use super::{
    plan_graph, profile,
    train::{self, Asked},
};
use crate::{
    args::{PlanArgs, TrainArgs},
    device::{DeviceChoice, OffloadChoice},
    failure::{Failure, Outcome},
    input, network, output,
    plot::{text::plot, timeline::KINDS},
    progress::planning,
    ranks, summary,
    table::{self, Cell, several},
    terminal,
};

/// Maximum number of rows of a table.
const ROWS: usize = 24;

/// Plans.
pub fn run(args: &PlanArgs) -> Outcome {
    let read = [&args.config, &args.chain, &args.graph];
    output::check_spared(args.output.as_deref(), read.into_iter().flatten())?;
    if let Some(path) = &args.chain {
        return of_chain(args, path);
    }
    if let Some(path) = &args.graph {
        let graph = plan_graph::read(path)?;
        let request = of_file(args, || plan_graph::plain_peak(path, &graph))?;
        return plan_graph::of_graph(path, &graph, &request, args.answer.json);
    }
    let world = ranks::world()?;
    let asked = args.ranks.map(|ranks| ranks as usize);
    let ranks = ranks::settled(&world, ranks::planned_for(&world, asked, args.link));
    let outcome = ranks.and_then(|ranks| of_config(args, &ranks));
    ranks::end(world, outcome)
}

fn of_config(args: &PlanArgs, ranks: &Ranks) -> Outcome {
    let training = TrainArgs {
        config: args.config.clone(),
        replace: args.replace.clone(),
        measure: args.measure.clone(),
        schedule: args.schedule,
        ..TrainArgs::default()
    };
    let Asked {
        config,
        data,
        device,
        mut schedule,
    } = ranks::settled(ranks, train::asked(&training))?;
    if let ScheduleRequest::Plan(request) = &mut schedule {
        request.effort = args.effort;
        if args.frontier && device.device == DeviceId::Cpu {
            // Runs within a budget have more ways to plan, and what measuring takes without one does not count for them.
            request.budget = Some(Bytes(1));
        }
    }
    let job = Job {
        schedule,
        ranks: ranks.clone(),
        ..profile::job(&config, &device, &data)?
    };
    let mut step = profile::measured(&job, &device)?;
    let speaks = ranks.rank() == 0;
    let planner = args.schedule.planner.unwrap_or_default();
    let outcome = match args.frontier {
        true => match planning(|| step.frontier(&job, planner)) {
            Ok(points) if speaks => output::answer(args.answer.json, &points, frontier_text),
            points => points.map(drop).map_err(Failure::from),
        },
        false => match planning(|| step.plan(&job, &job.schedule)) {
            Ok(planned) if speaks => {
                let extra = || step.measured_step(&job).extra(&planned);
                show(args, &planned, extra, job.part().len())
            }
            planned => planned.map(drop).map_err(Failure::from),
        },
    };
    ranks::settled(ranks, outcome)
}

/// The request for a step from a file, whose plain peak is asked for where a share of it is the budget.
fn of_file(
    args: &PlanArgs,
    plain: impl FnOnce() -> Result<Bytes, Failure>,
) -> Result<Request, Failure> {
    let device = args.measure.device.map(DeviceChoice::listed).transpose()?;
    let budget = args.schedule.budget.map(|size| {
        let bytes = train::bytes_of(size, device.as_ref(), plain)?;
        match &device {
            Some(device) => train::within_device(bytes, device),
            None => Ok(bytes),
        }
    });
    let budget = budget.transpose()?;
    Ok(Request {
        planner: Planner::asked(args.schedule.planner, args.schedule.segments)
            .map_err(Failure::usage)?,
        budget,
        effort: args.effort,
        ..Request::default()
    })
}

/// Plans for a measured step from a file, or for a chain alone; the latter uses its budget as it is, without a reserve.
fn of_chain(args: &PlanArgs, path: &Path) -> Outcome {
    let text = input::text(path)?;
    let step = MeasuredStep::from_json(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let step = match args.measure.offload {
        Some(OffloadChoice::Never) => step.without_link(),
        _ => step,
    };
    let request = of_file(args, || {
        let plain = step.plan(&Request::of(Planner::None, None))?;
        Ok(plain.summary.predicted_peak)
    })?;
    if args.frontier {
        let frontier = planning(|| step.frontier(request.planner))?;
        return output::answer(args.answer.json, &frontier, frontier_text);
    }
    let plan = planning(|| step.plan(&request))?;
    show(args, &plan, || step.extra(&plan), 0)
}

/// Shows a plan and, where that is asked for, what it does beyond the plain step; `batch` is this rank's if the plan is for
/// several ranks.
fn show(
    args: &PlanArgs,
    plan: &Planned,
    extra: impl FnOnce() -> Result<Vec<Extra>, RunError>,
    batch: usize,
) -> Outcome {
    let extra = match args.output.is_some() || args.answer.json || args.explain {
        true => extra()?,
        false => Vec::new(),
    };
    let file = PlanFile::new(plan, extra.clone());
    if let Some(path) = &args.output {
        output::named_file(path, &output::lines(&file)?)?;
    }
    if args.answer.json {
        return output::json(&file);
    }
    let mut lines = vec![summary::plan_line(&plan.summary, plan.parts)];
    if let Some(exchange) = &plan.summary.exchange {
        let (ring, added) = (&exchange.ring, exchange.taken.added());
        lines.push(format!(
            "{} ranks of {}, link {}: the exchange adds {added}, efficiency {:.0}%",
            ring.ranks,
            several(batch, "sample"),
            network::in_words(ring.link),
            100.0 * (1.0 - added.0 / plan.summary.predicted_time.0)
        ));
    }
    lines.extend(summary::notes(&plan.summary));
    let lines = lines.iter().map(|line| terminal::wrapped(line, "  "));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if args.explain {
        let (peak, extra) = (peak(plan), extra_text(plan, &extra));
        text += &format!("\n\n{peak}\n\n{extra}");
    }
    output::text(&format!("{text}\n"))
}

fn frontier_text(frontier: &Frontier) -> String {
    let mut table = table::table("budget|peak|of plain|step|x plain|schedule", 0..5);
    // Evenly spread, both ends among them.
    let points = &frontier.points;
    let (all, shown) = (points.len(), points.len().min(ROWS));
    for row in 0..shown {
        let point = &points[row * (all - 1) / (shown - 1).max(1)];
        let peak = point.predicted_peak;
        let of_plain = 100.0 * peak.0 as f64 / point.plain_peak.0 as f64;
        table.add_row([
            Cell::bytes(point.budget),
            Cell::bytes(peak),
            format!("{of_plain:.0}%").into(),
            Cell::seconds(point.predicted_time),
            format!("{:.2}x", point.slowdown()).into(),
            match &point.segments {
                Some(segments) => several(segments.len(), "segment").into(),
                None => format!("{} recomputed", several(point.repeated, "operation")).into(),
            },
        ]);
    }
    let rest = if shown < all {
        format!("\n{shown} of {all} points; `--json` has all of them.\n")
    } else {
        String::new()
    };
    let points = frontier.points.iter();
    let points: Vec<_> = points
        .map(|point| (point.predicted_peak, point.predicted_time))
        .collect();
    format!("{table}\n{rest}\n{}", plot(&points))
}

/// The parts of the peak in bytes.
fn peak(plan: &Planned) -> table::Table {
    let (action, parts) = plan.at_peak();
    let header = format!("at the peak, `{action}`|bytes");
    let mut table = table::table(&header, 1..2);
    for (part, _, of) in KINDS {
        table.add_row([Cell::from(part), Cell::bytes(of(&parts))]);
    }
    table
}

/// What a plan does beyond the plain step; the same work in several stages is one row.
fn extra_text(plan: &Planned, all: &[Extra]) -> String {
    let mut rows: Vec<(Extra, usize)> = Vec::new();
    let mut places = HashMap::new();
    for extra in all {
        // Where the kind of an operation is not known, its stage tells it from others.
        let stage = extra.shape.is_empty().then_some(extra.stage);
        let same = (extra.work, &extra.kind, &extra.shape, stage);
        let place = *places.entry(same).or_insert(rows.len());
        match rows.get_mut(place) {
            Some((row, stages)) => {
                row.times += extra.times;
                row.seconds += extra.seconds;
                row.bytes += extra.bytes;
                *stages += 1;
            }
            None => rows.push((extra.clone(), 1)),
        }
    }
    if rows.is_empty() {
        return "Nothing runs again.".to_owned();
    }
    rows.sort_by(|(a, _), (b, _)| b.seconds.0.total_cmp(&a.seconds.0));
    let mut table = table::table("runs again|shape|in|times|adds|makes", 3..6);
    for (row, stages) in rows.iter().take(ROWS) {
        let (kind, name) = (&row.kind, plan.staged.chain.stages.get(row.stage.0));
        table.add_row([
            match row.work {
                ExtraWork::Recompute => kind.into(),
                ExtraWork::Offload => format!("{kind}, from the host").into(),
            },
            match row.shape.is_empty() {
                true => Cell::default(),
                false => format!("{:?}", row.shape).into(),
            },
            match (stages, name) {
                (1, Some(stage)) => (&stage.name).into(),
                (1, None) => "loss".into(),
                (stages, _) => several(*stages, "stage").into(),
            },
            row.times.into(),
            Cell::seconds(row.seconds),
            Cell::bytes(row.bytes),
        ]);
    }
    let left: Seconds = rows.iter().skip(ROWS).map(|(row, _)| row.seconds).sum();
    match rows.len().saturating_sub(ROWS) {
        0 => table.to_string(),
        more => format!("{table}\n\n{more} more add {left}; `--json` has all of them."),
    }
}
