//! Which nodes of the graph a backward reaches.
//!
//! burn consumes the graph that a backward runs through, and a later backward that comes to a consumed node stops
//! there in silence: what lies before gets no gradient. To find such an end one must know every node that a backward
//! reached, with the nodes it was made from. burn 0.21 keeps that tree in its `Checkpointer` and shows it to nobody
//! but `Debug`, so it is read from there, number by number, without keeping the text. The crate pins burn's version,
//! and a text that is not understood gives an error, never an empty tree: [`SweptNodes::take`].
//!
//! Cost: well under a microsecond for each node of the graph, once for each backward.

use std::{
    collections::HashMap,
    fmt::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use burn_autodiff::checkpoint::base::Checkpointer;

/// The nodes that one backward reached, by number, each with the nodes it was made from.
pub type NodeTree = HashMap<u64, Vec<u64>>;

/// Where a backward notes the nodes that it reaches (see
/// [`witness`](crate::CheckpointBackend::witness)).
#[derive(Debug, Clone, Default)]
pub struct SweptNodes(Arc<Mutex<Option<NodeTree>>>);

impl SweptNodes {
    /// Nothing noted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the backward noted; `None` if none has run, or if burn's text could not be read.
    #[must_use]
    pub fn take(&self) -> Option<NodeTree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn note(&self, checkpointer: &Checkpointer) {
        let tree = read(checkpointer);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tree;
    }
}

/// What comes before the tree, which is the last field.
const MARK: &[u8] = b"node_tree: NodeTree { map: {";

/// Reads the tree from what `Debug` writes: `NodeId { value: 7 }: [NodeId { value: 3 }, NodeId { value: 5 }], ..`.
fn read(value: &impl fmt::Debug) -> Option<NodeTree> {
    let mut reader = Reader::default();
    write!(reader, "{value:?}").ok()?;
    let complete = reader.node.is_none() && !reader.tree.is_empty();
    complete.then_some(reader.tree)
}

#[derive(Default)]
struct Reader {
    /// Bytes of the mark that the text's end so far matches.
    marked: usize,
    number: Option<u64>,
    node: Option<u64>,
    parents: Vec<u64>,
    tree: NodeTree,
}

impl Reader {
    fn byte(&mut self, byte: u8) -> fmt::Result {
        if self.marked < MARK.len() {
            // The mark's first letter, n, comes again only after "node_tree: ", so a failed match starts anew.
            self.marked = if byte == MARK[self.marked] {
                self.marked + 1
            } else {
                usize::from(byte == MARK[0])
            };
            return Ok(());
        }
        if byte.is_ascii_digit() {
            let digit = u64::from(byte - b'0');
            let number = self.number.unwrap_or(0);
            let longer = number
                .checked_mul(10)
                .and_then(|ten| ten.checked_add(digit));
            self.number = Some(longer.ok_or(fmt::Error)?);
            return Ok(());
        }
        if let Some(number) = self.number.take() {
            match self.node {
                None => self.node = Some(number),
                Some(_) => self.parents.push(number),
            }
        }
        if byte == b']' {
            let node = self.node.take().ok_or(fmt::Error)?;
            self.tree.insert(node, std::mem::take(&mut self.parents));
        }
        Ok(())
    }
}

impl Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().try_for_each(|byte| self.byte(byte))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use burn_autodiff::NodeId;

    use super::*;

    /// Written as burn's types of these names are.
    #[derive(Debug)]
    #[expect(dead_code, reason = "only `Debug` reads the fields")]
    struct Checkpointer {
        backward_states: Vec<NodeId>,
        node_tree: Tree,
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "only `Debug` reads the fields")]
    struct NodeTree {
        map: HashMap<NodeId, Vec<NodeId>>,
    }

    type Tree = NodeTree;

    fn id(value: u64) -> NodeId {
        NodeId { value }
    }

    #[test]
    fn numbers_come_from_the_tree_alone() {
        let map = HashMap::from([
            (id(12), vec![id(3), id(12_345)]),
            (id(3), vec![]),
            (id(7), vec![id(3)]),
        ]);
        let checkpointer = Checkpointer {
            backward_states: vec![id(99)],
            node_tree: NodeTree { map },
        };
        let expected = HashMap::from([(12, vec![3, 12_345]), (3, vec![]), (7, vec![3])]);
        assert_eq!(read(&checkpointer), Some(expected));
    }

    #[test]
    fn a_text_without_a_tree_is_not_an_empty_tree() {
        assert_eq!(read(&"Checkpointer { node_tree: Other { map: {} } }"), None);
    }
}
