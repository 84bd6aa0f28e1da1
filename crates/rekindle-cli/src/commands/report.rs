//! `rekindle report`: the page of a run or a sweep; the picture alone; or a run's trace.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rekindle_train::run_dir::{read_evaluations, read_record, read_steps};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::ReportArgs,
    failure::{Failure, Outcome},
    output, plot,
    report::{
        run::{NO_TIMELINE, run as page_of_run},
        sweep::sweep as page_of_sweep,
        trace::trace,
    },
    started::Started,
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
    let kind = match &args.output {
        Some(path) => kind(path)?,
        None => Kind::Page,
    };
    if args.output.is_some() && args.runs.len() > 1 {
        return Err(Failure::usage(format!(
            "`-o` names one file for {} folders; leave it out, and each folder gets its report.html",
            args.runs.len()
        )));
    }
    let mut paths = Vec::new();
    for folder in &args.runs {
        let path = args.output.clone();
        let path = path.unwrap_or_else(|| folder.join("report.html"));
        let text = match folder.join(sweep::folder::RECORD).exists() {
            true => of_sweep(folder, kind)?,
            false => of_run(folder, kind)?,
        };
        output::file(&path, &text)?;
        paths.push(path);
    }
    if args.json {
        let format = REPORT_FORMAT;
        output::json(&Document {
            format,
            paths: paths.clone(),
        })?;
    } else {
        let lines = paths.iter().map(|path| format!("{}\n", path.display()));
        output::text(&lines.collect::<String>())?;
    }
    match args.open {
        true => paths.iter().try_for_each(|path| open(path)),
        false => Ok(()),
    }
}

/// What a file holds.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Page,
    Picture,
    Trace,
}

/// What a file with this name is to hold.
fn kind(path: &Path) -> Result<Kind, Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Ok(Kind::Page),
        Some("svg") => Ok(Kind::Picture),
        Some("json") => Ok(Kind::Trace),
        _ => Err(Failure::usage(format!(
            "{}: unknown file type; use .html (page), .svg (picture) or .json (trace)",
            path.display()
        ))),
    }
}

fn of_sweep(folder: &Path, kind: Kind) -> Result<String, Failure> {
    let record = sweep::folder::read(folder)?;
    let none = || Failure::usage("no frontier: no run of this sweep succeeded");
    match kind {
        Kind::Page => page_of_sweep(&record, Started::read(folder).ok().as_ref()),
        Kind::Picture => plot::frontier::picture(&record)
            .ok_or_else(none)?
            .map_err(Failure::other),
        Kind::Trace => Err(Failure::usage(
            "a trace (.json) is of one run, not of a sweep: name a run's folder",
        )),
    }
}

fn of_run(folder: &Path, kind: Kind) -> Result<String, Failure> {
    let record = read_record(folder)?;
    let none = || Failure::usage(NO_TIMELINE);
    match kind {
        Kind::Page => {
            let (steps, evaluations) = (read_steps(folder)?, read_evaluations(folder)?);
            let started = Started::read(folder).ok();
            page_of_run(&record, &steps, &evaluations, started.as_ref())
        }
        Kind::Picture => plot::timeline::picture(&record)
            .ok_or_else(none)?
            .map_err(Failure::other),
        Kind::Trace => Ok(trace(&record, record.timeline.as_ref().ok_or_else(none)?)),
    }
}

/// Opens a file with the program that the system has for it.
fn open(path: &Path) -> Outcome {
    let program = match std::env::consts::OS {
        "macos" => "open",
        "windows" => "explorer",
        _ => "xdg-open",
    };
    let mut command = Command::new(program);
    command
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let why = match command.status() {
        // explorer answers 1 in any case.
        Ok(status) if status.success() || program == "explorer" => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let path = path.display();
    let message = format!("`{program} {path}`: {why}; open the page in a browser");
    Err(Failure::other(message))
}
