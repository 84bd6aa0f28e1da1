//! Finds the nodes that a backward pass reaches only through inputs without a gradient.
//!
//! A checkpoint's input has no gradient if the loss does not depend on it. burn's backward pass reaches it all the
//! same, because in burn's graph all outputs of a checkpoint have all its inputs as parents, and it requires a gradient
//! there: zeros. So parameters before that input get zeros where the plain run gives no gradient, which makes a
//! difference to an optimizer with momentum or weight decay. To detect these parameters, the graph's edges must be
//! known. burn 0.22.1 shows them only in `Debug` output (the node tree of its `Checkpointer`), so they are parsed from
//! there, and only if such an input was found. The crate pins burn's version, and text that cannot be parsed is an
//! error ([`TapeError::Unreadable`](super::TapeError)).

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn_autodiff::checkpoint::base::Checkpointer;

/// Nodes of the graph by id, each with its parents.
type Tree = HashMap<u64, Vec<u64>>;

/// Inputs without a gradient in one backward pass, and the nodes reached by other paths. Clones share the data.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadEnds(Arc<Mutex<Met>>);

#[derive(Debug, Default)]
struct Met {
    /// The node at which the backward pass starts.
    root: u64,
    /// The node of the link and the node of the input.
    edges: HashSet<(u64, u64)>,
    /// `None` if it was not read, or could not be parsed.
    tree: Option<Tree>,
    /// All nodes that the backward pass has reached so far by other paths. `None` if not computed yet.
    live: Option<HashSet<u64>>,
}

impl DeadEnds {
    /// Records that a backward pass starts at this node.
    pub(super) fn start(&self, root: u64) {
        self.lock().root = root;
    }

    /// Records that the backward pass has reached an input without a gradient.
    pub(crate) fn note(&self, link: u64, input: u64, checkpointer: &Checkpointer) {
        let mut met = self.lock();
        if met.edges.is_empty() {
            met.tree = read(checkpointer);
        }
        met.edges.insert((link, input));
        met.live = None;
    }

    /// Whether the backward pass has reached this node by a path that carries a gradient. It must have passed all nodes
    /// that depend on this one.
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

    /// Whether burn's text was needed and could not be parsed.
    pub(super) fn unreadable(&self) -> bool {
        let met = self.lock();
        met.tree.is_none() && !met.edges.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `root` and its ancestors, without paths over `edges`.
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

/// The text before the tree, which is the last field.
const MARK: &[u8] = b"node_tree: NodeTree { map: {";

/// Parses the tree from the `Debug` output: `NodeId { value: 7 }: [NodeId { value: 3 }, NodeId { value: 5 }], ..`.
fn read(value: &impl fmt::Debug) -> Option<Tree> {
    let mut reader = Reader::default();
    write!(reader, "{value:?}").ok()?;
    let complete = reader.node.is_none() && !reader.tree.is_empty();
    complete.then_some(reader.tree)
}

#[derive(Default)]
struct Reader {
    /// Number of bytes of the mark that match the end of the text so far.
    marked: usize,
    number: Option<u64>,
    node: Option<u64>,
    parents: Vec<u64>,
    tree: Tree,
}

impl Reader {
    fn byte(&mut self, byte: u8) -> fmt::Result {
        if self.marked < MARK.len() {
            // The mark's first letter, n, occurs again only after "node_tree: ", so a failed match restarts from the
            // beginning.
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

    /// `Debug` writes these as it writes burn's types of the same names.
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
