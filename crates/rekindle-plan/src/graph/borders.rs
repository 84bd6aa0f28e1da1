//! Borders: the points of a forward pass where few tensors are live, so that it can be cut there into stages.
//!
//! A storage is live at a point if a forward operation before the point makes it and a forward operation after the
//! point reads it. Storages that only the backward pass reads later do not count, because they can be recomputed. Given
//! tensors and their views do not count either, nor do tensors without bytes, nor cheap tensors, which are made from
//! given ones in at most a thousandth of the forward time (a cast parameter, a mask).
//!
//! If there are marks ([`Operation::stage`](super::Operation::stage)), they determine the borders: one wherever the
//! stage changes, and one after the last marked operation. Otherwise every point with one live storage is a border:
//! these are the articulation points to which Jain et al. 2020 (arXiv 1910.02653) extend the segments of Chen et al.
//! 2016 (arXiv 1604.06174). If there are more than [`MOST_STAGES`], the pass is divided into slices of equal weight,
//! and only the point of each slice with the fewest live bytes is kept. A stretch between two borders that holds more
//! than [`LONG_STRETCH`] of the weight (in a U-Net, whose skips cross everything) is also cut at points with up to
//! [`MOST_LIVE`] live storages, chosen in the same way. The weight of an operation is its share of the bytes plus its
//! share of the seconds. Cost: O(operations and their tensors).

use super::storages::{Storage, storages, sums};
use super::{Graph, Operation};

/// With more stages than this, the planners for chains are slow.
const MOST_STAGES: usize = 96;
/// A stretch between two borders with more than this share of the weight is cut even where more than one storage is
/// live.
const LONG_STRETCH: f64 = 0.25;
/// Number of slices for the whole pass, when such stretches are cut.
const SLICES: usize = 48;
/// Maximum number of live storages at a border.
const MOST_LIVE: u64 = 12;

/// A point of the forward pass between two operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Border {
    /// Number of operations before it, in recorded order.
    pub operations: usize,
    /// Number of storages that are live there.
    pub live: u64,
}

/// The borders of a valid graph, first to last. There may be none. Of more than `MOST_STAGES` marks, `few` asks for a part.
#[doc(hidden)]
pub fn borders(graph: &Graph, few: bool) -> Vec<Border> {
    let forward = forward_operations(graph);
    let points = Points::new(graph, forward);
    let places = match marked(graph, forward) {
        marked if marked.is_empty() => points.choose(),
        marked if few => points.few(marked),
        marked => marked,
    };
    let borders = places.into_iter().map(|operations| Border {
        operations,
        live: points.live[operations],
    });
    borders.collect()
}

/// Number of operations in the forward pass; all operations of the backward pass come after it.
pub(crate) fn forward_operations(graph: &Graph) -> usize {
    graph.operations.partition_point(|o| !o.backward)
}

/// The points where the marked stage changes, and the one after the last mark.
fn marked(graph: &Graph, forward: usize) -> Vec<usize> {
    let operations = graph.operations[..forward].iter().enumerate();
    let marks = operations.filter_map(|(place, operation)| Some((place, operation.stage?)));
    let marks: Vec<(usize, u32)> = marks.collect();
    let changes = marks.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    let places = changes.map(|pair| pair[1].0);
    let places = places.chain(marks.last().map(|(last, _)| last + 1));
    places.filter(|&place| place < forward).collect()
}

/// The points of a forward pass; point p is before operation p.
struct Points {
    /// The number of live storages, and their bytes.
    live: Vec<u64>,
    bytes: Vec<u64>,
    /// The weight of all operations before it, from 0 to 1.
    weights: Vec<f64>,
}

impl Points {
    fn new(graph: &Graph, forward: usize) -> Points {
        let storages = storages(graph, &graph.roots());
        let at_points = |count: fn(&Storage) -> u64| {
            let counted = storages.iter().map(|one| (one.live(), count(one)));
            sums(&(0..forward + 1), counted)
        };
        Points {
            live: at_points(|_| 1),
            bytes: at_points(|storage| storage.bytes.0),
            weights: weights(&graph.operations[..forward], graph),
        }
    }

    fn choose(&self) -> Vec<usize> {
        let last = self.weights.len() - 1;
        let mut chosen = self.few((1..last).filter(|&p| self.live[p] == 1).collect());
        let edges = [&[0], &chosen[..], &[last]].concat();
        for stretch in edges.windows(2) {
            let (start, end) = (stretch[0], stretch[1]);
            if self.weights[end] - self.weights[start] > LONG_STRETCH {
                let few = |&p: &usize| (1..=MOST_LIVE).contains(&self.live[p]);
                let inside = (start + 1..end).filter(few);
                chosen.extend(self.smallest_of_slices(inside, SLICES));
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// These points, or of more than [`MOST_STAGES`] about so many.
    fn few(&self, points: Vec<usize>) -> Vec<usize> {
        match points.len() < MOST_STAGES {
            true => points,
            false => self.smallest_of_slices(points.into_iter(), MOST_STAGES),
        }
    }

    /// Of each of `slices` slices of equal weight, the point with the fewest live bytes.
    fn smallest_of_slices(&self, points: impl Iterator<Item = usize>, slices: usize) -> Vec<usize> {
        let slice = |p: usize| (self.weights[p] * slices as f64) as usize;
        let points: Vec<usize> = points.collect();
        let slices = points.chunk_by(|&one, &next| slice(one) == slice(next));
        let smallest = slices.map(|slice| slice.iter().min_by_key(|p| self.bytes[**p]));
        smallest.flatten().copied().collect()
    }
}

/// The weight before each operation of the forward pass, and after the last.
fn weights(operations: &[Operation], graph: &Graph) -> Vec<f64> {
    let shares = |costs: Vec<f64>| {
        let whole: f64 = costs.iter().sum();
        let share = move |cost| if whole > 0.0 { cost / whole } else { 0.0 };
        costs.into_iter().map(share)
    };
    let made = operations.iter().map(|operation| {
        let outputs = operation.outputs.iter().filter(|_| !operation.view);
        outputs.map(|&t| graph.tensor(t).bytes.0 as f64).sum()
    });
    let seconds = operations.iter().map(|operation| operation.seconds.0);
    let mut weights = vec![0.0];
    for (bytes, seconds) in shares(made.collect()).zip(shares(seconds.collect())) {
        weights.push(weights[weights.len() - 1] + (bytes + seconds) / 2.0);
    }
    weights
}
