//! Tests on a GPU where one answers, and on the processor beside it. Each has a process of its own: memory pools are set up
//! at the first touch, their use is the whole process's, and so are random numbers.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[macro_use]
#[path = "../../../rekindle/tests/support/own_process.rs"]
mod own_process;

#[path = "../../../rekindle/tests/support/compare.rs"]
mod compare;
#[path = "../../../rekindle/tests/support/models.rs"]
mod models;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[path = "../../../rekindle/tests/suite/record_parity/models.rs"]
#[expect(
    dead_code,
    reason = "shared with the library's parity tests, which use all of it"
)]
mod recorded_models;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod budget;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod growth;
mod half_precision;
mod parity;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod record;

/// The GPU that answers.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn gpu() -> Option<rekindle_train::device::DeviceInfo> {
    use rekindle_train::device::{DeviceId, probe};

    let devices = [DeviceId::Cuda(0), DeviceId::Wgpu(0)];
    let found = devices.into_iter().find_map(|device| probe(device).ok());
    match &found {
        Some(gpu) => println!("on {} ({})", gpu.device, gpu.name),
        None => println!("skipped: no GPU answers"),
    }
    found
}

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
