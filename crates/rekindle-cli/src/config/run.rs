//! `[run]`: the schedule and the device.

use std::{fmt, path::PathBuf, str::FromStr};

use rekindle::{meter::Count, size::Size};
use rekindle_plan::Planner;
use rekindle_train::{
    invalid::{AT_LEAST_1, Invalid, first_invalid},
    run_dir::SnapshotEvery,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;

use crate::{
    args::{ScheduleArgs, TrainArgs},
    device::{DeviceChoice, OffloadChoice},
};

/// How the schedule is found, and the device. At most one of `segments`, `budget` and `plan` is there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields, default)]
pub struct RunKeys {
    /// Number of segments.
    pub segments: Option<usize>,
    /// The most memory that the run may take: a size such as `512MiB` or `1.5GB`, a share of the plain step's peak such as
    /// `50%`, or one of the device's memory such as `80%-of-device`.
    #[serde(deserialize_with = "typed")]
    #[schemars(with = "Option<String>")]
    pub budget: Option<Size>,
    /// A plan that was made before: a file of `rekindle plan -o`, relative to the config's folder. It takes no `planner`.
    pub plan: Option<PathBuf>,
    /// Which planner finds the schedule: `auto`, `none`, `segments` or `optimal`.
    #[serde(deserialize_with = "typed")]
    #[schemars(with = "Option<String>")]
    pub planner: Option<Planner>,
    /// Which bytes the budget bounds.
    pub count: Option<Count>,
    /// Whether a plan within a budget may move tensors to the host's memory between forward and backward: on a GPU, where
    /// that is faster than recomputing them or nothing else fits.
    pub offload: Option<OffloadChoice>,
    /// The most memory of the host that such tensors may take: a size, or a share of the host's memory. Without it, what is
    /// free there less an eighth, and less 1 GiB at least.
    #[serde(deserialize_with = "typed")]
    #[schemars(with = "Option<String>")]
    pub host_budget: Option<Size>,
    /// When a run with a folder takes snapshots: after so many steps, or after a time such as `90s`, `10min` or `2h`.
    #[serde(deserialize_with = "typed")]
    #[schemars(with = "Option<Pace>")]
    pub snapshot_every: Option<SnapshotEvery>,
    /// How many of the newest snapshots are kept.
    pub keep_snapshots: Option<usize>,
    /// The device: `auto` (the first NVIDIA GPU that answers, else the processor), `cpu`, `cuda`, `cuda:N`, `wgpu` or
    /// `wgpu:N`.
    #[serde(deserialize_with = "typed")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
}

impl RunKeys {
    /// Checks each value by itself, and that at most one way to find the schedule is given.
    pub fn validate(&self) -> Result<(), Invalid> {
        let keys = [
            ("segments", self.segments.is_some()),
            ("budget", self.budget.is_some()),
            ("plan", self.plan.is_some()),
            ("planner", self.planner.is_some() && self.plan.is_some()),
        ];
        let mut given = keys.into_iter().filter(|(_, given)| *given);
        if let (Some((first, _)), Some((second, _))) = (given.next(), given.next()) {
            let problem = format!("stands beside `{first}`: keep one of the two");
            return Err(Invalid {
                key: second,
                problem,
            });
        }
        first_invalid([
            (self.segments != Some(0), "segments", AT_LEAST_1),
            (self.keep_snapshots != Some(0), "keep_snapshots", AT_LEAST_1),
        ])
    }

    /// These keys, overridden by arguments. A planner alone searches within the config's budget or segments; but `none`
    /// is the plain run, whatever the config sets. At most one of `segments`, `budget` and `plan` is typed, and no
    /// planner beside `plan`.
    pub fn replaced(&self, typed: &TrainArgs) -> Self {
        let ScheduleArgs {
            segments,
            budget,
            planner,
        } = typed.schedule;
        let (plan, measure) = (&typed.plan, &typed.measure);
        let whole = segments.is_some() || plan.is_some() || planner == Some(Planner::None);
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
            plan: plan.clone().or(own_plan.filter(|_| planner.is_none())),
            planner: planner.or(own_planner),
            device: measure.device.or(self.device),
            count: measure.count.or(self.count),
            offload: measure.offload.or(self.offload),
            ..self.clone()
        }
    }
}

/// Steps, or a time.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Pace {
    Steps(usize),
    Time(String),
}

/// A text that is parsed by its type. A number is read as its digits.
fn typed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        other => other.to_string(),
    };
    text.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a config says, what is typed, and what holds then.
    const REPLACED: &str = "
budget = '40MiB', planner = 'optimal' | | budget = '40MiB', planner = 'optimal'
segments = 5, planner = 'segments' | | segments = 5, planner = 'segments'
plan = 'plan.json' | | plan = 'plan.json'
budget = '40MiB', planner = 'optimal' | budget = '30MiB' | budget = '30MiB', planner = 'optimal'
segments = 5, planner = 'segments' | budget = '30MiB' | budget = '30MiB'
plan = 'plan.json' | budget = '30MiB' | budget = '30MiB'
budget = '40MiB', planner = 'optimal' | planner = 'segments' | budget = '40MiB', planner = 'segments'
plan = 'plan.json' | planner = 'auto' | planner = 'auto'
budget = '40MiB', planner = 'optimal' | planner = 'none' | planner = 'none'
segments = 5, planner = 'segments' | planner = 'none' | planner = 'none'
budget = '40MiB', planner = 'optimal' | segments = 3 | segments = 3";

    #[test]
    fn what_is_typed_replaces_what_it_contradicts() {
        let keys = |text: &str| -> RunKeys {
            let lines = text.replace(", ", "\n");
            toml::from_str(lines.trim()).expect("keys of [run]")
        };
        for line in REPLACED.trim().lines() {
            let columns: Vec<RunKeys> = line.split('|').map(keys).collect();
            let [config, typed, now] = &columns[..] else {
                panic!("{line}");
            };
            let schedule = ScheduleArgs {
                segments: typed.segments,
                budget: typed.budget,
                planner: typed.planner,
            };
            let typed = TrainArgs {
                schedule,
                ..TrainArgs::default()
            };
            assert_eq!(config.replaced(&typed), *now, "{line}");
        }
    }
}
