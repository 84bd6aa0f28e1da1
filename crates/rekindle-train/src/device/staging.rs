//! Pinned host memory, which a GPU's copies pass through, and how little of it is held.
//!
//! cubecl's CUDA backend copies values to the device from pinned pages where they are smaller than 100 MiB, and uses a page
//! again two batches of copies later; a batch is 64 copies or 64 MiB. Values that come from the device lie in pinned pages as
//! long as anybody holds them. A page is up to 2 MiB larger than the tensor it was made for, and stays pinned until a
//! clean-up. 8 MiB more hold the arguments of kernels.
//!
//! So where many tensors go to a device one after another, a clean-up now and then bounds what is pinned: [`MOST`] and one
//! tensor. `docs/cuda.md` states what this comes to, and `tests/cli_cuda_memory.rs` measures it.

use burn::tensor::Device;

/// Bytes copied between two clean-ups.
const MOST: u64 = 32 << 20;

/// Counts what is copied to a device, and gives pinned pages back in time: now and then, and when it is dropped.
#[derive(Default)]
pub(crate) struct Staging {
    copied: u64,
    device: Option<Device>,
}

impl Staging {
    /// Notes a tensor of so many bytes that was copied to `device`.
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

/// Gives pinned pages that nobody uses back to the system, and pools' free buffers to the device. Waits for queued work; a
/// failure is that work's to report. Nothing on the processor.
fn release(device: &Device) {
    let _ = device.sync();
    device.memory_cleanup();
}
