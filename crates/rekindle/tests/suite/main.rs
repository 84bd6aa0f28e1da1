//! The library's tests in one program, as each program links all of burn. Tests that measure memory or draw random
//! numbers begin with [`own_process!`](own_process). Those that need a GPU, or take one where it is, are beside this folder.

#[macro_use]
mod own_process;

#[path = "../parity/compare.rs"]
mod compare;
#[path = "../parity/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod models;
#[path = "../support/mutated.rs"]
mod mutated;
#[path = "../parity/random.rs"]
mod random;

mod accumulate;
mod activation;
mod budget;
mod counted;
mod executor;
mod golden_traces;
mod hostile;
mod jobs;
mod leaks;
mod leftovers;
mod measured_step;
mod memory;
mod memory_growth;
mod nonfinite;
mod odd_chains;
mod recheck;
mod record;
mod record_growth;
mod record_parity;
mod record_share;
mod record_size;
mod resume;
mod shortage;
mod tape;
mod tape_leaks;
mod tape_memory;
mod tracker;
mod zoo_build;
mod zoo_forward;
mod zoo_saved_bytes;
mod zoo_shapes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
