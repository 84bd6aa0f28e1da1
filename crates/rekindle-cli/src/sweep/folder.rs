//! The files that a sweep leaves, renewed after each row.
//!
//! | file | holds |
//! |---|---|
//! | `sweep.json` | the [`SweepRecord`] |
//! | `sweep.csv` | its rows, a line each, with the keys of the JSON |
//! | `frontier.svg` | its picture |
//!
//! Each is replaced atomically: readers always see complete files, and with a full disk the last good ones remain.

use std::{fs, path::Path};

use rekindle_train::replace::create_folder;
use serde_json::{Map, Value};

use super::{SweepRecord, SweepRow, record::SWEEP_FORMAT};
use crate::{
    failure::{Failure, Outcome},
    input, output,
    plot::frontier,
};

/// The record's file: a folder that has it is a sweep's.
pub const RECORD: &str = "sweep.json";

/// The record in a sweep's folder.
pub fn read(folder: &Path) -> Result<SweepRecord, Failure> {
    let path = folder.join(RECORD);
    input::document(&path, &input::kept(&path)?, SWEEP_FORMAT)
}

/// Creates the folder if necessary. It must be empty and writable: this is checked now, before any row runs.
pub fn open(folder: &Path) -> Outcome {
    let refused = |error: std::io::Error| Failure::file(folder, &error);
    create_folder(folder).map_err(refused)?;
    if fs::read_dir(folder).map_err(refused)?.next().is_some() {
        return Err(Failure::usage(format!(
            "{}: holds files already: name a new folder",
            folder.display()
        )));
    }
    let trial = folder.join("sweep.tmp");
    fs::write(&trial, "").map_err(|error| Failure::file(&trial, &error))?;
    let _ = fs::remove_file(&trial);
    Ok(())
}

/// Replaces all files.
pub fn write(folder: &Path, record: &SweepRecord) -> Outcome {
    let csv = csv(&record.rows).map_err(Failure::other)?;
    let put = |name: &str, text: &str| output::file(&folder.join(name), text);
    output::json_file(&folder.join(RECORD), record)?;
    put("sweep.csv", &csv)?;
    let picture = frontier::picture(record);
    picture.map_or(Ok(()), |picture| put("frontier.svg", &picture))
}

/// A column for each key of any row. Lists and tables are written as JSON.
fn csv(rows: &[SweepRow]) -> Result<String, Box<dyn std::error::Error>> {
    let rows = rows.iter().map(serde_json::to_value);
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let mut header: Vec<&String> = Vec::new();
    for key in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !header.contains(&key) {
            header.push(key);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&header)?;
    for row in &rows {
        let cell = |key: &&String| match row.get(*key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        writer.write_record(header.iter().map(cell))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}
