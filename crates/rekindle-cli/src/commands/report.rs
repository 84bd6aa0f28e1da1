//! `rekindle report`: the page of a run, or of several.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rekindle::train::{record::RunRecord, run_dir::read_record};
use serde::Serialize;

use crate::{
    args::ReportArgs,
    failure::{Failure, Outcome},
    output, report,
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
    let (page, name) = match &records[..] {
        [record] => (report::run::run(record)?, "report.html"),
        records => {
            let names = names(&args.runs);
            let runs: Vec<_> = names.into_iter().zip(records).collect();
            (report::comparison::comparison(&runs)?, "comparison.html")
        }
    };
    let path = match &args.output {
        Some(path) => path.clone(),
        None => args.runs[0].join(name),
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
