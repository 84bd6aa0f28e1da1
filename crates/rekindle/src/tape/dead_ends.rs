//! What a backward reaches only through inputs that had no gradient.
//!
//! An input of a checkpoint on which no output depends that the loss uses has no gradient. burn's backward comes to it all the
//! same, since a checkpoint's outputs all look as if made from all its inputs, and wants a gradient there: zeros. So
//! parameters before it get zeros where the plain run has nothing at all, which is not the same to an optimizer with
//! momentum or weight decay. To tell them apart one must know what was made from what. burn 0.22.1 shows that to nobody
//! but `Debug` (the node tree of its `Checkpointer`), so it is read from there, number by number, and only where such an
//! input was met. The crate pins burn's version, and a text that is not understood is an error
//! ([`TapeError::Unreadable`](super::TapeError)).

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn_autodiff::checkpoint::base::Checkpointer;

/// Nodes of the graph by number, each with those that it was made from.
type Tree = HashMap<u64, Vec<u64>>;

/// Inputs without a gradient that one backward has met, and what it reaches by other ways. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadEnds(Arc<Mutex<Met>>);

#[derive(Debug, Default)]
struct Met {
    /// The node that the backward starts from.
    root: u64,
    /// The link's node and the input's.
    edges: HashSet<(u64, u64)>,
    /// `None`: not read, or not understood.
    tree: Option<Tree>,
    /// All nodes that the backward reaches by other ways, as far as it has come. `None`: not found yet.
    live: Option<HashSet<u64>>,
}

impl DeadEnds {
    /// A backward starts from this node.
    pub(super) fn start(&self, root: u64) {
        self.lock().root = root;
    }

    /// The backward has come to an input without a gradient.
    pub(crate) fn note(&self, link: u64, input: u64, checkpointer: &Checkpointer) {
        let mut met = self.lock();
        if met.edges.is_empty() {
            met.tree = read(checkpointer);
        }
        met.edges.insert((link, input));
        met.live = None;
    }

    /// Whether the backward has come to this node in a way that carries a gradient. All that was made from the node must
    /// be behind it.
    pub(crate) fn is_live(&self, node: u64) -> bool {
        let mut met = self.lock();
        let met = &mut *met;
        let Some(tree) = &met.tree else {
            return true;
        };
        let live = met
            .live
            .get_or_insert_with(|| reached(tree, met.root, &met.edges));
        live.contains(&node)
    }

    /// Whether burn's text was not understood where it was needed.
    pub(super) fn unreadable(&self) -> bool {
        let met = self.lock();
        met.tree.is_none() && !met.edges.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes that `root` was made from, but for ways over `edges`, and itself.
fn reached(tree: &Tree, root: u64, edges: &HashSet<(u64, u64)>) -> HashSet<u64> {
    let mut reached = HashSet::from([root]);
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        for &parent in tree.get(&node).into_iter().flatten() {
            if !edges.contains(&(node, parent)) && reached.insert(parent) {
                open.push(parent);
            }
        }
    }
    reached
}

/// What comes before the tree, which is the last field.
const MARK: &[u8] = b"node_tree: NodeTree { map: {";

/// Reads the tree from what `Debug` writes: `NodeId { value: 7 }: [NodeId { value: 3 }, NodeId { value: 5 }], ..`.
fn read(value: &impl fmt::Debug) -> Option<Tree> {
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
    tree: Tree,
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
