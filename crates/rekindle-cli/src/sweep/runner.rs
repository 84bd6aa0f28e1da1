//! Runs the rows of a sweep.

use rekindle_plan::Bytes;
use rekindle_train::record::{PlainRun, RunRecord};

use super::{Point, SweepRow, record::RowOutcome};
use crate::{
    args::{MeasureArgs, ProfileArgs, SweepArgs, TrainArgs, words},
    child::{self, Refused},
    device::DeviceChoice,
    exit,
    failure::Failure,
};

/// Runs each row in a separate process.
pub struct Runner<'a> {
    args: &'a SweepArgs,
    /// Where rows run.
    device: DeviceChoice,
}

impl<'a> Runner<'a> {
    /// Rows of a sweep.
    pub fn new(args: &'a SweepArgs, device: DeviceChoice) -> Self {
        Self { args, device }
    }

    fn measure(&self) -> MeasureArgs {
        MeasureArgs {
            device: Some(self.device),
            ..self.args.measure.clone()
        }
    }

    /// The smallest feasible budget. Reports every error that all rows would have.
    pub fn smallest_budget(&self) -> Result<Bytes, Failure> {
        let planning = ProfileArgs {
            config: self.args.config.clone(),
            measure: self.measure(),
            output: None,
            json: true,
        };
        let mut planning = words("plan", &planning)?;
        // Nothing fits one byte.
        planning.extend(["--planner", "auto", "--budget", "1B"].map(str::to_owned));
        match child::ask(&planning) {
            Err(Refused::Infeasible(answer)) => Ok(answer.smallest_budget_bytes),
            Err(refused) => Err(refused.into()),
            Ok(_) => Err(Failure::other("a plan fits one byte")),
        }
    }

    /// A row, and what its run says of the plain run.
    pub fn row(&self, point: Point, chosen: bool) -> Result<(SweepRow, Option<PlainRun>), Failure> {
        let training = TrainArgs {
            steps: Some(self.args.steps),
            ..self.args.config.training(self.measure())
        };
        let training = point.of(training);
        let failed = |outcome, message| SweepRow::not_done(point, chosen, outcome, message);
        let row = match child::ask(&words("train", &training)?) {
            Ok(answer) => {
                let run: RunRecord = serde_json::from_str(&answer).map_err(Failure::other)?;
                return Ok((SweepRow::done(point, chosen, &run), Some(run.plain)));
            }
            Err(Refused::Infeasible(answer)) => {
                let smallest = answer.smallest_budget_of_all_planners_bytes;
                SweepRow::no_plan(point, chosen, answer.budget_bytes, smallest)
            }
            // A budget of more than the machine can give, or a run of more.
            Err(Refused::Failed(exit::NO_PLAN | exit::OUT_OF_MEMORY, message)) => {
                failed(RowOutcome::OutOfMemory, message)
            }
            Err(Refused::Failed(_, message)) => failed(RowOutcome::Failed, message),
            Err(interrupted @ Refused::Interrupted) => return Err(interrupted.into()),
        };
        Ok((row, None))
    }
}
