//! Converts device errors to errors of the step.

use super::{RecordError, recording::Recording};
use crate::{meter::Meter, quiet};

impl RecordError {
    /// Fails if the device has rejected a kernel since the last call, so that results are missing. Queued work must be
    /// done.
    pub(super) fn of_device(recording: &Recording, meter: &dyn Meter) -> Result<(), Self> {
        let Some(refusal) = quiet::take_refusal() else {
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
