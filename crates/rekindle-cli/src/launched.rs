//! What `mpirun` says of a process that it has started.

use std::{env, ffi::OsStr};

/// What `mpirun` says of this process in its environment.
pub struct Launched {
    pub rank: usize,
    pub ranks: usize,
    local: Local,
}

/// A rank's number among those of its machine.
#[derive(Debug, Clone, Copy)]
pub struct Local {
    pub rank: usize,
    pub ranks: usize,
}

/// This process's place in a job of several, by the variables of Open MPI, else of MPICH.
pub fn launched() -> Option<Launched> {
    let number = |names: [&str; 2]| -> Option<usize> {
        let mut found = names.into_iter().filter_map(|name| env::var(name).ok());
        found.find_map(|text| text.parse().ok())
    };
    let ranks = number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]).filter(|ranks| *ranks > 1)?;
    let rank = number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"])?;
    let local = Local {
        rank: number(["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]).unwrap_or(rank),
        ranks: number(["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"]).unwrap_or(ranks),
    };
    Some(Launched { rank, ranks, local })
}

/// This process's place on its machine.
pub fn local() -> Local {
    let alone = Local { rank: 0, ranks: 1 };
    launched().map_or(alone, |launched| launched.local)
}

/// Whether a variable marks a process as a rank.
pub fn is_variable(name: &OsStr) -> bool {
    let prefixes = ["OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL"];
    let name = name.to_string_lossy();
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether this process reports for all.
pub fn is_first() -> bool {
    launched().is_none_or(|launched| launched.rank == 0)
}
