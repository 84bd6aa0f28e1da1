//! Processes started by `mpirun`: each is a rank of one job.
//!
//! Rank 0 reports for all of them. A failure before ranks are connected is the same on all of them: the others
//! [leave it](leave_to_first) to rank 0. Later they [exchange](end) their failures.

use std::{collections::BTreeMap, process, thread, time::Duration};

use clap::CommandFactory;
use rekindle::record::{
    Rate,
    driver::{named, rehearsal},
};
use rekindle_train::{device::seal_kernels, ranks::Ranks};

use crate::{
    args::{Cli, Command},
    exit,
    failure::{self, Failure, Outcome, document::ErrorDocument},
    launched::{is_first, launched},
    terminal::LookArgs,
};

/// How long ranks wait for rank 0 to report: `mpirun` ends all ranks after the first one that fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// How this process's output looks: ranks but the first print no progress and no notes.
pub fn look(look: LookArgs) -> LookArgs {
    LookArgs {
        quiet: look.quiet || !is_first(),
        ..look
    }
}

/// Makes the other ranks wait for the first, which reports the failure for all: when it ends, `mpirun` ends the others.
/// If the first rank does not end, the others continue and report the failure.
pub fn leave_to_first(code: i32) {
    if is_first() {
        return;
    }
    if code == exit::DONE {
        process::exit(code);
    }
    thread::sleep(PATIENCE);
}

/// Whether `mpirun` can start a command.
pub fn check(command: &Command) -> Outcome {
    if launched().is_none() {
        return Ok(());
    }
    match command {
        Command::Train(args) if args.compare => Err(Failure::usage(
            "`--compare` measures plain steps of one process: leave it out under `mpirun`",
        )),
        Command::Plan(args) if args.chain.is_some() || args.graph.is_some() => Err(Failure::usage(
            "`--chain` and `--graph` are planned by one process: start it without `mpirun`",
        )),
        Command::Train(_) | Command::Plan(_) if cfg!(feature = "mpi") => Ok(()),
        Command::Train(_) | Command::Plan(_) => Err(Failure::usage(
            "this `rekindle` is built without MPI: it runs as one process",
        )
        .help("build it with `--features mpi`, or start it without `mpirun`")),
        _ => {
            let typed = Cli::command().get_matches();
            let name = typed.subcommand_name().unwrap_or_default().to_owned();
            Err(Failure::usage(format!(
                "`rekindle {name}` is one process: start it without `mpirun`"
            )))
        }
    }
}

/// The ranks of this process's job. To be called once, after a [`check`].
pub fn world() -> Result<Ranks, Failure> {
    #[cfg(feature = "mpi")]
    if let Some(launched) = launched() {
        return connected(&launched);
    }
    Ok(Ranks::default())
}

/// The ranks of a plan: those of this job, else the given number of simulated ranks with this link between them.
pub fn planned_for(
    world: &Ranks,
    asked: Option<usize>,
    link: Option<Rate>,
) -> Result<Ranks, Failure> {
    match (asked, link) {
        (None, _) => Ok(world.clone()),
        (Some(_), _) if !world.is_alone() => Err(Failure::usage(
            "`mpirun` says how many ranks there are, and their link is measured: leave out `--ranks` and `--link`",
        )),
        (Some(1), _) => Ok(Ranks::default()),
        (Some(count), Some(link)) => Ok(Ranks::new(rehearsal(count, link), crate::stop::asked)),
        (Some(count), None) => Err(Failure::usage(format!(
            "the step time of {count} ranks depends on the link between them"
        ))
        .help(format!(
            "`--ranks {count} --link 12GB/s,5us` names it; `mpirun -n {count}` measures it"
        ))),
    }
}

#[cfg(feature = "mpi")]
fn connected(launched: &crate::launched::Launched) -> Result<Ranks, Failure> {
    /// How much longer than the previous rank each rank waits. If one rank hangs, all others notice: the first of them
    /// reports it, and when it ends, `mpirun` ends the others, for which Open MPI takes a second.
    const TURN: Duration = Duration::from_secs(2);
    let world = rekindle::mpi::world().map_err(Failure::other)?;
    let limit = time_limit().inspect_err(|refusal| leave_to_first(refusal.code))?;
    let world =
        world.with_time_limit(limit.saturating_add(TURN.saturating_mul(launched.rank as u32)));
    let (found, started) = (world.ranks(), launched.ranks);
    if found != started {
        leave_to_first(exit::USAGE);
        return Err(Failure::usage(format!(
            "`mpirun` has started {started} ranks, but MPI finds {found}: this `rekindle` is built against another MPI than \
             that of `mpirun`"
        )));
    }
    Ok(Ranks::new(world, crate::stop::asked))
}

/// How long ranks wait for each other.
#[cfg(feature = "mpi")]
fn time_limit() -> Result<Duration, Failure> {
    /// Names the time.
    const VARIABLE: &str = "REKINDLE_RANK_TIMEOUT";
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(rekindle::record::driver::TIME_LIMIT);
    };
    let text = text.to_string_lossy();
    let limit = humantime::parse_duration(&text).ok();
    limit.filter(|limit| !limit.is_zero()).ok_or_else(|| {
        Failure::usage(format!(
            "{VARIABLE} is {text:?}, not a time such as 90s, 10min or 2h"
        ))
    })
}

/// Returns each rank's own result if all ranks have succeeded, else a failure.
pub fn settled<T>(ranks: &Ranks, own: Result<T, Failure>) -> Result<T, Failure> {
    let other = Failure::coded(exit::OTHER_RANK, "another rank failed");
    ranks.settle(own, other).map_err(Failure::other)?
}

/// Ends the command. With several ranks, the first reports each message once, and all end with the same exit code. A
/// rank that fails alone reports its own failure; `mpirun` then ends the others.
pub fn end(ranks: Ranks, outcome: Outcome) -> Outcome {
    if ranks.is_alone() {
        return outcome;
    }
    let own = outcome.as_ref().err().map(ErrorDocument::from);
    let rank = ranks.rank();
    let together = outcome.is_ok() || ranks.ends_with_others();
    let gathered = || ranks.gathered(own.clone()).ok();
    let Some(all) = together.then(gathered).flatten() else {
        failure::end(own.map_or(Ok(()), |mut own| {
            own.error = format!("{}: {}", named(&[rank]), own.error);
            Err(own.failure())
        }))
    };
    let end = joint(&all);
    let code = end.as_ref().map_or(exit::DONE, |end| end.exit_code);
    if rank == 0
        && let Some(end) = end
    {
        let failure = match outcome {
            // With the place in a config.
            Err(failure) if own.as_ref() == Some(&end) => failure,
            outcome => Failure {
                infeasible: outcome.err().and_then(|own| own.infeasible),
                ..end.failure()
            },
        };
        failure.tell();
    }
    // Whoever ends first has `mpirun` end the others.
    let _ = ranks.gathered(());
    drop(ranks);
    seal_kernels();
    process::exit(code);
}

/// The report of ranks that end together: each message once, with its ranks if not all have it. `None` if there is no
/// failure.
fn joint(all: &[Option<ErrorDocument>]) -> Option<ErrorDocument> {
    let own = |end: &&ErrorDocument| end.exit_code != exit::OTHER_RANK;
    let first = all.iter().flatten().find(own)?;
    let mut said: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, end) in all.iter().enumerate() {
        if let Some(end) = end.as_ref().filter(own) {
            said.entry(&end.error).or_default().push(rank);
        }
    }
    if said.values().all(|ranks| ranks.len() == all.len()) {
        return Some(first.clone());
    }
    let mut said: Vec<_> = said.into_iter().collect();
    said.sort_by_key(|(_, ranks)| ranks[0]);
    let said = said
        .iter()
        .map(|(message, ranks)| format!("{}: {message}", named(ranks)));
    let mut end = first.clone();
    end.error = said.collect::<Vec<_>>().join("\n");
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_said_once_with_its_ranks() {
        let end = |code, message: &str| {
            let failure = Failure::coded(code, message);
            Some(ErrorDocument::from(&failure))
        };
        let (done, other) = (None, end(exit::OTHER_RANK, "x"));
        let wrong = end(exit::USAGE, "no such key");
        let lost = end(exit::FILE_REFUSED, "no such file");
        assert_eq!(joint(&[done.clone(), done.clone()]), None);
        // The run is done, which rank 0 alone knows.
        assert_eq!(joint(&[done, other.clone()]), None);
        assert_eq!(joint(&[wrong.clone(), wrong.clone()]), wrong);
        assert_eq!(
            joint(&[other.clone(), lost.clone(), other]),
            end(exit::FILE_REFUSED, "rank 1: no such file")
        );
        assert_eq!(
            joint(&[wrong.clone(), lost, wrong]),
            end(
                exit::USAGE,
                "ranks 0 and 2: no such key\nrank 1: no such file"
            )
        );
    }
}
