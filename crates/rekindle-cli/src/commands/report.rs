//! `rekindle report`: the page of a run or a sweep, or a run's trace.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rekindle_train::{
    record::StepRecord,
    run_dir::{RECORD, is_running, last_step, read_record},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::ReportArgs,
    exit,
    failure::{Failure, Outcome},
    output,
    report::{self, NO_TIMELINE, trace::trace as trace_of},
    started::{COMMAND, Started},
    stop, sweep,
};

/// Format tag of [`Document`].
pub const REPORT_FORMAT: &str = "rekindle-report/2";

/// Time between two looks at a run that is watched; its page is as old at most.
const LOOK: Duration = Duration::from_secs(1);

/// What `report --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    format: &'static str,
    /// The files that were written, one for each folder.
    paths: Vec<PathBuf>,
}

/// Writes a page for each folder, and prints their paths.
pub fn run(args: &ReportArgs) -> Outcome {
    let trace = match &args.output {
        Some(path) => is_trace(path)?,
        None => false,
    };
    if args.output.is_some() && args.runs.len() > 1 {
        return Err(Failure::usage(format!(
            "`-o` names one file for {} folders; leave it out, and each folder gets its report.html",
            args.runs.len()
        )));
    }
    let records = [RECORD, sweep::folder::RECORD, COMMAND];
    let of_run = |folder: &PathBuf| records.map(|name| folder.join(name));
    output::check_spared(args.output.as_deref(), args.runs.iter().flat_map(of_run))?;
    if args.watch {
        stop::in_order("stopping; the pages stay");
        note!("pages are written again while runs go on; Ctrl-C stops");
    }
    let paths = loop {
        let now = running(args);
        let paths = write(args, trace, &now)?;
        if now.iter().all(Option::is_none) {
            break paths;
        }
        while now == running(args) {
            thread::sleep(LOOK);
        }
    };
    let format = REPORT_FORMAT;
    output::answer(args.answer.json, &Document { format, paths }, |document| {
        let paths = document.paths.iter();
        paths.map(|path| format!("{}\n", path.display())).collect()
    })?;
    match stop::asked() {
        true => Err(Failure::coded(exit::INTERRUPTED, "no longer watched")),
        false => Ok(()),
    }
}

/// What each run does now, if it is watched and goes on.
fn running(args: &ReportArgs) -> Vec<Option<String>> {
    let watched = args.watch && !stop::asked();
    let now = |folder: &PathBuf| match last_step(folder) {
        _ if !watched || !is_running(folder) => None,
        Some(StepRecord { step, loss, .. }) => {
            Some(format!("Running: step {step}, loss {loss:.4}."))
        }
        None => Some("Running: no step is done.".into()),
    };
    args.runs.iter().map(now).collect()
}

/// Writes all pages, or the trace.
fn write(args: &ReportArgs, trace: bool, now: &[Option<String>]) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for (folder, now) in args.runs.iter().zip(now) {
        let page = folder.join("report.html");
        let text = text(args, trace, folder, now.as_deref())?;
        match &args.output {
            None => output::file(&page, &text)?,
            Some(path) => output::named_file(path, &text)?,
        }
        paths.push(args.output.clone().unwrap_or(page));
    }
    Ok(paths)
}

/// Whether a file with this name is to hold a trace, and not a page.
fn is_trace(path: &Path) -> Result<bool, Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Ok(false),
        Some("json") => Ok(true),
        _ => Err(Failure::usage(format!(
            "{}: unknown file type; use .html (page) or .json (trace)",
            path.display()
        ))),
    }
}

/// The page of a folder, or its trace.
fn text(
    args: &ReportArgs,
    trace: bool,
    folder: &Path,
    now: Option<&str>,
) -> Result<String, Failure> {
    let started = Started::read(folder).ok();
    if folder.join(sweep::folder::RECORD).exists() {
        if trace {
            return Err(Failure::usage(
                "a trace (.json) is of one run, not of a sweep: name a run's folder",
            ));
        }
        let record = sweep::folder::read(folder)?;
        return Ok(report::sweep(&record, started.as_ref()));
    }
    if let Some(started) = started.as_ref().filter(|_| args.watch && !trace)
        && !folder.join(RECORD).exists()
    {
        return Ok(report::begun(started, now));
    }
    let record = read_record(folder)?;
    match (trace, &record.timeline) {
        (false, _) => report::run(&record, started.as_ref(), now),
        (true, Some(timeline)) => Ok(trace_of(&record, timeline)),
        (true, None) => Err(Failure::usage(NO_TIMELINE)),
    }
}
