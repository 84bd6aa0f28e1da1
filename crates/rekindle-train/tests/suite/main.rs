//! The crate's tests in one program, as each program links all of burn. Tests that measure memory or draw random
//! numbers begin with [`own_process!`](own_process). Those that need a GPU, or take one where it is, are beside this folder.

#[macro_use]
#[path = "../../../rekindle/tests/support/own_process.rs"]
mod own_process;

#[path = "../../../rekindle/tests/support/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod models;
#[path = "../../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;
#[path = "../../../rekindle/tests/suite/record_parity/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod recorded_models;

mod accumulate;
mod compared;
mod estimated;
mod hostile;
mod images;
mod jobs;
mod largest;
mod leaks;
mod measured_step;
mod memory_growth;
mod mixed_precision;
mod nonfinite;
mod resume;
mod shortage;
mod tracker;
mod update_in_backward;
mod watch;
mod zoo_build;
mod zoo_forward;
mod zoo_shapes;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
