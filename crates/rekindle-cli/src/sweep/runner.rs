//! Runs the rows of a sweep.

use std::{env, process::Command};

use rekindle_plan::Bytes;
use rekindle_train::record::{PlainRun, RunRecord};

use super::{Point, SweepRow, record::RowOutcome};
use crate::{
    args::{MeasureArgs, ProfileArgs, SweepArgs, TrainArgs},
    child::{self, Refused, Task, this_program},
    device::DeviceChoice,
    exit,
    failure::Failure,
    plan_file::PlanFile,
};

/// Runs each row in a separate process.
pub struct Runner<'a> {
    args: &'a SweepArgs,
    /// Where rows run.
    device: DeviceChoice,
    /// Samples in each step.
    batch: usize,
}

impl<'a> Runner<'a> {
    /// Rows of a sweep.
    pub fn new(args: &'a SweepArgs, device: DeviceChoice, batch: usize) -> Self {
        Self {
            args,
            device,
            batch,
        }
    }

    fn measure(&self) -> MeasureArgs {
        MeasureArgs {
            device: Some(self.device),
            ..self.args.measure.clone()
        }
    }

    /// The smallest feasible budget. Reports every error that all rows would have.
    pub fn smallest_budget(&self) -> Result<Bytes, Failure> {
        let answer = child::ask(&Task::SmallestBudget(ProfileArgs {
            config: self.args.config.clone(),
            measure: self.measure(),
            output: None,
            json: true,
        }))?;
        serde_json::from_str(&answer).map_err(Failure::other)
    }

    /// A row, and what its run says of the plain run.
    pub fn row(&self, point: Point, chosen: bool) -> Result<(SweepRow, Option<PlainRun>), Failure> {
        let training = TrainArgs {
            steps: Some(self.args.steps),
            ..self.args.config.training(self.measure())
        };
        let training = point.of(training);
        let failed = |outcome, message| SweepRow::not_done(point, chosen, outcome, message);
        // Of several ranks alone, whose rows are then predicted.
        let link = self
            .args
            .network
            .link
            .filter(|_| matches!(point, Point::Ranks(_)));
        let answer = match (point, link) {
            (Point::Ranks(ranks @ 2..), None) => {
                let mut mpirun = Command::new("mpirun");
                // More ranks than cores, if need be, by the names of Open MPI 4 and 5.
                mpirun.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
                mpirun.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
                mpirun.args(["-n", &ranks.to_string()]);
                mpirun.arg(env::current_exe().map_err(Failure::other)?);
                mpirun.args(training.words("train")?);
                child::run(mpirun)
            }
            (Point::Ranks(ranks), Some(link)) => {
                let mut command = this_program().map_err(Failure::other)?;
                let planning = TrainArgs {
                    steps: None,
                    ..training
                };
                command.args(planning.words("plan")?);
                command.args(["--ranks", &ranks.to_string(), "--link", &link.to_string()]);
                child::run(command)
            }
            _ => child::ask(&Task::Train(Box::new(training))),
        };
        let row = match answer {
            Ok(answer) if link.is_some() => {
                let plan: PlanFile = serde_json::from_str(&answer).map_err(Failure::other)?;
                SweepRow::predicted(point, chosen, &plan, self.batch)
            }
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
