//! What wgpu refuses, and no call returns.
//!
//! A kernel that wgpu refuses, because a buffer is larger than may be bound, say, is told to an error handler. cubecl's
//! handler panics on the device's own thread, which goes on without the kernel: what should have been computed is then read
//! without an error. Panics of that kind are noted here, so that a step can fail in place of handing out such numbers.

use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn_backend::cubecl::RuntimeId;
#[cfg(feature = "wgpu")]
use burn_dispatch::DispatchDevice;
use rekindle_plan::Bytes;

use crate::quiet;

/// The first error since this was last called, of any device of the process. The caller waits for queued work before.
pub(crate) fn take() -> Option<String> {
    quiet::take_refusal()
}

/// As [`take`], after queued work of a device of wgpu is done. Others return their errors where values are read.
pub(crate) fn settled(device: &Device) -> Option<String> {
    if largest_buffer(device).is_some() {
        let _ = device.sync();
    }
    take()
}

/// The most bytes that wgpu binds of one buffer, which bounds cubecl's pages; `None` for devices of other backends.
pub(crate) fn largest_buffer(device: &Device) -> Option<Bytes> {
    #[cfg(feature = "wgpu")]
    if let DispatchDevice::Cube(cube) = device.clone().without_autodiff().as_dispatch()
        && cube.runtime() == RuntimeId::Wgpu
    {
        return Some(Bytes(cube.client().properties().memory.max_page_size));
    }
    let _ = device;
    None
}
