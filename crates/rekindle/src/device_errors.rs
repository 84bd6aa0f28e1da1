//! Errors of wgpu that no call returns.
//!
//! If wgpu rejects a kernel, for example because a buffer is larger than the binding limit, it calls an error handler.
//! cubecl's handler panics on the device's own thread, which continues without the kernel, and reading its result gives
//! wrong numbers without an error. This module records such panics, so that a step can fail instead of returning those
//! numbers.

use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn_backend::cubecl::RuntimeId;
#[cfg(feature = "wgpu")]
use burn_dispatch::DispatchDevice;
use rekindle_plan::Bytes;

use crate::quiet;

/// The first error of any device in the process since it was last [taken](quiet::take_refusal). Waits for queued work first if
/// the device is a wgpu device. Other devices return their errors when values are read.
pub(crate) fn settled(device: &Device) -> Option<String> {
    if largest_buffer(device).is_some() {
        let _ = device.sync();
    }
    quiet::take_refusal()
}

/// wgpu's limit on the bytes bound of one buffer, which bounds cubecl's pages; `None` for devices of other backends.
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
