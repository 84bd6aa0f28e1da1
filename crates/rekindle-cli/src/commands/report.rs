//! `rekindle report`: the page of a run or a sweep, or a run's trace.

use std::path::{Path, PathBuf};

use rekindle_train::run_dir::{RECORD, read_record};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::ReportArgs,
    failure::{Failure, Outcome},
    output,
    report::{self, NO_TIMELINE, trace::trace as trace_of},
    started::{COMMAND, Started},
    sweep,
};

/// Format tag of [`Document`].
pub const REPORT_FORMAT: &str = "rekindle-report/2";

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
    let mut paths = Vec::new();
    for folder in &args.runs {
        let page = folder.join("report.html");
        let text = text(folder, trace)?;
        match &args.output {
            None => output::file(&page, &text)?,
            Some(path) => output::named_file(path, &text)?,
        }
        paths.push(args.output.clone().unwrap_or(page));
    }
    let format = REPORT_FORMAT;
    output::answer(args.answer.json, &Document { format, paths }, |document| {
        let paths = document.paths.iter();
        paths.map(|path| format!("{}\n", path.display())).collect()
    })
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
fn text(folder: &Path, trace: bool) -> Result<String, Failure> {
    let started = Started::read(folder).ok();
    if folder.join(sweep::folder::RECORD).exists() {
        return match trace {
            true => Err(Failure::usage(
                "a trace (.json) is of one run, not of a sweep: name a run's folder",
            )),
            false => {
                let record = sweep::folder::read(folder)?;
                Ok(report::sweep(&record, started.as_ref()))
            }
        };
    }
    let record = read_record(folder)?;
    match (trace, &record.timeline) {
        (false, _) => report::run(&record, started.as_ref()),
        (true, Some(timeline)) => Ok(trace_of(&record, timeline)),
        (true, None) => Err(Failure::usage(NO_TIMELINE)),
    }
}
