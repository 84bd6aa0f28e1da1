//! Tensors that are offloaded to host memory in pieces and fetched back whole, and the cost of the link.
//!
//! burn copies a tensor to the host in one piece. If its layout is not dense, burn first makes a dense copy of the same
//! size on the device. So tensors are read in pieces of [`PIECE_BYTES`], each of which takes at most twice its bytes on
//! the device, and as much pinned memory. The copy itself is in ordinary memory. A read waits for all earlier work, and
//! later work waits for the read: burn cannot transfer while it computes, so plans add the transfer's time to the
//! step's.
//!
//! A fetched tensor is dense, whatever its layout was. Its values are bit for bit the same.

use std::{collections::HashMap, ops::Range, time::Instant};

use burn::tensor::{Bool, DType, Device, DispatchTensor, Int, Tensor, TensorData};
use burn_ir::{OperationIr, TensorId};
use rekindle_plan::{
    Bytes, Seconds,
    graph::{Link, Rate},
};

use super::{
    RecordError, bridge, bridge::Interpreter, operation::empty, rank::of_rank, tensors::Tensors,
};

/// Maximum number of bytes per read.
pub const PIECE_BYTES: usize = 4 << 20;

/// Bytes of the two tensors whose transfers are timed: one that takes little more than the latency, and one of at most
/// two pieces.
const TIMED: [usize; 2] = [16 << 10, 2 * PIECE_BYTES];
/// Number of transfers of each tensor. The first is a warm-up.
const ROUNDS: usize = 6;

/// The host copies of a running step, by tensor number.
#[derive(Default)]
pub(super) struct Host(HashMap<usize, TensorData>);

/// A transfer of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Move<'a> {
    /// Its number in the recording.
    pub(super) tensor: usize,
    /// Whether it is moved to the host (otherwise back to the device).
    pub(super) offload: bool,
    /// Whether the source is freed: the tensor, or its host copy.
    pub(super) frees: bool,
    pub(super) tensors: &'a Tensors,
}

impl Move<'_> {
    /// Bytes that the transfer allocates on the device.
    pub(super) fn bytes(self) -> Bytes {
        let bytes = self.tensors.value_bytes(self.tensor);
        match self.offload {
            true => Bytes(bytes.min(PIECE_BYTES as u64) * 2),
            false => Bytes(bytes),
        }
    }

    /// An operation without values that frees or allocates the same on the device as the transfer.
    pub(super) fn without_values(self) -> Option<OperationIr> {
        let tensor = self.tensors.last_read(self.tensor);
        match self.offload {
            true => self.frees.then_some(OperationIr::Drop(tensor)),
            false => Some(empty(tensor)),
        }
    }

    /// Runs the transfer.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn run(
        self,
        interpreter: &mut dyn Interpreter,
        host: &mut Host,
    ) -> Result<(), RecordError> {
        let tensor = self.tensors.last_read(self.tensor);
        if self.offload {
            let data = read(&interpreter.hand_out(&tensor), tensor.dtype)?;
            host.0.insert(self.tensor, data);
            if self.frees {
                interpreter.run(OperationIr::Drop(tensor));
            }
            return Ok(());
        }
        let data = match self.frees {
            true => host.0.remove(&self.tensor),
            false => host.0.get(&self.tensor).cloned(),
        };
        let data = data.ok_or_else(|| {
            RecordError::Capture(format!("tensor {} is not on the host", self.tensor))
        })?;
        interpreter.give_data(tensor.id, data);
        Ok(())
    }
}

/// Copies a tensor's values to host memory.
fn read(tensor: &DispatchTensor, dtype: DType) -> Result<TensorData, RecordError> {
    let shape = burn_backend::TensorMetadata::shape(tensor);
    let mut bytes = Vec::with_capacity(shape.num_elements() * dtype.size());
    let mut held = dtype;
    for ranges in pieces(shape.as_slice(), dtype.size()) {
        let data = of_rank!(tensor, D => {
            let ranges: [Range<usize>; D] = std::array::from_fn(|dimension| ranges[dimension].clone());
            let tensor = tensor.clone();
            if dtype.is_bool() {
                Tensor::<D, Bool>::from_dispatch(tensor).slice(ranges).try_into_data()
            } else if dtype.is_int() || dtype.is_uint() {
                Tensor::<D, Int>::from_dispatch(tensor).slice(ranges).try_into_data()
            } else {
                Tensor::<D>::from_dispatch(tensor).slice(ranges).try_into_data()
            }
        });
        let data = data.map_err(|error| RecordError::Device(error.to_string()))?;
        held = data.dtype();
        bytes.extend_from_slice(data.as_bytes());
    }
    Ok(TensorData::from_bytes_vec(bytes, shape, held))
}

/// A tensor of this shape in pieces of at most [`PIECE_BYTES`], in the order of its values.
pub fn pieces(shape: &[usize], value_bytes: usize) -> Vec<Vec<Range<usize>>> {
    pieces_of(shape.iter().map(|&length| 0..length).collect(), value_bytes)
}

/// Divides a part of a tensor likewise.
fn pieces_of(part: Vec<Range<usize>>, value_bytes: usize) -> Vec<Vec<Range<usize>>> {
    let values: usize = part.iter().map(Range::len).product();
    let longer = part.iter().position(|range| range.len() > 1);
    let Some(cut) = longer.filter(|_| values * value_bytes > PIECE_BYTES) else {
        return vec![part];
    };
    let row_bytes = values / part[cut].len() * value_bytes;
    let rows = (PIECE_BYTES / row_bytes).max(1);
    let starts = part[cut].clone().step_by(rows);
    let cut_at = |start: usize| {
        let mut piece = part.clone();
        piece[cut] = start..part[cut].end.min(start + rows);
        pieces_of(piece, value_bytes)
    };
    starts.flat_map(cut_at).collect()
}

/// Measures the link between a device and host memory; host copies may take up to `host_bytes`. On the device, the
/// measurement takes no more than `most`, for example the bytes of the [largest
/// tensor](super::Recorded::largest_tensor) of the step to be planned.
///
/// # Errors
/// [`RecordError::NoLink`] for a device that uses the host's memory, or an error if the device fails.
pub fn measured_link(device: &Device, host_bytes: Bytes, most: Bytes) -> Result<Link, RecordError> {
    if device.memory_pool_usage().is_none() {
        return Err(RecordError::NoLink);
    }
    let [small, large] = TIMED;
    let timed = [small, large.min(most.0 as usize).max(4 * small)];
    let mut best = [[f64::INFINITY; 2]; TIMED.len()];
    for (bytes, best) in timed.into_iter().zip(&mut best) {
        let values = bytes / DType::F32.size();
        let tensor = Tensor::<1>::zeros([values], (device, DType::F32));
        let tensor = tensor.without_autodiff().into_dispatch();
        let mut interpreter = bridge::interpreter(&tensor)?;
        interpreter.give(TensorId::new(0), tensor);
        let mut tensors = super::tensors::Numbering::default();
        tensors.add(TensorId::new(0), &[values].into(), DType::F32);
        let tensors = tensors.finish();
        let mut host = Host::default();
        for round in 0..ROUNDS {
            for (offload, best) in [true, false].into_iter().zip(&mut *best) {
                let _ = device.sync();
                let started = Instant::now();
                let one = Move {
                    tensor: 0,
                    offload,
                    frees: true,
                    tensors: &tensors,
                };
                one.run(interpreter.as_mut(), &mut host)?;
                let _ = device.sync();
                if round > 0 {
                    *best = best.min(started.elapsed().as_secs_f64());
                }
            }
        }
    }
    device.memory_cleanup();
    let rate = |way: usize| {
        let time = |size: usize| (Bytes(timed[size] as u64), Seconds(best[size][way]));
        Rate::of_times(time(0), time(1))
    };
    Ok(Link {
        to_host: rate(0),
        to_device: rate(1),
        host_bytes,
        staging_bytes: Bytes(2 * PIECE_BYTES as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All indices of a shape, in the order of its values.
    fn places(shape: &[usize]) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for &length in shape {
            let longer =
                |place: Vec<usize>| (0..length).map(move |at| [place.clone(), vec![at]].concat());
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    #[test]
    fn pieces_hold_each_value_once_in_order_and_are_no_larger_than_asked() {
        // Values are so large that only a few fit into a piece.
        for (shape, in_piece) in [
            (vec![7], 3),
            (vec![2, 3, 4], 5),
            (vec![1, 1, 9], 4),
            (vec![3, 5], 1),
            (vec![2, 2, 2, 2], 100),
            (vec![5, 1, 3], 3),
        ] {
            let mut read = Vec::new();
            for ranges in pieces(&shape, PIECE_BYTES / in_piece) {
                let values: usize = ranges.iter().map(Range::len).product();
                assert!((1..=in_piece).contains(&values), "{shape:?} in {in_piece}");
                let lengths: Vec<usize> = ranges.iter().map(Range::len).collect();
                read.extend(places(&lengths).into_iter().map(|place| {
                    let starts = ranges.iter().map(|range| range.start);
                    place
                        .iter()
                        .zip(starts)
                        .map(|(at, start)| at + start)
                        .collect::<Vec<_>>()
                }));
            }
            assert_eq!(read, places(&shape));
        }
    }
}
