//! Tensors that wait in the host's memory: read in pieces, given back whole; and what the link costs.
//!
//! burn copies a tensor to the host in one piece, after making it dense on the device where it lies there in another order:
//! a second tensor of its size. So it is read in pieces of [`PIECE_BYTES`], each of which takes twice its bytes on the
//! device at most, and as much pinned memory. The copy itself is ordinary memory. A read waits for all work before it, and
//! what follows waits for the read: burn has no transfer beside computing, so plans add its time to the step's.
//!
//! A tensor that comes back is dense, whatever its order was. Its values are the same bit for bit.

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

/// The most bytes that are read at once.
const PIECE_BYTES: usize = 4 << 20;

/// The bytes of the two tensors whose transfers are timed: hardly more than a latency, and at most two pieces.
const TIMED: [usize; 2] = [16 << 10, 2 * PIECE_BYTES];
/// How often each is moved. The first time warms up.
const ROUNDS: usize = 6;

/// The copies on the host of a running step, by their tensors' numbers.
#[derive(Default)]
pub(super) struct Host(HashMap<usize, TensorData>);

/// A tensor on its way.
#[derive(Clone, Copy)]
pub(super) struct Move<'a> {
    /// Its number in the recording.
    pub(super) tensor: usize,
    /// Whether it goes to the host.
    pub(super) offload: bool,
    /// Whether what it comes from is freed: the tensor, or its copy.
    pub(super) frees: bool,
    pub(super) tensors: &'a Tensors,
}

impl Move<'_> {
    /// What it makes on the device.
    pub(super) fn bytes(self) -> Bytes {
        let bytes = self.tensors.value_bytes(self.tensor);
        match self.offload {
            true => Bytes(bytes.min(PIECE_BYTES as u64) * 2),
            false => Bytes(bytes),
        }
    }

    /// What the move frees or makes on the device, without values.
    pub(super) fn without_values(self) -> Option<OperationIr> {
        let tensor = self.tensors.last_read(self.tensor);
        match self.offload {
            true => self.frees.then_some(OperationIr::Drop(tensor)),
            false => Some(empty(tensor)),
        }
    }

    /// Moves it.
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

/// A tensor's values, in memory of the host's own.
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

/// A tensor of this shape in pieces, in the order of its values.
fn pieces(shape: &[usize], value_bytes: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
    // The outermost dimension whose rows fit in a piece is cut.
    let row = |dimension: usize| shape[dimension + 1..].iter().product::<usize>() * value_bytes;
    let cut = (0..shape.len()).find(|&dimension| row(dimension) <= PIECE_BYTES);
    let cut = cut.unwrap_or(shape.len().saturating_sub(1));
    let length = shape.get(cut).copied().unwrap_or(1);
    let rows = (PIECE_BYTES / row(cut).max(1)).clamp(1, length.max(1));
    let outer: usize = shape[..cut].iter().product();
    (0..outer).flat_map(move |place| {
        let shape = shape.to_vec();
        (0..length).step_by(rows).map(move |start| {
            let mut ranges: Vec<Range<usize>> = shape.iter().map(|&length| 0..length).collect();
            let mut rest = place;
            for dimension in (0..cut).rev() {
                let at = rest % shape[dimension];
                rest /= shape[dimension];
                ranges[dimension] = at..at + 1;
            }
            ranges[cut] = start..length.min(start + rows);
            ranges
        })
    })
}

/// Measures the link between a device and the host's memory, of which copies may take so many bytes. On the device it
/// takes no more than `most`, such as the [largest tensor](super::Recorded::largest_tensor) of the step that is planned.
///
/// # Errors
/// [`RecordError::NoLink`] for a device whose memory is the host's; if the device fails.
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

    /// All places of a shape, in the order of its values.
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
        // A value is so large that few make a piece.
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
