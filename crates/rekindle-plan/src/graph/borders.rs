//! Borders: the points of a forward pass where few tensors are live, so that it can be cut there into stages.
//!
//! A storage is live at a point if a forward operation before the point makes it and a forward operation after the
//! point reads it. Storages that only the backward pass reads later do not count, because they can be recomputed. Given
//! tensors and their views do not count either, nor do tensors without bytes, nor cheap tensors, which are made from
//! given ones in at most [`CHEAP`] of the forward time (a cast parameter, a mask).
//!
//! If there are marks ([`Operation::stage`](super::Operation::stage)), they determine the borders: one wherever the
//! stage changes, and one after the last marked operation. Otherwise every point with one live storage is a border:
//! these are the articulation points to which Jain et al. 2020 (arXiv 1910.02653) extend the segments of Chen et al.
//! 2016 (arXiv 1604.06174). If there are more than [`MOST_STAGES`], the pass is divided into slices of equal weight,
//! and only the point of each slice with the fewest live bytes is kept. A stretch between two borders that holds more
//! than [`LONG_STRETCH`] of the weight (in a U-Net, whose skips cross everything) is also cut at points with up to
//! [`MOST_LIVE`] live storages, chosen in the same way. The weight of an operation is its share of the bytes plus its
//! share of the seconds. Cost: O(operations and their tensors).

use std::ops::Range;

use super::{Graph, TensorId};
use crate::bytes::Bytes;

/// With more stages than this, the planners for chains are slow.
const MOST_STAGES: usize = 96;
/// A stretch between two borders with more than this share of the weight is cut even where more than one storage is
/// live.
const LONG_STRETCH: f64 = 0.25;
/// Number of slices for the whole pass, when such stretches are cut.
const SLICES: usize = 48;
/// Maximum number of live storages at a border.
const MOST_LIVE: i64 = 12;
/// Maximum share of the forward time that a cheap tensor takes.
const CHEAP: f64 = 1e-3;

/// A point of the forward pass between two operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Border {
    /// Number of operations before it, in recorded order.
    pub operations: usize,
    /// The base tensors of the storages live there.
    pub live: Vec<TensorId>,
}

/// The borders of a valid graph, first to last. There may be none.
#[doc(hidden)]
pub fn borders(graph: &Graph) -> Vec<Border> {
    let (points, marked) = points(graph);
    points.borders(&marked.unwrap_or_else(|| points.choose()))
}

/// As [`borders`], but of more than [`MOST_STAGES`] marks a part, too.
pub(super) fn few_borders(graph: &Graph) -> Vec<Border> {
    let (points, marked) = points(graph);
    let few = marked.map(|marked| points.few(marked));
    points.borders(&few.unwrap_or_else(|| points.choose()))
}

/// The points of a graph, and which of them are marked, if any is.
fn points(graph: &Graph) -> (Points, Option<Vec<usize>>) {
    let forward = forward_operations(graph);
    let marked = Some(marked(graph, forward));
    (
        Points::new(graph, forward),
        marked.filter(|marked| !marked.is_empty()),
    )
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
    let mut places: Vec<usize> = changes.map(|pair| pair[1].0).collect();
    places.extend(marks.last().map(|(last, _)| last + 1));
    places.retain(|&place| place < forward);
    places
}

/// The live storages at each point of the forward pass; point p is before operation p.
struct Points {
    /// The number of live storages, and their bytes.
    live: Vec<(i64, i128)>,
    /// The weight of all operations before it, from 0 to 1.
    weights: Vec<f64>,
    /// Each counted storage: its base, where it is made and where it is last read.
    spans: Vec<(TensorId, Range<usize>)>,
}

impl Points {
    fn new(graph: &Graph, forward: usize) -> Points {
        let roots = graph.roots();
        let cheap = cheap(graph, forward);
        let operations = &graph.operations[..forward];
        let mut last_read = vec![0; graph.tensors.len()];
        for (place, operation) in operations.iter().enumerate() {
            for &input in &operation.inputs {
                last_read[roots[input.index()].index()] = place;
            }
        }
        let mut spans = Vec::new();
        // First how much these change at each point.
        let mut live = vec![(0, 0); forward + 2];
        for (place, operation) in operations.iter().enumerate() {
            for &made in operation.outputs.iter().filter(|_| !operation.view) {
                let last = last_read[made.index()];
                let empty = graph.tensor(made).bytes == Bytes::ZERO;
                if last > place && !cheap[made.index()] && !empty {
                    let bytes = i128::from(graph.tensor(made).bytes.0);
                    live[place + 1].0 += 1;
                    live[place + 1].1 += bytes;
                    live[last + 1].0 -= 1;
                    live[last + 1].1 -= bytes;
                    spans.push((made, place..last));
                }
            }
        }
        for point in 1..live.len() {
            live[point].0 += live[point - 1].0;
            live[point].1 += live[point - 1].1;
        }
        Points {
            live,
            weights: weights(graph, forward),
            spans,
        }
    }

    fn choose(&self) -> Vec<usize> {
        let last = self.weights.len() - 1;
        let single: Vec<usize> = (1..last).filter(|&p| self.live[p].0 == 1).collect();
        let mut chosen = self.few(single);
        let mut more = Vec::new();
        let edges = [0].into_iter().chain(chosen.iter().copied());
        for (start, end) in edges.zip(chosen.iter().copied().chain([last])) {
            if self.weights[end] - self.weights[start] > LONG_STRETCH {
                let few = |&p: &usize| (1..=MOST_LIVE).contains(&self.live[p].0);
                let inside = (start + 1..end).filter(few);
                more.extend(self.smallest_of_slices(inside, SLICES));
            }
        }
        chosen.extend(more);
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
        let mut chosen: Vec<usize> = Vec::new();
        for point in points {
            match chosen.last_mut() {
                Some(last) if slice(*last) == slice(point) => {
                    if self.live[point].1 < self.live[*last].1 {
                        *last = point;
                    }
                }
                _ => chosen.push(point),
            }
        }
        chosen
    }

    fn borders(&self, places: &[usize]) -> Vec<Border> {
        let mut live = vec![Vec::new(); places.len()];
        for (base, span) in &self.spans {
            let first = places.partition_point(|&p| p <= span.start);
            let end = places.partition_point(|&p| p <= span.end);
            for crossed in &mut live[first..end] {
                crossed.push(*base);
            }
        }
        let borders = places.iter().zip(live);
        borders
            .map(|(&operations, live)| Border { operations, live })
            .collect()
    }
}

/// For each tensor, whether it takes at most [`CHEAP`] of the forward time to make from given ones.
fn cheap(graph: &Graph, forward: usize) -> Vec<bool> {
    let operations = &graph.operations[..forward];
    let limit = CHEAP * operations.iter().map(|o| o.seconds.0).sum::<f64>();
    // An upper bound: shared ancestors count more than once.
    let mut seconds = vec![0.0; graph.tensors.len()];
    let mut cheap = vec![true; graph.tensors.len()];
    for operation in operations {
        let inputs: f64 = operation.inputs.iter().map(|t| seconds[t.index()]).sum();
        let all = inputs + operation.seconds.0;
        for output in &operation.outputs {
            seconds[output.index()] = all;
            cheap[output.index()] = all < limit;
        }
    }
    cheap
}

/// The weight before each operation of the forward pass, and after the last.
fn weights(graph: &Graph, forward: usize) -> Vec<f64> {
    let operations = &graph.operations[..forward];
    let made = |operation: &super::Operation| -> f64 {
        let outputs = operation.outputs.iter().filter(|_| !operation.view);
        outputs.map(|&t| graph.tensor(t).bytes.0 as f64).sum()
    };
    let bytes: f64 = operations.iter().map(made).sum();
    let seconds: f64 = operations.iter().map(|o| o.seconds.0).sum();
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let mut sum = 0.0;
    let mut weights = vec![0.0];
    for operation in operations {
        sum += (share(made(operation), bytes) + share(operation.seconds.0, seconds)) / 2.0;
        weights.push(sum);
    }
    weights
}
