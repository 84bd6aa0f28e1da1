//! Bounds the pinned host memory that copies to and from a GPU use.
//!
//! cubecl's CUDA backend copies values of less than 100 MiB to the device from pinned pages, and reuses a page two
//! batches of copies later; a batch is 64 copies or 64 MiB. Values read from the device are in pinned pages as long as
//! they are held. A page is up to 2 MiB larger than the tensor for which it was allocated, and stays pinned until a
//! clean-up. Another 8 MiB hold the arguments of kernels.
//!
//! So when many tensors are copied to a device one after another, regular clean-ups bound the pinned memory to [`MOST`]
//! plus one tensor. `docs/cuda.md` states the resulting size, and `tests/cuda/memory.rs` measures it.

use burn::tensor::Device;

/// Bytes copied between two clean-ups.
const MOST: u64 = 32 << 20;

/// Counts bytes copied to a device, and releases pinned pages at intervals, and when it is dropped.
#[derive(Default)]
pub(crate) struct Staging {
    copied: u64,
    device: Option<Device>,
}

impl Staging {
    /// Counts a tensor of `bytes` bytes that was copied to `device`.
    pub(crate) fn copied(&mut self, bytes: u64, device: &Device) {
        self.copied += bytes;
        if self.copied >= MOST {
            self.copied = 0;
            release(device);
        }
        self.device.get_or_insert_with(|| device.clone());
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(device) = self.device.as_ref().filter(|_| self.copied > 0) {
            release(device);
        }
    }
}

/// Returns unused pinned pages to the system, and the pools' free buffers to the device. Waits for queued work, whose
/// errors are reported elsewhere. No effect on the CPU.
fn release(device: &Device) {
    let _ = device.sync();
    device.memory_cleanup();
}
