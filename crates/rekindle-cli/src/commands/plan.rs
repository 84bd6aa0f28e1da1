//! `rekindle plan`: the fastest schedule that fits, explained.

use std::path::Path;

use rekindle_plan::{Planner, Request};
use rekindle_train::{
    ranks::Ranks,
    session::{Frontier, Job, MeasuredStep, PlanFile, Planned},
};

use super::{
    plan_graph, profile,
    train::{self, Asked},
};
use crate::{
    args::{PlanArgs, TrainArgs},
    config::OffloadChoice,
    failure::{Failure, Outcome},
    input, network, output, ranks, summary,
    table::{self, Cell, several},
    terminal,
};

/// Maximum number of rows of a frontier in the table.
const FRONTIER_ROWS: usize = 24;

/// Plans.
pub fn run(args: &PlanArgs) -> Outcome {
    let read = [&args.config, &args.chain, &args.graph];
    output::check_spared(args.output.as_deref(), read.into_iter().flatten())?;
    if let Some(path) = &args.chain {
        return of_chain(args, path);
    }
    if let Some(path) = &args.graph {
        return plan_graph::of_graph(path, &of_file(args)?, args.answer.json);
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
        device,
        schedule,
    } = ranks::settled(ranks, train::asked(&training))?;
    let data = config.open_data()?;
    let job = Job {
        schedule,
        ranks: ranks.clone(),
        ..profile::job(&config, &device, &data)?
    };
    let mut step = profile::measured(&job, &device)?;
    let speaks = ranks.rank() == 0;
    let outcome = match args.frontier {
        true => match step.frontier(&job, args.schedule.planner.unwrap_or_default()) {
            Ok(points) if speaks => output::answer(args.answer.json, &points, frontier_text),
            points => points.map(drop).map_err(Failure::from),
        },
        false => match step.plan(&job, &job.schedule) {
            Ok(planned) if speaks => show(args, &planned, job.part().len()),
            planned => planned.map(drop).map_err(Failure::from),
        },
    };
    ranks::settled(ranks, outcome)
}

/// The request for a step from a file. A percentage refers to the given device.
fn of_file(args: &PlanArgs) -> Result<Request, Failure> {
    let budget = match (args.schedule.budget, args.measure.device) {
        (Some(size), Some(device)) => Some(train::bytes_of(size, &device.listed()?)?),
        (Some(size), None) => Some(size.of(None).map_err(Failure::usage)?),
        (None, _) => None,
    };
    Ok(Request {
        planner: Planner::asked(args.schedule.planner, args.schedule.segments)?,
        budget,
        effort: args.effort,
        ..Request::default()
    })
}

/// Plans for a measured step from a file, or for a chain alone; the latter uses its budget as it is, without a reserve.
fn of_chain(args: &PlanArgs, path: &Path) -> Outcome {
    let request = of_file(args)?;
    let text = input::text(path)?;
    let step = MeasuredStep::from_json(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let step = match args.measure.offload {
        Some(OffloadChoice::Never) => step.without_link(),
        _ => step,
    };
    if args.frontier {
        let frontier = step.frontier(request.planner)?;
        return output::answer(args.answer.json, &frontier, frontier_text);
    }
    show(args, &step.plan(request.budget, request.planner)?, 0)
}

/// Shows a plan; `batch` is this rank's if the plan is for several ranks.
fn show(args: &PlanArgs, plan: &Planned, batch: usize) -> Outcome {
    let file = PlanFile::new(plan);
    if let Some(path) = &args.output {
        output::named_file(path, &output::lines(&file)?)?;
    }
    if args.answer.json {
        return output::json(&file);
    }
    let mut lines = vec![summary::plan_line(plan)];
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
        let (peak, forwards) = (peak(plan), forwards(plan));
        text += &format!("\n\n{peak}\n\n{forwards}");
    }
    output::text(&format!("{text}\n"))
}

fn frontier_text(frontier: &Frontier) -> String {
    let mut table = table::table("budget|peak|of plain|step|x plain|schedule", 0..5);
    // Evenly spread, both ends among them.
    let points = &frontier.points;
    let (all, shown) = (points.len(), points.len().min(FRONTIER_ROWS));
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
        format!("\n{shown} of {all} points; `--json` has all of them.")
    } else {
        String::new()
    };
    format!("{table}\n{rest}\n")
}

/// The parts of the peak in bytes.
fn peak(plan: &Planned) -> table::Table {
    let (action, parts) = plan.at_peak();
    let header = format!("at the peak, `{action}`|bytes");
    let mut table = table::table(&header, 1..2);
    for (part, bytes) in [
        ("parameters, data, optimizer state", parts.fixed),
        ("kept activations", parts.activations),
        ("live segment", parts.graphs),
        ("gradients of activations", parts.gradients),
        ("gradients of parameters", parts.parameter_gradients),
        ("temporaries of the action", parts.temporary),
    ] {
        table.add_row([Cell::from(part), Cell::bytes(bytes)]);
    }
    table
}

/// How many stages run forward how often.
fn forwards(plan: &Planned) -> table::Table {
    let mut table = table::table("forwards|stages", 0..2);
    let forwards = &plan.staged.forwards;
    let most = forwards.iter().max().copied().unwrap_or_default();
    for times in 1..=most {
        let stages = forwards.iter().filter(|&&count| count == times).count();
        if stages > 0 {
            table.add_row([Cell::from(times), stages.into()]);
        }
    }
    table
}
