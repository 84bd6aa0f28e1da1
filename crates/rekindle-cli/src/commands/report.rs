//! `rekindle report`: the page of a run, or of several; or their timeline alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rekindle::train::{record::RunRecord, run_dir::read_record};
use serde::Serialize;

use crate::{
    args::ReportArgs,
    failure::{Failure, Outcome},
    output,
    plot::{self, theme::Size},
    report,
};

/// What `report --json` prints.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    path: &'a Path,
    runs: &'a [PathBuf],
}

/// Writes the page and says where.
pub fn run(args: &ReportArgs) -> Outcome {
    let records = args.runs.iter().map(|folder| read_record(folder));
    let records: Vec<RunRecord> = records.collect::<Result<_, _>>()?;
    let path = args.output.clone().unwrap_or_else(|| {
        let several = records.len() > 1;
        args.runs[0].join(if several {
            "comparison.html"
        } else {
            "report.html"
        })
    });
    let runs: Vec<_> = names(&args.runs).into_iter().zip(&records).collect();
    let page = match (path.extension(), &runs[..]) {
        (Some(extension), runs) if extension == "svg" => picture(runs)?,
        (_, [(_, record)]) => report::run::run(record)?,
        (_, runs) => report::comparison::comparison(runs)?,
    };
    fs::write(&path, page).map_err(|error| Failure::file(&path, &error))?;
    if args.json {
        return output::json(&Document {
            format: "rekindle-report/1",
            path: &path,
            runs: &args.runs,
        });
    }
    output::text(&format!("{}\n", path.display()))
}

/// The timeline of one run, or those of several on one axis.
fn picture(runs: &[(String, &RunRecord)]) -> Result<String, Failure> {
    let drawn = match runs {
        [(_, record)] => plot::timeline::picture(record, Size::Wide),
        runs => plot::comparison::picture(runs, Size::Wide),
    };
    match drawn {
        Some(drawn) => drawn.map_err(Failure::other),
        None => Err(Failure::usage(
            "there is no timeline to draw: a run traces its fourth step, or its last if that comes first, and was \
             stopped before",
        )),
    }
}

/// Names of folders: their last parts where these differ, else their paths.
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
