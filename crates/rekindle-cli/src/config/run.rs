//! `[run]`: how the model is cut, and where it runs.

use std::path::{Path, PathBuf};

use rekindle::{executor::Recheck, meter::Count};
use rekindle_plan::PlannerKind;
use rekindle_train::run_dir::SnapshotEvery;

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
    /// When a run with a folder takes snapshots.
    pub snapshot_every: Option<SnapshotEvery>,
    /// How many of the newest snapshots are kept.
    pub keep_snapshots: Option<usize>,
    /// The device, as [`DeviceChoice`] reads it.
    pub device: Option<String>,
}

/// The schedule as it was typed. At most one of `segments`, `budget` and `plan` is there, and no planner beside `plan`.
#[derive(Debug, Clone, Copy, Default)]
pub struct TypedSchedule<'a> {
    pub segments: Option<usize>,
    pub budget: Option<Size>,
    pub plan: Option<&'a Path>,
    pub planner: Option<PlannerKind>,
}

impl RunKeys {
    /// These keys, with what is typed in their place. A planner alone searches within the config's budget or segments; but
    /// `none` is the plain run, whatever the config bounds.
    pub fn replaced(&self, typed: TypedSchedule<'_>) -> Self {
        let TypedSchedule {
            segments,
            budget,
            plan,
            planner,
        } = typed;
        let whole = segments.is_some() || plan.is_some() || planner == Some(PlannerKind::None);
        let (own_segments, own_budget, own_plan) = match whole || budget.is_some() {
            true => (None, None, None),
            false => (self.segments, self.budget, self.plan.clone()),
        };
        let own_planner = self
            .planner
            .filter(|_| !whole && (budget.is_none() || self.segments.is_none()));
        Self {
            segments: segments.or(own_segments),
            budget: budget.or(own_budget),
            plan: plan
                .map(Path::to_path_buf)
                .or(own_plan.filter(|_| planner.is_none())),
            planner: planner.or(own_planner),
            ..self.clone()
        }
    }

    /// What is to be said where arguments take the config's budget out of force.
    pub fn budget_out_of_force(&self, now: &Self) -> Option<String> {
        let budget = self.budget.filter(|_| now.budget.is_none())?;
        Some(format!(
            "the config's budget of {budget} is not in force: another schedule was asked for"
        ))
    }
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
    if let Some(node) = section.get("snapshot_every") {
        keys.snapshot_every = Some(match node.as_text() {
            Some(_) => node.parsed()?,
            None => SnapshotEvery::Steps(node.size()?),
        });
    }
    if let Some(node) = section.get("keep_snapshots") {
        keys.keep_snapshots = Some(node.size()?);
    }
    if let Some(node) = section.get("device") {
        let _: DeviceChoice = node.parsed()?;
        keys.device = Some(node.text()?.to_owned());
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use rekindle_plan::Bytes;

    use super::*;

    #[test]
    fn what_is_typed_replaces_what_it_contradicts() {
        use PlannerKind::{Auto, None as Plain, Optimal, Segments, Uniform};

        let budget = |mebibytes: u64| Some(Size::Bytes(Bytes(mebibytes << 20)));
        let within = RunKeys {
            budget: budget(40),
            planner: Some(Optimal),
            ..RunKeys::default()
        };
        let cut = RunKeys {
            segments: Some(5),
            planner: Some(Uniform),
            ..RunKeys::default()
        };
        let planned = RunKeys {
            plan: Some("plan.json".into()),
            ..RunKeys::default()
        };
        let typed = TypedSchedule::default();
        let planner = |planner| TypedSchedule {
            planner: Some(planner),
            ..typed
        };
        let shown = |keys: &RunKeys, typed| {
            let now = keys.replaced(typed);
            (now.segments, now.budget, now.plan.is_some(), now.planner)
        };
        assert_eq!(
            shown(&within, typed),
            (None, budget(40), false, Some(Optimal))
        );
        assert_eq!(shown(&cut, typed), (Some(5), None, false, Some(Uniform)));
        assert_eq!(shown(&planned, typed), (None, None, true, None));

        // Another budget keeps the planner that searches within one.
        let smaller = TypedSchedule {
            budget: budget(30),
            ..typed
        };
        assert_eq!(
            shown(&within, smaller),
            (None, budget(30), false, Some(Optimal))
        );
        assert_eq!(shown(&cut, smaller), (None, budget(30), false, None));
        assert_eq!(shown(&planned, smaller), (None, budget(30), false, None));

        // A planner alone keeps the budget; none needs none.
        assert_eq!(
            shown(&within, planner(Segments)),
            (None, budget(40), false, Some(Segments))
        );
        assert_eq!(
            shown(&planned, planner(Auto)),
            (None, None, false, Some(Auto))
        );
        assert_eq!(
            shown(&within, planner(Plain)),
            (None, None, false, Some(Plain))
        );
        assert_eq!(
            shown(&cut, planner(Plain)),
            (None, None, false, Some(Plain))
        );

        let segments = TypedSchedule {
            segments: Some(3),
            ..typed
        };
        let now = within.replaced(segments);
        assert_eq!(
            (now.segments, now.budget, now.planner),
            (Some(3), None, None)
        );
        let said = within.budget_out_of_force(&now).unwrap_or_default();
        assert!(said.contains("40.0 MiB"), "{said}");
        assert_eq!(within.budget_out_of_force(&within.replaced(smaller)), None);
    }
}
