//! `rekindle plan`: the fastest schedule that fits, explained.

use std::fmt::Write;

use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, frontier, plan, planner,
    simulate,
};
use serde_json::json;

use super::profile;
use crate::{
    args::PlanArgs,
    device::DeviceChoice,
    failure::{Failure, Outcome},
    output,
    plan_file::PlanFile,
    table,
};

/// Plans.
pub fn run(args: &PlanArgs) -> Outcome {
    let chain = chain(args)?;
    let planner = args.planner.unwrap_or(match args.segments {
        Some(_) => PlannerKind::Uniform,
        None => PlannerKind::Auto,
    });
    if args.frontier {
        return frontier_of(args, &chain, planner);
    }
    let request = PlanRequest {
        planner,
        budget: budget(args)?,
        segments: args.segments,
        slots: args.slots,
    };
    let plan = match plan(&chain, &request) {
        Ok(plan) => plan,
        Err(error) => {
            if let (
                true,
                PlanError::Infeasible {
                    smallest,
                    smallest_of_all,
                    ..
                },
            ) = (args.json, &error)
            {
                output::json(&json!({
                    "planner": planner, "feasible": false, "budget_bytes": request.budget,
                    "smallest_budget_bytes": smallest, "smallest_budget_of_all_planners_bytes": smallest_of_all,
                }))?;
            }
            return Err(error.into());
        }
    };
    let file = PlanFile::new(&plan, &chain, request.budget);
    if let Some(path) = &args.output {
        let text = serde_json::to_string_pretty(&file).map_err(Failure::other)?;
        profile::write(path, &text)?;
    }
    if args.json {
        return output::json(&file);
    }
    let plain = plain(&chain)?;
    let mut text = String::new();
    let _ = writeln!(text, "planner    {} ({})", plan.planner, plan.source);
    if let Some(budget) = request.budget {
        let _ = writeln!(text, "budget     {budget}");
    }
    let _ = writeln!(text, "peak       {} (plain run {})", plan.peak, plain.0);
    let _ = writeln!(
        text,
        "step       {} ({:.2}x the plain run's {})",
        plan.step,
        plan.step.0 / plain.1,
        rekindle_plan::Seconds(plain.1)
    );
    let _ = writeln!(text, "schedule   {}", shape(&plan));
    if args.explain {
        explain(&chain, &plan, &mut text)?;
    }
    output::text(&text)
}

fn chain(args: &PlanArgs) -> Result<Chain, Failure> {
    match (&args.chain, &args.config) {
        (Some(path), _) => {
            let text =
                std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            Chain::from_json(&text)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
        }
        (None, Some(_)) => {
            let config = args.config_args();
            Ok(profile::measure(&args.measure, &config)?.1)
        }
        (None, None) => Err(Failure::usage("name a CONFIG, or a chain by --chain FILE")),
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
    size.of(device).map(Some).map_err(Failure::usage)
}

/// Peak and seconds of the run without recomputing.
fn plain(chain: &Chain) -> Result<(Bytes, f64), Failure> {
    let schedule = planner::none(chain.stages.len())?;
    let simulation = simulate(chain, &schedule).map_err(Failure::usage)?;
    Ok((simulation.peak, simulation.time.0))
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

fn frontier_of(args: &PlanArgs, chain: &Chain, planner: PlannerKind) -> Outcome {
    let points = frontier(chain, planner, args.slots)?;
    let (plain_peak, plain_s) = plain(chain)?;
    if args.json {
        let points: Vec<_> = points
            .iter()
            .map(|plan| {
                json!({
                    "budget_bytes": plan.peak, "predicted_peak_bytes": plan.peak,
                    "predicted_step_s": plan.step, "planner": plan.planner,
                    "segments": plan.schedule.segments().map(|segments| segments.len()),
                })
            })
            .collect();
        return output::json(&json!({
            "planner": planner, "plain_peak_bytes": plain_peak, "plain_step_s": plain_s, "points": points,
        }));
    }
    let mut table = table::table(["peak", "of plain", "step", "x plain", "schedule"], 0..4);
    for plan in &points {
        table.add_row([
            plan.peak.to_string(),
            format!("{:.0}%", 100.0 * plan.peak.0 as f64 / plain_peak.0 as f64),
            plan.step.to_string(),
            format!("{:.2}x", plan.step.0 / plain_s),
            match plan.schedule.segments() {
                Some(segments) => format!("{} segments", segments.len()),
                None => "nested".into(),
            },
        ]);
    }
    output::text(&format!("{table}\n"))
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
        .map(|(times, stages)| format!("{stages} stages {times}x"))
        .collect();
    let _ = writeln!(text, "\nForwards: {}.", times.join(", "));
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
