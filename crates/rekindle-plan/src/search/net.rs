//! A graph as the search sees it: views are contracted into their bases, and what must be there at the end is read by a
//! last operation. With a link, all that can be moved to the host has transfers.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bytes::Bytes;
use crate::graph::{Graph, GraphError, GraphPlan, Link, Operation, OperationId, Program, TensorId};

/// Numbers of values or operations, most often one or two.
type Few = SmallVec<[u32; 2]>;

/// An operation.
pub(super) struct Op {
    pub(super) seconds: f64,
    /// The least bytes held while it runs, besides those held at every moment.
    pub(super) need: i64,
    /// What it holds at most besides what was held before, on the device and on the host.
    pub(super) top: [i64; 2],
    /// The values that it reads, each once.
    pub(super) inputs: Few,
    pub(super) outputs: Few,
    /// The value whose storage its first output takes over, if this is the value's last read.
    pub(super) reuses: Option<u32>,
    /// Whether it runs only once.
    pub(super) once: bool,
    /// Whether it runs where it was recorded: an update, or the last operation.
    pub(super) fixed: bool,
    /// The update of a parameter that it reads: it cannot run after it.
    pub(super) before: Option<u32>,
}

/// What an operation makes and others read: a tensor with its views.
pub(super) struct Value {
    pub(super) bytes: [i64; 2],
    /// The operations that make it: its maker, and with transfers its fetch.
    pub(super) makers: Few,
    pub(super) readers: Few,
}

/// The contracted graph.
pub(super) struct Net<'a> {
    graph: &'a Graph,
    link: Option<&'a Link>,
    /// The tensors that can be moved.
    movable: Vec<TensorId>,
    /// The graph with transfers of these.
    linked: Cow<'a, Graph>,
    last: Operation,
    /// Those that were recorded, the last one, and the offload and the fetch of each tensor that can be moved.
    pub(super) ops: Vec<Op>,
    /// The same in the linked graph; the last one is none of it.
    ids: Vec<OperationId>,
    /// In the order in which they are made, so that the numbers of tensors change nothing.
    pub(super) values: Vec<Value>,
    /// The value of each root that is made.
    numbers: Vec<Option<u32>>,
    /// The number of recorded operations and the last one.
    pub(super) ranks: usize,
}

impl<'a> Net<'a> {
    pub(super) fn new(graph: &'a Graph, link: Option<&'a Link>) -> Result<Net<'a>, GraphError> {
        let recorded = Program::recorded(graph)?.without_dead_runs(graph);
        let mut ids = recorded.operations().to_vec();
        ids.retain(|id| !graph.operation(*id).view);
        let movable = link.map_or_else(Vec::new, |_| graph.movable(&ids));
        let linked = graph.linked(&movable, link)?;
        let transfers = linked.operation_ids().skip(graph.operations.len());
        ids.push(OperationId(linked.operations.len() as u32));
        let last = Operation {
            inputs: graph.outputs().collect(),
            repeatable: false,
            ..Operation::default()
        };
        let ranks = ids.len();
        ids.extend(transfers);
        let mut net = Net {
            graph,
            link,
            movable,
            ops: Vec::with_capacity(ids.len()),
            values: Vec::new(),
            numbers: vec![None; linked.tensors.len()],
            ranks,
            ids,
            linked,
            last,
        };
        let ops = 0..net.ids.len() as u32;
        let updated = ops.clone().map(|op| net.operation(op).updates);
        let updates = updated.zip(0..).collect();
        let roots = net.linked.roots();
        for op in ops {
            net.add(op, &roots, &updates);
        }
        // What takes no bytes and is not read costs nothing: the search shall not see it.
        let values = &net.values;
        let costs = |of: &Value| of.bytes != [0; 2] || !of.readers.is_empty();
        for op in &mut net.ops {
            op.outputs.retain(|one| costs(&values[*one as usize]));
        }
        Ok(net)
    }

    /// Adds the next operation.
    fn add(&mut self, number: u32, roots: &[TensorId], updates: &HashMap<Option<TensorId>, u32>) {
        let operation = self.operation(number).clone();
        let roots = operation.inputs.iter().map(|one| roots[one.index()]);
        let updated = roots.clone().filter_map(|root| updates.get(&Some(root)));
        let before = updated.copied().filter(|&update| update != number).min();
        let read: Vec<Option<u32>> = roots.map(|root| self.numbers[root.index()]).collect();
        let mut inputs: Few = read.iter().copied().flatten().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let mut outputs = Few::new();
        for output in &operation.outputs {
            let tensor = self.linked.tensor(*output);
            let value = *self.numbers[output.index()].get_or_insert_with(|| {
                self.values.push(Value {
                    bytes: [tensor.bytes, tensor.host_bytes].map(Bytes::signed),
                    makers: Few::new(),
                    readers: Few::new(),
                });
                self.values.len() as u32 - 1
            });
            self.values[value as usize].makers.push(number);
            outputs.push(value);
        }
        for &value in &inputs {
            self.values[value as usize].readers.push(number);
        }
        let bytes = |value: &u32| self.values[*value as usize].bytes;
        let taken = operation.in_place.and_then(|place| read[place]);
        let reuses = taken.filter(|taken| {
            let times = read.iter().filter(|one| **one == Some(*taken)).count();
            times == 1 && outputs.first().map(bytes) == Some(bytes(taken))
        });
        let [made, host] = [0, 1].map(|of| outputs.iter().map(|one| bytes(one)[of]).sum());
        let held: i64 = inputs.iter().map(|one| bytes(one)[0]).sum();
        let top = made + operation.temp_bytes.signed();
        let updates = operation.updates.is_some();
        self.ops.push(Op {
            seconds: operation.seconds.0,
            need: held + top - reuses.map_or(0, |_| made),
            top: [top, host],
            inputs,
            reuses,
            once: !operation.repeatable || updates,
            fixed: updates || operation.outputs.is_empty(),
            outputs,
            before,
        });
    }

    fn operation(&self, op: u32) -> &Operation {
        let id = self.ids[op as usize];
        self.linked.operations.get(id.index()).unwrap_or(&self.last)
    }

    /// The seconds of a list of operations.
    pub(super) fn seconds(&self, order: &[u32]) -> f64 {
        let ops = order.iter().map(|&op| &self.ops[op as usize]);
        ops.map(|op| op.seconds).sum()
    }

    /// The recorded operations, and the last one.
    pub(super) fn recorded(&self) -> Vec<u32> {
        (0..self.ranks as u32).collect()
    }

    /// The operation that copies a value to the host, its output, and the operation that makes the value of it.
    pub(super) fn transfers(&self, value: u32) -> Option<(u32, u32, u32)> {
        let fetch = *self.values[value as usize].makers.get(1)?;
        Some((fetch - 1, self.ops[fetch as usize].inputs[0], fetch))
    }

    /// Whether an operation moves a tensor.
    pub(super) fn moves(&self, op: u32) -> bool {
        op as usize >= self.ranks
    }

    /// The operations of a program without transfers, and the last one.
    pub(super) fn order(&self, program: &[OperationId]) -> Vec<u32> {
        let numbers: HashMap<OperationId, u32> = self.ids.iter().copied().zip(0..).collect();
        let known = program.iter().filter_map(|id| numbers.get(id).copied());
        known.chain([self.ranks as u32 - 1]).collect()
    }

    /// The plan of a list of operations, of which the last is none of the graph.
    pub(super) fn plan(&self, order: &[u32]) -> Result<GraphPlan, GraphError> {
        let ids = order.iter().map(|&op| self.ids[op as usize]);
        let mut list = Program::with_views(&self.linked, ids.take(order.len() - 1));
        let offloaded = self.graph.moved(&mut list, &self.movable);
        let linked = self.graph.linked(&offloaded, self.link)?;
        let program = Program::settled(&linked, list)?;
        Ok(GraphPlan::of_program(&linked, &program, offloaded))
    }
}
