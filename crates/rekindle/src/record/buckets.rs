//! Which gradients ranks sum together, and the memory for it.

use rekindle_plan::Bytes;

use super::{recording::Recording, update::Update};

/// Maximum bytes of gradients in a bucket; a larger gradient has its own bucket.
pub(super) const BUCKET_BYTES: usize = 4 << 20;

/// Bytes of a value in a bucket.
pub(super) const VALUE: usize = size_of::<f32>();

/// Gradients that are summed together: the indices of their parameters in recordings, with their numbers of elements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bucket(pub(super) Vec<(usize, usize)>);

impl Bucket {
    /// Divides gradients, in order, into buckets.
    fn cut(order: impl Iterator<Item = (usize, usize)>) -> Vec<Self> {
        let mut buckets = vec![Self(Vec::new())];
        for (place, elements) in order {
            let last = buckets.len() - 1;
            let filled = buckets[last].elements();
            if filled > 0 && (filled + elements) * VALUE > BUCKET_BYTES {
                buckets.push(Self(Vec::new()));
            }
            let last = buckets.len() - 1;
            buckets[last].0.push((place, elements));
        }
        buckets
    }

    /// Number of elements of all gradients in the bucket.
    pub(super) fn elements(&self) -> usize {
        self.0.iter().map(|(_, elements)| elements).sum()
    }
}

/// Memory of the process that an exchange holds besides the gradients that a plan counts: a bucket and the sum of the
/// previous one, and a copy of a gradient that is copied in or out. For updates in the backward pass: two more buckets,
/// because one is awaited while the next is filled, and the memory of its updates, which run later than planned. With
/// means over ranks: all gradients, which wait for the last mean. For 16-bit gradients, also the difference to 32 bits.
pub(super) fn staging(recording: &Recording, update: Update, largest_update: Bytes) -> Bytes {
    let trained = recording
        .parameters
        .iter()
        .filter(|one| one.gradient.is_some());
    let sizes = trained.map(|one| {
        let values = recording.tensors.shape(one.tensor).num_elements() * VALUE;
        (values as u64, recording.tensors.value_bytes(one.tensor))
    });
    let (mut all, mut largest, mut wider) = (0, 0, 0);
    for (values, bytes) in sizes {
        all += values;
        largest = largest.max(values);
        wider += values.saturating_sub(bytes);
    }
    let bucket = all.min(largest.max(BUCKET_BYTES as u64));
    let staging = Bytes(2 * bucket + largest);
    match update {
        Update::After => staging + Bytes(wider),
        Update::InBackward => {
            let waits = recording.synchronised().next().is_some();
            let waiting = if waits { all } else { 0 };
            staging + Bytes(2 * bucket + waiting) + largest_update
        }
    }
}

/// The buckets of parameters in this order.
pub(super) fn buckets(
    recording: &Recording,
    order: impl IntoIterator<Item = usize>,
) -> Vec<Bucket> {
    let sized = order.into_iter().filter_map(|place| {
        let parameter = recording.parameters.get(place)?;
        Some((
            place,
            recording.tensors.shape(parameter.tensor).num_elements(),
        ))
    });
    Bucket::cut(sized)
}

/// Bytes on the network of so many values each.
pub(super) fn on_network(values: impl Iterator<Item = usize>) -> Vec<Bytes> {
    values.map(|one| Bytes((one * VALUE) as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cut_at_their_size() {
        let full = BUCKET_BYTES / VALUE;
        let cut = |sizes: &[usize]| -> Vec<usize> {
            let buckets = Bucket::cut(sizes.iter().copied().enumerate());
            buckets.iter().map(|bucket| bucket.0.len()).collect()
        };
        assert_eq!(cut(&[]), [0]);
        assert_eq!(cut(&[1, 2, 3]), [3]);
        assert_eq!(cut(&[full - 1, 1, 1]), [2, 1]);
        assert_eq!(cut(&[1, full, 1]), [1, 1, 1]);
        assert_eq!(cut(&[3 * full, 1, full - 1, 2]), [1, 2, 1]);
    }
}
