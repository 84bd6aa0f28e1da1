//! The state of a walk: where tensors are held, when they are needed, and which operations have run.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::super::index::Index;
use super::super::{Graph, OperationId, Tensor, TensorId};
use super::places::Places;

/// A walk is abandoned if it runs and examines more operations than this per operation of the outline.
const MOST_WORK: usize = 400;
/// Later than any position in an outline: the end, where the graph's outputs are needed.
pub(super) const END: u32 = u32::MAX - 1;
/// No storage.
pub(super) const NONE: u32 = u32::MAX;
/// The storage of given tensors.
pub(super) const GIVEN: u32 = 0;

/// The walk's task.
pub(crate) struct WalkTask<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) index: &'a Index,
    /// Maximum bytes above the graph's fixed ones.
    pub(crate) room: u64,
    /// Maximum bytes of host copies.
    pub(crate) host_room: u64,
    pub(crate) scoring: &'a Scoring,
    /// A factor on the score of each tensor's storage, by its first tensor; empty for none.
    pub(crate) bias: &'a [f64],
}

pub(super) struct Walk<'a> {
    pub(super) task: &'a WalkTask<'a>,
    pub(super) graph: &'a Graph,
    pub(super) index: &'a Index,
    /// The position in the outline.
    pub(super) now: u32,
    /// The length of the outline.
    pub(super) length: u32,
    pub(super) uses: Places,
    pub(super) makes: Places,
    pub(super) storages: Vec<Storage>,
    pub(super) of: Vec<u32>,
    pub(super) used: u64,
    pub(super) ran: Vec<bool>,
    /// Number of pending operations that read each tensor.
    pub(super) pins: Vec<u32>,
    pub(super) queue: BinaryHeap<Entry>,
    pub(super) runs: Vec<OperationId>,
    pub(super) host: Host,
    pub(super) work: usize,
    pub(super) most_work: usize,
    /// Marks of the current traversal, by operation.
    pub(super) seen: Vec<u32>,
    pub(super) traversal: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(task: &'a WalkTask<'a>, outline: &[OperationId]) -> Walk<'a> {
        let graph = task.graph;
        let places = || outline.iter().zip(0_u32..);
        let reads = places().flat_map(|(id, place)| {
            let inputs = graph.operation(*id).inputs.iter();
            inputs.map(move |input| (input.index(), place))
        });
        let given = |tensor: &Tensor| if tensor.given { GIVEN } else { NONE };
        Walk {
            task,
            graph,
            index: task.index,
            now: 0,
            length: outline.len() as u32,
            uses: Places::new(graph.tensors.len(), reads),
            makes: Places::new(
                graph.operations.len(),
                places().map(|(id, place)| (id.index(), place)),
            ),
            storages: vec![Storage {
                bytes: 0,
                tensors: Vec::new(),
                born: 0,
                alive: true,
            }],
            of: graph.tensors.iter().map(given).collect(),
            used: 0,
            ran: vec![false; graph.operations.len()],
            pins: vec![0; graph.tensors.len()],
            queue: BinaryHeap::new(),
            runs: Vec::with_capacity(outline.len()),
            host: Host::default(),
            work: 0,
            most_work: MOST_WORK * outline.len().max(16),
            seen: vec![0; graph.operations.len()],
            traversal: 0,
        }
    }
}

/// A storage that is or was held.
pub(super) struct Storage {
    pub(super) bytes: u64,
    pub(super) tensors: Vec<TensorId>,
    /// The number of runs before its present tensors were made.
    pub(super) born: usize,
    /// False once it was freed.
    pub(super) alive: bool,
}

/// A storage in the eviction queue, with its score at the time of insertion.
pub(super) struct Entry {
    pub(super) score: f64,
    pub(super) storage: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        // Equal scores: the older storage first.
        self.score
            .total_cmp(&other.score)
            .then(other.storage.cmp(&self.storage))
    }
}

/// Copies on the host.
#[derive(Default)]
pub(super) struct Host {
    pub(super) used: u64,
    /// The tensors that have one.
    pub(super) copies: Vec<TensorId>,
    /// Offloads, each with the number of runs before it.
    pub(super) offloads: Vec<(usize, OperationId)>,
    /// Bytes held on the device after each run.
    pub(super) held: Vec<u64>,
    /// Bytes of host copies after each run.
    pub(super) copied: Vec<u64>,
}

/// How a walk chooses what to evict.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    /// a.
    pub(crate) bytes: f64,
    /// b.
    pub(crate) distance: f64,
    /// c.
    pub(crate) cost: f64,
    /// w.
    pub(crate) dependents: f64,
}
