//! `rekindle report`: the page of a run, of several, or of a sweep; the picture alone; or a run's trace.

use std::path::{Path, PathBuf};

use rekindle_train::{
    record::RunRecord,
    run_dir::{read_evaluations, read_record, read_steps},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::ReportArgs,
    failure::{Failure, Outcome},
    output, plot, report,
    started::Started,
    sweep,
};

/// Format tag of [`Document`].
pub const REPORT_FORMAT: &str = "rekindle-report/1";

/// What `report --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document<'a> {
    format: &'static str,
    /// The file that was written.
    path: &'a Path,
    /// The folders that it is about.
    runs: &'a [PathBuf],
}

const NO_TIMELINE: &str = "there is no timeline to draw: a run traces its fourth step, or its last one if it is shorter, \
     and this run stopped before, or had no room to choose the kernels for that";

/// Writes the page and prints its path.
pub fn run(args: &ReportArgs) -> Outcome {
    if let Some(path) = &args.output {
        check_name(path)?;
    }
    let is_sweep = |run: &PathBuf| run.join(sweep::folder::RECORD).exists();
    let (name, page) = match &args.runs[..] {
        [folder] if is_sweep(folder) => ("report.html", sweep_page(folder, args)?),
        folders => match folders.iter().find(|folder| is_sweep(folder)) {
            Some(sweep) => {
                return Err(Failure::usage(format!(
                    "{} is a sweep: report it separately",
                    sweep.display()
                )));
            }
            None => (
                ["report.html", "comparison.html"][usize::from(folders.len() > 1)],
                runs_page(folders, args)?,
            ),
        },
    };
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| args.runs[0].join(name));
    output::file(&path, &page)?;
    if args.json {
        return output::json(&Document {
            format: REPORT_FORMAT,
            path: &path,
            runs: &args.runs,
        });
    }
    output::text(&format!("{}\n", path.display()))
}

/// Rejects file names that are neither pages nor pictures.
fn check_name(path: &Path) -> Outcome {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm" | "svg" | "json") => Ok(()),
        _ => Err(Failure::usage(format!(
            "{}: unknown file type; use .html (page), .svg (picture) or .json (trace)",
            path.display()
        ))),
    }
}

fn ends_in(args: &ReportArgs, wanted: &str) -> bool {
    let extension = args.output.as_ref().and_then(|path| path.extension());
    extension.is_some_and(|extension| extension == wanted)
}

/// The output for a sweep.
fn sweep_page(folder: &Path, args: &ReportArgs) -> Result<String, Failure> {
    let record = sweep::folder::read(folder)?;
    if ends_in(args, "json") {
        return Err(Failure::usage(
            "a trace (.json) is of one run, not of a sweep: name a run's folder",
        ));
    }
    if !ends_in(args, "svg") {
        return report::sweep::sweep(&record, Started::read(folder).ok().as_ref());
    }
    match plot::frontier::picture(&record) {
        Some(drawn) => drawn.map_err(Failure::other),
        None => Err(Failure::usage(
            "there is no frontier to draw: no run of this sweep succeeded",
        )),
    }
}

/// The output for runs.
fn runs_page(folders: &[PathBuf], args: &ReportArgs) -> Result<String, Failure> {
    let records = folders.iter().map(|folder| read_record(folder));
    let records: Vec<RunRecord> = records.collect::<Result<_, _>>()?;
    let runs: Vec<_> = names(folders).into_iter().zip(&records).collect();
    match (&runs[..], folders) {
        (runs, _) if ends_in(args, "svg") => timeline(runs),
        ([(_, record)], _) if ends_in(args, "json") => match &record.timeline {
            Some(timeline) => Ok(report::trace::trace(record, timeline)),
            None => Err(Failure::usage(NO_TIMELINE)),
        },
        (_, _) if ends_in(args, "json") => Err(Failure::usage(
            "a trace (.json) is of one run: name one folder",
        )),
        ([(_, record)], [folder]) => {
            // Runs of a sweep have no such file.
            let started = Started::read(folder).ok();
            let (steps, evaluations) = (read_steps(folder)?, read_evaluations(folder)?);
            report::run::run(record, &steps, &evaluations, started.as_ref())
        }
        (runs, folders) => {
            // Runs of a sweep have no such file.
            let started = folders.iter().map(|folder| Started::read(folder).ok());
            report::comparison::comparison(runs, &started.collect::<Vec<_>>())
        }
    }
}

/// The timeline of one run, or those of several on one axis.
fn timeline(runs: &[(String, &RunRecord)]) -> Result<String, Failure> {
    let drawn = match runs {
        [(_, record)] => plot::timeline::picture(record),
        runs => plot::comparison::picture(runs),
    };
    match drawn {
        Some(drawn) => drawn.map_err(Failure::other),
        None => Err(Failure::usage(NO_TIMELINE)),
    }
}

/// Names of folders: their last parts if these differ, else their paths.
fn names(folders: &[PathBuf]) -> Vec<String> {
    let last = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let short: Vec<String> = folders.iter().map(last).collect();
    let mut distinct = short.clone();
    distinct.sort();
    distinct.dedup();
    if distinct.len() == short.len() {
        return short;
    }
    let whole = folders.iter().map(|folder| folder.display().to_string());
    whole.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_called_by_what_tells_them_apart() {
        let folders = |paths: [&str; 2]| names(&paths.map(PathBuf::from));
        assert_eq!(folders(["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(folders(["x/run", "y/run"]), ["x/run", "y/run"]);
    }
}
