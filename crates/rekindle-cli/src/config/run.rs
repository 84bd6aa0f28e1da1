//! `[run]`: how the model is cut, and where it runs.

use std::path::{Path, PathBuf};

use rekindle::{executor::Recheck, meter::Count};
use rekindle_plan::PlannerKind;

use super::{problem::Problem, reader::Section};
use rekindle::size::Size;

use crate::device::DeviceChoice;

/// How the schedule is found, and the device. At most one of `segments`, `budget` and `plan` is there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunKeys {
    /// Number of segments.
    pub segments: Option<usize>,
    /// The most memory that the run may take.
    pub budget: Option<Size>,
    /// A plan that was made before.
    pub plan: Option<PathBuf>,
    /// Which planner finds the schedule.
    pub planner: Option<PlannerKind>,
    /// Which bytes the budget bounds.
    pub count: Option<Count>,
    /// How closely recomputed outputs are compared with the first ones.
    pub verify: Option<Recheck>,
    /// The device, as [`DeviceChoice`] reads it.
    pub device: Option<String>,
}

/// Reads the section. A relative path of a plan starts at `base`.
pub fn read(section: &mut Section<'_>, base: &Path) -> Result<RunKeys, Problem> {
    let mut keys = RunKeys::default();
    let mut source: Option<&'static str> = None;
    for key in ["segments", "budget", "plan"] {
        let Some(node) = section.get(key) else {
            continue;
        };
        if let Some(other) = source.replace(key) {
            return Err(Problem::new(
                format!("[run] has both `{other}` and `{key}`"),
                format!("besides `{other}`"),
                node.span,
            )
            .help("keep one of `segments`, `budget` and `plan`"));
        }
        match key {
            "segments" => keys.segments = Some(node.size()?),
            "budget" => keys.budget = Some(node.parsed()?),
            _ => keys.plan = Some(base.join(node.text()?)),
        }
    }
    if let Some(node) = section.get("planner") {
        if keys.plan.is_some() {
            return Err(Problem::new(
                "[run] has both `plan` and `planner`",
                "besides `plan`",
                node.span,
            )
            .help("a plan that is made already needs no planner: keep one"));
        }
        keys.planner = Some(node.parsed()?);
    }
    if let Some(node) = section.get("count") {
        let choices = [("reserved", Count::Reserved), ("in-use", Count::InUse)];
        keys.count = Some(node.choice(&choices)?);
    }
    if let Some(node) = section.get("verify") {
        let choices = [
            ("off", Recheck::Off),
            ("shapes", Recheck::Shapes),
            ("values", Recheck::Values),
        ];
        keys.verify = Some(node.choice(&choices)?);
    }
    if let Some(node) = section.get("device") {
        let _: DeviceChoice = node.parsed()?;
        keys.device = Some(node.text()?.to_owned());
    }
    Ok(keys)
}
