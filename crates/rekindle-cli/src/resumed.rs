//! What a run that is resumed continues with.

use std::path::Path;

use clap::Parser;
use serde_json::Value;

use crate::{
    args::{Cli, Command, ScheduleArgs, TrainArgs},
    config::RunKeys,
    exit,
    failure::Failure,
    started::{FILE, Started},
};

/// The arguments, paths made independent of where this process runs.
fn arguments(started: Started, folder: &Path) -> Result<TrainArgs, Failure> {
    let typed = std::iter::once("rekindle".to_owned()).chain(started.arguments);
    let wrong = |what: &dyn std::fmt::Display| {
        Failure::with_help(
            exit::USAGE,
            format!("{}: {what}", folder.join(FILE).display()),
            "name the CONFIG, and options that are to hold, as well as --resume RUN_DIR",
        )
    };
    let cli = Cli::try_parse_from(typed).map_err(|error| wrong(&error))?;
    let Command::Train(mut args) = cli.command else {
        return Err(wrong(&"holds another command than `train`"));
    };
    let paths = [
        &mut args.config,
        &mut args.replace.data_dir,
        &mut args.plan,
        &mut args.weights,
    ];
    for path in paths.into_iter().flatten() {
        *path = started.directory.join(&*path);
    }
    Ok(*args)
}

/// The arguments of a training: for a run that is resumed without a config, those that it was started with, replaced by what
/// is typed now.
pub fn resolved(typed: TrainArgs) -> Result<TrainArgs, Failure> {
    let (None, Some(folder)) = (&typed.config, &typed.resume) else {
        return Ok(typed);
    };
    let mut before = arguments(Started::read(folder)?, folder)?;
    let schedule = RunKeys {
        segments: before.schedule.segments,
        budget: before.schedule.budget,
        plan: before.plan.take(),
        planner: before.schedule.planner,
        ..RunKeys::default()
    };
    let schedule = schedule.replaced(&typed.schedule, typed.plan.as_deref());
    // What it left is not left again; one place of the data replaces the other.
    (before.output, before.track) = (None, None);
    if typed.replace.data.is_some() || typed.replace.data_dir.is_some() {
        (before.replace.data, before.replace.data_dir) = (None, None);
    }
    let no_master_weights = typed.replace.no_master_weights || before.replace.no_master_weights;
    let [typed, before] = [typed, before].map(serde_json::to_value);
    let both = completed(
        typed.map_err(Failure::other)?,
        before.map_err(Failure::other)?,
    );
    let mut args: TrainArgs = serde_json::from_value(both).map_err(Failure::other)?;
    args.replace.no_master_weights = no_master_weights;
    args.plan = schedule.plan;
    args.schedule = ScheduleArgs {
        segments: schedule.segments,
        budget: schedule.budget,
        planner: schedule.planner,
    };
    Ok(args)
}

/// Arguments, and where nothing is typed for one, that of before. Flags are those that are typed.
fn completed(typed: Value, before: Value) -> Value {
    match (typed, before) {
        (Value::Null, before) => before,
        (Value::Object(mut typed), Value::Object(before)) => {
            for (name, before) in before {
                let own = typed.remove(&name).unwrap_or_default();
                typed.insert(name, completed(own, before));
            }
            Value::Object(typed)
        }
        (typed, _) => typed,
    }
}
