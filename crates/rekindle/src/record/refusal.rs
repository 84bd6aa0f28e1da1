//! What a device has refused, told in terms of the step.

use super::{RecordError, recording::Recording};
use crate::{device_errors, meter::Meter};

impl RecordError {
    /// What the device has refused since this was last asked for: numbers that were to be computed are not there. Queued
    /// work is done.
    pub(super) fn of_device(recording: &Recording, meter: &dyn Meter) -> Result<(), Self> {
        let Some(refusal) = device_errors::take() else {
            return Ok(());
        };
        match meter.largest_buffer().zip(recording.largest()) {
            Some((limit, (tensor, bytes))) if bytes > limit => Err(Self::TensorTooLarge {
                tensor: recording.describe(tensor),
                bytes,
                limit,
                refusal,
            }),
            _ => Err(Self::Device(refusal)),
        }
    }
}
