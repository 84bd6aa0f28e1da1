//! `rekindle runs`: the runs whose folders are in a folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rekindle_train::{
    record::Ran,
    run_dir::{RECORD, is_running, read_record},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::RunsArgs,
    failure::{Failure, Outcome},
    output,
    started::Started,
    table::{self, Cell},
};

/// Format tag of [`Document`].
pub const RUNS_FORMAT: &str = "rekindle-runs/2";

/// What `runs --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    format: &'static str,
    /// The runs, the oldest first.
    runs: Vec<Run>,
}

/// A run. All but its folder and its state is `null` before it has its first record.
#[derive(Serialize, JsonSchema)]
struct Run {
    /// Its folder.
    path: PathBuf,
    /// When it was started, in RFC 3339.
    started_at: Option<String>,
    /// Its config's file.
    config: Option<String>,
    /// Its plan, and what it took.
    ran: Option<Ran>,
    /// Loss of the last step.
    last_loss: Option<f64>,
    /// `finished`, `interrupted`, or `running`: a process holds the folder's lock.
    state: &'static str,
}

/// Lists them.
pub fn run(args: &RunsArgs) -> Outcome {
    let refused = |error: std::io::Error| Failure::file(&args.folder, &error);
    let mut runs = Vec::new();
    for entry in fs::read_dir(&args.folder).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.is_dir() {
            runs.extend(of(path));
        }
    }
    runs.sort_by(|a, b| (&a.started_at, &a.path).cmp(&(&b.started_at, &b.path)));
    if args.answer.json {
        let format = RUNS_FORMAT;
        return output::json(&Document { format, runs });
    }
    let header = "run|started|config|budget|peak|step|loss|state";
    let mut table = table::table(header, 3..7);
    for run in &runs {
        let name = run.path.file_name().unwrap_or(run.path.as_os_str());
        let ran = run.ran.as_ref();
        let config = run.config.as_ref().map(Path::new);
        let config = config.and_then(|config| config.file_stem());
        // The month, the day, hours and minutes.
        let started = run.started_at.as_ref().and_then(|at| at.get(5..16));
        table.add_row([
            Cell::from(name.display()),
            Cell::text(started.map(|at| at.replace('T', " "))),
            Cell::text(config.map(|config| config.display().to_string())),
            Cell::bytes(ran.and_then(|ran| ran.plan.budget)),
            Cell::bytes(ran.map(|ran| ran.measured.peak)),
            Cell::seconds(ran.map(|ran| ran.measured.step)),
            Cell::text(run.last_loss.map(|loss| format!("{loss:.4}"))),
            run.state.into(),
        ]);
    }
    match runs.len() {
        0 => Err(Failure::usage(format!(
            "no runs in {0}; start one with `rekindle train CONFIG -o {0}/first`",
            args.folder.display()
        ))),
        _ => output::text(&format!("{table}\n")),
    }
}

/// The run of a folder, if it holds one that can be read.
fn of(path: PathBuf) -> Option<Run> {
    let read = || read_record(&path).inspect_err(|error| note!("warning: {error}"));
    let there = path.join(RECORD).exists();
    let record = there.then(read).and_then(Result::ok);
    let state = match &record {
        Some(record) if !record.interrupted => "finished",
        _ if is_running(&path) => "running",
        Some(_) => "interrupted",
        None => return None,
    };
    let started = Started::read(&path).ok();
    Some(Run {
        started_at: started.map(|started| started.started_at),
        config: record.as_ref().map(|record| record.name.clone()),
        last_loss: record.as_ref().map(|record| record.last_loss),
        ran: record.map(Ran::from),
        state,
        path,
    })
}
