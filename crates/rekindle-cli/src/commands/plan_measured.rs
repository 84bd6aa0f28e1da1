//! `rekindle plan-measured`: planning in a process of its own.
//!
//! On the processor a budget bounds the memory of the process that trains. Planners fill tables that can be larger
//! than a small model, so `train` hands the measured chain to another process of this program and gets a schedule
//! back. What goes over the pipes: two lines of JSON there (the request, what graphs hold) and the chain, a line back.

use std::{
    io::{BufRead, BufReader, Read, Write, stdin},
    process::{Command, Stdio},
};

use rekindle::profile::Measured;
use rekindle_plan::{
    Action, Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, Source,
};
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Failure, Outcome},
    output,
};

/// The subcommand's name.
pub const NAME: &str = "plan-measured";

#[derive(Serialize, Deserialize)]
enum Answer {
    Plan {
        planner: PlannerKind,
        source: Source,
        actions: Vec<Action>,
    },
    Infeasible {
        smallest: Bytes,
        smallest_of_all: Bytes,
    },
    /// Anything else: the caller plans itself and meets the same error.
    Error,
}

/// Plans what comes on standard input.
pub fn run() -> Outcome {
    let mut input = stdin().lock();
    let mut line = || {
        let mut line = String::new();
        input.read_line(&mut line).map_err(Failure::other)?;
        Ok::<_, Failure>(line)
    };
    let request: PlanRequest = serde_json::from_str(&line()?).map_err(Failure::usage)?;
    let (holds, sweep_s) = serde_json::from_str(&line()?).map_err(Failure::usage)?;
    let mut chain = String::new();
    input.read_to_string(&mut chain).map_err(Failure::other)?;
    let chain = Chain::from_json(&chain).map_err(Failure::usage)?;
    let measured = Measured {
        chain,
        holds,
        sweep_s,
    };
    let answer = match measured.plan(&request) {
        Ok(plan) => Answer::Plan {
            planner: plan.planner,
            source: plan.source,
            actions: plan.schedule.actions().to_vec(),
        },
        Err(PlanError::Infeasible {
            smallest,
            smallest_of_all,
            ..
        }) => Answer::Infeasible {
            smallest,
            smallest_of_all,
        },
        Err(_) => Answer::Error,
    };
    let answer = serde_json::to_string(&answer).map_err(Failure::other)?;
    output::text(&format!("{answer}\n"))
}

/// A plan from another process; `None` where there can be none, for any reason.
pub fn elsewhere(measured: &Measured, request: &PlanRequest) -> Option<Result<Plan, PlanError>> {
    let budget = request.budget?;
    let mut child = Command::new(std::env::current_exe().ok()?)
        .arg(NAME)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let sent = child.stdin.take().map(|mut to| -> std::io::Result<()> {
        serde_json::to_writer(&mut to, request)?;
        to.write_all(b"\n")?;
        serde_json::to_writer(&mut to, &(&measured.holds, measured.sweep_s))?;
        let chain = measured.chain.to_json().map_err(std::io::Error::other)?;
        to.write_all(b"\n")?;
        to.write_all(chain.as_bytes())
    });
    let mut answer = String::new();
    let read = child
        .stdout
        .take()
        .map(|from| BufReader::new(from).read_line(&mut answer));
    let ended = child.wait().ok()?;
    sent?.ok()?;
    read?.ok()?;
    if !ended.success() {
        return None;
    }
    match serde_json::from_str(&answer).ok()? {
        Answer::Plan {
            planner,
            source,
            actions,
        } => {
            let schedule = Schedule::new(measured.chain.stages.len(), actions).ok()?;
            let plan = Plan {
                planner,
                schedule,
                peak: Bytes(0),
                step: Seconds(0.0),
                source,
            };
            Some(Ok(measured.costed(plan).ok()?))
        }
        Answer::Infeasible {
            smallest,
            smallest_of_all,
        } => Some(Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
            smallest_of_all,
        })),
        Answer::Error => None,
    }
}
