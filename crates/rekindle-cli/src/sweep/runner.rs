//! Rows, run.

use std::ffi::OsString;

use rekindle_plan::Bytes;
use rekindle_train::record::{PlainRun, RunRecord};

use super::{Point, SweepRow, record::RowOutcome};
use crate::{
    child::{ChildError, Children, Ended},
    exit,
    failure::Failure,
    infeasible::Infeasible,
};

/// Runs `train` with these arguments and more.
pub struct Runner {
    children: Children,
    common: Vec<OsString>,
}

impl Runner {
    /// Rows that share these arguments.
    pub fn new(children: Children, common: Vec<OsString>) -> Self {
        Self { children, common }
    }

    fn train(&self, arguments: Vec<OsString>, steps: usize) -> Result<Ended, ChildError> {
        let steps = ["--steps".into(), steps.to_string().into()];
        let all: Vec<OsString> = [&self.common[..], &arguments, &steps].concat();
        self.children.run(&all)
    }

    /// The smallest budget that some plan fits. Measures the profile that all rows then find, and meets every error that
    /// all rows would meet.
    pub fn smallest_budget(&self, fresh: bool) -> Result<Bytes, Failure> {
        let mut arguments = Point::Optimal(Infeasible::NO_ROOM).arguments();
        if fresh {
            arguments.push("--fresh".into());
        }
        let ended = self.train(arguments, 1)?;
        match serde_json::from_str::<Infeasible>(&ended.stdout) {
            Ok(answer) => Ok(answer.smallest_budget_of_all_planners_bytes),
            Err(_) => Err(Failure {
                code: ended.code(),
                report: miette::miette!("{}", ended.complaint()),
            }),
        }
    }

    /// A row, and what its run says of the plain run.
    pub fn row(
        &self,
        point: Point,
        chosen: bool,
        steps: usize,
    ) -> Result<(SweepRow, Option<PlainRun>), Failure> {
        let ended = self.train(point.arguments(), steps)?;
        let failed = |outcome| SweepRow::not_done(point, chosen, outcome, ended.complaint());
        Ok(match ended.code() {
            exit::DONE => {
                let run: RunRecord = serde_json::from_str(&ended.stdout).map_err(Failure::other)?;
                let row = SweepRow::done(point, chosen, &run);
                (row, Some(run.plain))
            }
            exit::NO_PLAN => match serde_json::from_str::<Infeasible>(&ended.stdout) {
                Ok(answer) => {
                    let smallest = answer.smallest_budget_of_all_planners_bytes;
                    let row = SweepRow::no_plan(point, chosen, answer.budget_bytes, smallest);
                    (row, None)
                }
                // More than the machine can give.
                Err(_) => (failed(RowOutcome::OutOfMemory), None),
            },
            exit::OUT_OF_MEMORY => (failed(RowOutcome::OutOfMemory), None),
            exit::INTERRUPTED => return Err(ChildError::Interrupted.into()),
            _ => (failed(RowOutcome::Failed), None),
        })
    }
}
