//! A graph as the search sees it: views are contracted into their bases, and what must be there at the end is read by a
//! last operation. With a link, all that can be moved to the host has transfers.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bytes::Bytes;
use crate::graph::{
    Graph, GraphError, GraphPlan, Link, OperationId, PlanError, Program, TensorId, Transfer,
};

/// The work of a search for each operation, and at most: about a quarter of a second.
const WORK_OF_ONE: u64 = 150_000;
const MOST_WORK: u64 = 14_000_000;
/// What each operation takes where the smallest peak is searched.
const EVEN: f64 = 1e-6;

/// Numbers of values or operations, most often one or two.
type Few = SmallVec<[u32; 2]>;

/// An operation.
#[derive(Clone, Default)]
pub(super) struct Op {
    pub(super) seconds: f64,
    /// Bytes beside inputs and outputs while it runs.
    pub(super) temporary: i64,
    /// The least bytes held while it runs.
    pub(super) need: i64,
    /// Bytes of its outputs, on the device and on the host.
    pub(super) made: [i64; 2],
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
    /// Its place in recorded order; of a transfer, that of its tensor's maker.
    pub(super) rank: u32,
}

/// What an operation makes and others read: a tensor with its views.
pub(super) struct Value {
    pub(super) bytes: [i64; 2],
    /// The operations that make it: its maker, and with transfers its fetch.
    pub(super) makers: Few,
    pub(super) transfers: Option<Transfers>,
    pub(super) readers: Few,
}

/// The operation that copies a value to the host, its output, and the operation that makes the value of it.
#[derive(Clone, Copy)]
pub(super) struct Transfers {
    pub(super) offload: u32,
    pub(super) copy: u32,
    pub(super) fetch: u32,
}

/// The contracted graph.
pub(super) struct Net<'a> {
    graph: &'a Graph,
    link: Option<&'a Link>,
    roots: Vec<TensorId>,
    /// Those that were recorded, the last one, and the offload and the fetch of each tensor that can be moved.
    pub(super) ops: Vec<Op>,
    pub(super) values: Vec<Value>,
    /// The number of recorded operations and the last one.
    pub(super) ranks: usize,
    /// The recorded operations in the graph.
    ids: Vec<OperationId>,
    /// The tensors that can be moved.
    movable: Vec<TensorId>,
    /// The value of each root that is made.
    numbers: Vec<Option<u32>>,
}

impl<'a> Net<'a> {
    pub(super) fn new(graph: &'a Graph, link: Option<&'a Link>) -> Result<Net<'a>, GraphError> {
        let recorded = Program::recorded(graph)?.without_dead_runs(graph);
        let mut net = Net {
            graph,
            link,
            roots: graph.roots(),
            ops: Vec::new(),
            values: Vec::new(),
            ranks: 0,
            ids: Vec::new(),
            movable: Vec::new(),
            numbers: vec![None; graph.tensors.len()],
        };
        let mut updates: HashMap<TensorId, u32> = HashMap::new();
        for &id in recorded.operations() {
            let operation = graph.operation(id);
            if !operation.view {
                updates.extend(operation.updates.map(|one| (one, net.ops.len() as u32)));
                net.add(id);
            }
        }
        for (op, id) in (0..).zip(&net.ids) {
            let inputs = graph.operation(*id).inputs.iter();
            let updates = inputs.filter_map(|one| updates.get(&net.roots[one.index()]).copied());
            net.ops[op as usize].before = updates.filter(|&update| update != op).min();
        }
        let outputs: Vec<TensorId> = graph.outputs().collect();
        let last = Op {
            inputs: net.read(&outputs),
            once: true,
            fixed: true,
            rank: net.ops.len() as u32,
            ..Op::default()
        };
        net.put(last);
        net.ranks = net.ops.len();
        if let Some(link) = link {
            for tensor in graph.tensor_ids() {
                net.add_transfers(tensor, link)?;
            }
        }
        // What takes no bytes and is not read costs nothing: the search shall not see it.
        let values = &net.values;
        let costs = |of: &Value| of.bytes != [0; 2] || !of.readers.is_empty();
        for op in &mut net.ops {
            op.outputs.retain(|one| costs(&values[*one as usize]));
        }
        Ok(net)
    }

    /// The values that are read with some tensors.
    fn read(&self, tensors: &[TensorId]) -> Few {
        let roots = tensors.iter().map(|one| self.roots[one.index()]);
        let mut values: Few = roots.filter_map(|one| self.numbers[one.index()]).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// A new value that the next operation makes.
    fn value(&mut self, bytes: [Bytes; 2]) -> u32 {
        self.values.push(Value {
            bytes: bytes.map(|one| one.0 as i64),
            makers: Few::from_elem(self.ops.len() as u32, 1),
            transfers: None,
            readers: Few::new(),
        });
        self.values.len() as u32 - 1
    }

    fn add(&mut self, id: OperationId) {
        let operation = self.graph.operation(id);
        let inputs = self.read(&operation.inputs);
        let root = |place: usize| self.roots[operation.inputs[place].index()];
        let taken = operation.in_place.map(root).filter(|taken| {
            let read = (0..operation.inputs.len()).filter(|&place| root(place) == *taken);
            read.count() == 1
        });
        let taken = taken.and_then(|taken| self.numbers[taken.index()]);
        let mut outputs = Few::new();
        for &output in &operation.outputs {
            let value = self.value([self.graph.tensor(output).bytes, Bytes::ZERO]);
            self.numbers[output.index()] = Some(value);
            outputs.push(value);
        }
        let bytes = |value: &u32| self.values[*value as usize].bytes[0];
        let first = outputs.first().map(bytes);
        let added = Op {
            seconds: operation.seconds.0,
            temporary: operation.temp_bytes.0 as i64,
            made: [outputs.iter().map(bytes).sum(), 0],
            inputs,
            reuses: taken.filter(|taken| first == Some(bytes(taken))),
            outputs,
            once: !operation.repeatable || operation.updates.is_some(),
            fixed: operation.updates.is_some(),
            rank: self.ops.len() as u32,
            ..Op::default()
        };
        self.put(added);
        self.ids.push(id);
    }

    /// Adds the transfers of a tensor, if it is made, takes bytes and is no update.
    fn add_transfers(&mut self, tensor: TensorId, link: &Link) -> Result<(), GraphError> {
        let bytes = self.graph.tensor(tensor).bytes;
        let Some(value) = self.numbers[tensor.index()].filter(|_| !bytes.is_zero()) else {
            return Ok(());
        };
        let rank = self.values[value as usize].makers[0];
        if self.ops[rank as usize].fixed {
            return Ok(());
        }
        let number = self.ops.len() as u32;
        let copy = self.value([Bytes::ZERO, bytes]);
        for (transfer, input, output) in [
            (Transfer::Offload, value, copy),
            (Transfer::Fetch, copy, value),
        ] {
            let costs = link.transfer(transfer, bytes)?;
            self.put(Op {
                seconds: costs.seconds.0,
                temporary: costs.temp_bytes.0 as i64,
                made: self.values[output as usize].bytes,
                inputs: Few::from_elem(input, 1),
                outputs: Few::from_elem(output, 1),
                rank,
                ..Op::default()
            });
        }
        let (offload, fetch) = (number, number + 1);
        let of = &mut self.values[value as usize];
        of.makers.push(fetch);
        of.transfers = Some(Transfers {
            offload,
            copy,
            fetch,
        });
        self.movable.push(tensor);
        Ok(())
    }

    fn put(&mut self, mut op: Op) {
        let number = self.ops.len() as u32;
        op.need = self.fixed() + op.temporary + if op.reuses.is_none() { op.made[0] } else { 0 };
        for &value in &op.inputs {
            let value = &mut self.values[value as usize];
            value.readers.push(number);
            op.need += value.bytes[0];
        }
        self.ops.push(op);
    }

    /// The recorded operations, and the last one.
    pub(super) fn recorded(&self) -> Vec<u32> {
        (0..self.ranks as u32).collect()
    }

    /// Bytes held at every moment.
    pub(super) fn fixed(&self) -> i64 {
        self.graph.fixed_bytes.0 as i64
    }

    /// Whether an operation moves a tensor.
    pub(super) fn moves(&self, op: u32) -> bool {
        op as usize >= self.ranks
    }

    /// Lets every operation take the same time.
    pub(super) fn even(&mut self) {
        for op in &mut self.ops {
            op.seconds = EVEN;
        }
    }

    /// How much work improving may take.
    pub(super) fn work(&self) -> u64 {
        MOST_WORK.min(WORK_OF_ONE * self.ranks as u64)
    }

    /// The operations of programs without transfers, and the last one.
    pub(super) fn orders(&self, programs: &[Vec<OperationId>]) -> Vec<Vec<u32>> {
        let numbers: HashMap<OperationId, u32> = self.ids.iter().copied().zip(0..).collect();
        let orders = programs.iter().map(|program| {
            let known = program.iter().filter_map(|id| numbers.get(id).copied());
            known.chain([self.ids.len() as u32]).collect()
        });
        orders.collect()
    }

    /// The plan of a list of operations: views run directly before they are read, again where their base is made anew.
    pub(super) fn plan(&self, order: &[u32]) -> Result<GraphPlan, PlanError> {
        let graph = self.graph;
        let transfers = order.iter().filter(|op| self.moves(**op));
        let mut moved: Vec<usize> = transfers.map(|op| self.moved(*op)).collect();
        moved.sort_unstable();
        moved.dedup();
        let mut viewing = vec![OperationId(0); graph.tensors.len()];
        for (id, view) in graph.operation_ids().zip(&graph.operations) {
            for output in view.outputs.iter().filter(|_| view.view) {
                viewing[output.index()] = id;
            }
        }
        let outputs: Vec<TensorId> = graph.outputs().collect();
        // How often a value has been made, and how often it had been when its view was made.
        let mut made = vec![0; self.values.len()];
        let mut viewed = vec![None; graph.tensors.len()];
        let mut list = Vec::new();
        for &op in order {
            let (id, read) = match self.ids.get(op as usize) {
                Some(&id) => (Some(id), &graph.operation(id).inputs),
                None if self.moves(op) => {
                    let place = moved.partition_point(|&one| one < self.moved(op));
                    let first = graph.operations.len() + 2 * place;
                    let id = first + (op as usize - self.ranks) % 2;
                    (Some(OperationId(id as u32)), &Vec::new())
                }
                None => (None, &outputs),
            };
            let (mut open, mut views) = (read.clone(), Vec::new());
            while let Some(tensor) = open.pop() {
                let root = self.roots[tensor.index()];
                let value = self.numbers[root.index()];
                let now = Some(value.map_or(0, |value| made[value as usize]));
                if tensor != root && viewed[tensor.index()] != now {
                    let id = viewing[tensor.index()];
                    let view = graph.operation(id);
                    for output in &view.outputs {
                        viewed[output.index()] = now;
                    }
                    open.extend(&view.inputs);
                    views.push(id);
                }
            }
            views.sort_unstable();
            list.extend(views.into_iter().chain(id));
            for &value in &self.ops[op as usize].outputs {
                made[value as usize] += 1;
            }
        }
        let offloaded = moved.into_iter().map(|place| self.movable[place]);
        GraphPlan::of_operations(graph, self.link, list, offloaded.collect())
    }

    /// The place of the tensor that a transfer moves.
    fn moved(&self, transfer: u32) -> usize {
        (transfer as usize - self.ranks) / 2
    }
}
