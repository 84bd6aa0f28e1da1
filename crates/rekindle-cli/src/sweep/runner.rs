//! Rows, run.

use rekindle_plan::Bytes;
use rekindle_train::record::{PlainRun, RunRecord};

use super::{Point, SweepRow, record::RowOutcome};
use crate::{
    args::{MeasureArgs, ProfileArgs, SweepArgs, TrainArgs},
    child::{Children, Refused, Task},
    device::DeviceChoice,
    exit,
    failure::Failure,
};

/// Runs each row in a process of its own.
pub struct Runner<'a> {
    children: Children,
    args: &'a SweepArgs,
    /// Where rows run.
    device: DeviceChoice,
}

impl<'a> Runner<'a> {
    /// Rows of a sweep.
    pub fn new(args: &'a SweepArgs, device: DeviceChoice) -> Result<Self, Failure> {
        Ok(Self {
            children: Children::new()?,
            args,
            device,
        })
    }

    fn measure(&self, fresh: bool) -> MeasureArgs {
        MeasureArgs {
            device: Some(self.device),
            fresh,
            ..self.args.measure.clone()
        }
    }

    /// The smallest budget that some plan fits. Measures the profile that all rows then find, and meets every error that
    /// all rows would meet.
    pub fn smallest_budget(&self) -> Result<Bytes, Failure> {
        let answer = self.children.ask(&Task::SmallestBudget(ProfileArgs {
            config: self.args.config.clone(),
            measure: self.measure(self.args.measure.fresh),
            output: None,
            json: true,
        }))?;
        serde_json::from_str(&answer).map_err(Failure::other)
    }

    /// A row, and what its run says of the plain run.
    pub fn row(&self, point: Point, chosen: bool) -> Result<(SweepRow, Option<PlainRun>), Failure> {
        let training = TrainArgs {
            steps: Some(self.args.steps),
            ..self.args.config.training(self.measure(false))
        };
        let task = Task::Train(Box::new(point.of(training)));
        let failed = |outcome, message| SweepRow::not_done(point, chosen, outcome, message);
        let row = match self.children.ask(&task) {
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
