//! The library's tests in one program, as each program links all of burn. Tests that measure memory or need the
//! order of random numbers begin with [`own_process!`](own_process). Those of GPUs are in `rekindle-train`, which opens them.

#[macro_use]
#[path = "../support/own_process.rs"]
mod own_process;

#[path = "../support/compare.rs"]
mod compare;
#[path = "../support/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod models;

mod accumulate;
mod checkpoint;
mod chunked;
mod families;
mod master_weights;
mod ranks;
mod record;
mod record_growth;
mod record_parity;
mod record_share;
mod record_size;
mod record_trace;
mod size;
mod tensor_tree;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
