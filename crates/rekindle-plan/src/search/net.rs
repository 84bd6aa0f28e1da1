//! A graph as the search sees it: views are contracted into their bases, and what must be there at the end is read by a
//! last operation.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::graph::{Graph, GraphError, Operation, OperationId, Program, TensorId, Transfer};

/// Numbers of values or operations, most often one or two.
type Few = SmallVec<[u32; 2]>;

/// An operation.
#[derive(Clone, Default)]
pub(super) struct Op {
    pub(super) seconds: f64,
    /// Bytes beside inputs and outputs while it runs.
    pub(super) temporary: i64,
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
    pub(super) transfer: bool,
}

/// What an operation makes and others read: a tensor with its views.
pub(super) struct Value {
    pub(super) bytes: [i64; 2],
    pub(super) maker: u32,
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
pub(super) struct Net {
    /// Those that were recorded, the transfers, and the last operation, which alone has no number in the graph.
    pub(super) ops: Vec<Op>,
    ids: Vec<OperationId>,
    pub(super) values: Vec<Value>,
    /// Bytes held at every moment.
    pub(super) fixed: i64,
    /// The number of recorded operations and the last one.
    pub(super) ranks: usize,
}

impl Net {
    /// The net of a graph, which may have transfers of some tensors.
    pub(super) fn new(graph: &Graph) -> Result<Net, GraphError> {
        let recorded = Program::recorded(graph)?.without_dead_runs(graph);
        let contracted = Contracted {
            graph,
            roots: graph.roots(),
            number: vec![None; graph.tensors.len()],
            reads: graph.tensor_ids().map(|tensor| vec![tensor]).collect(),
            beside: vec![0; graph.tensors.len()],
            updates: vec![None; graph.tensors.len()],
            net: Net {
                ops: Vec::new(),
                ids: Vec::new(),
                values: Vec::new(),
                fixed: graph.fixed_bytes.0 as i64,
                ranks: 0,
            },
        };
        Ok(contracted.net(&recorded))
    }

    /// The operations of each program, and the last one.
    pub(super) fn orders(&self, programs: &[Vec<OperationId>]) -> Vec<Vec<u32>> {
        let numbers: HashMap<OperationId, u32> = self.ids.iter().copied().zip(0..).collect();
        let orders = programs.iter().map(|program| {
            let known = program.iter().filter_map(|id| numbers.get(id).copied());
            known.chain([self.ids.len() as u32]).collect()
        });
        orders.collect()
    }

    /// The program of a list of operations: views run directly before they are read, again where their base is made anew.
    pub(super) fn program(&self, graph: &Graph, order: &[u32]) -> Result<Program, GraphError> {
        let roots = graph.roots();
        let mut maker = vec![None; graph.tensors.len()];
        for (id, operation) in graph.operation_ids().zip(&graph.operations) {
            for output in operation.outputs.iter().filter(|_| operation.view) {
                maker[output.index()] = Some(id);
            }
        }
        // How often a tensor's storage has been made, and how often it had been when its view was made.
        let mut made = vec![0_u32; graph.tensors.len()];
        let mut viewed = vec![None; graph.tensors.len()];
        let mut list = Vec::new();
        let mut view = |tensor: TensorId, made: &[u32], list: &mut Vec<OperationId>| {
            let mut views = Vec::new();
            let mut open = vec![tensor];
            while let Some(tensor) = open.pop() {
                let now = Some(made[roots[tensor.index()].index()]);
                if let Some(id) = maker[tensor.index()]
                    && viewed[tensor.index()] != now
                {
                    for output in &graph.operation(id).outputs {
                        viewed[output.index()] = now;
                    }
                    views.push(id);
                    open.extend(&graph.operation(id).inputs);
                }
            }
            views.sort_unstable();
            list.extend(views);
        };
        for &id in order.iter().filter_map(|&op| self.ids.get(op as usize)) {
            let operation = graph.operation(id);
            for &input in &operation.inputs {
                view(input, &made, &mut list);
            }
            for output in &operation.outputs {
                made[output.index()] += 1;
            }
            list.push(id);
        }
        for output in graph.outputs() {
            view(output, &made, &mut list);
        }
        Ok(Program::settled(graph, list)?.without_dead_runs(graph))
    }
}

/// A graph, contracted as far as its operations have been added.
struct Contracted<'a> {
    graph: &'a Graph,
    roots: Vec<TensorId>,
    /// The value of a root.
    number: Vec<Option<u32>>,
    /// What a read of a tensor reads: itself, or the base of its views and what these read besides.
    reads: Vec<Vec<TensorId>>,
    /// The most bytes that a view on the way to it takes while it runs.
    beside: Vec<i64>,
    /// The update of a tensor.
    updates: Vec<Option<u32>>,
    net: Net,
}

impl Contracted<'_> {
    fn net(mut self, recorded: &Program) -> Net {
        let graph = self.graph;
        for &id in recorded.operations() {
            let operation = graph.operation(id);
            if operation.view {
                self.view(operation);
            } else {
                self.add(id, operation);
            }
        }
        for (op, id) in self.net.ids.iter().enumerate() {
            let inputs = graph.operation(*id).inputs.iter();
            let updates = inputs.filter_map(|one| self.updates[self.roots[one.index()].index()]);
            self.net.ops[op].before = updates.filter(|&update| update != op as u32).min();
        }
        let recorded = self.net.ops.len();
        self.net.ranks = recorded + 1;
        for (id, operation) in graph.operation_ids().zip(&graph.operations) {
            if operation.transfer.is_some() {
                self.transfer(id, operation);
            }
        }
        let outputs: Vec<TensorId> = graph.outputs().collect();
        let (inputs, _) = self.read(&outputs, None);
        let beside = outputs.iter().map(|one| self.beside[one.index()]);
        self.put(Op {
            temporary: beside.max().unwrap_or(0),
            inputs,
            once: true,
            fixed: true,
            rank: recorded as u32,
            ..Op::default()
        });
        // What takes no bytes and is not read costs nothing: the search shall not see it.
        let values = &self.net.values;
        let costs = |of: &Value| of.bytes != [0; 2] || !of.readers.is_empty();
        for op in &mut self.net.ops {
            op.outputs.retain(|one| costs(&values[*one as usize]));
        }
        self.net
    }

    /// The values that are read with some tensors, and whether `taken` is read once.
    fn read(&self, tensors: &[TensorId], taken: Option<u32>) -> (Few, bool) {
        let read = tensors.iter().flat_map(|one| &self.reads[one.index()]);
        let mut values: Few = read.filter_map(|one| self.number[one.index()]).collect();
        let once = values.iter().filter(|&&value| Some(value) == taken).count() == 1;
        values.sort_unstable();
        values.dedup();
        (values, once)
    }

    /// What views take that run for an operation.
    fn beside(&self, operation: &Operation) -> i64 {
        let inputs = operation.inputs.iter().map(|one| self.beside[one.index()]);
        inputs.max().unwrap_or(0)
    }

    fn view(&mut self, operation: &Operation) {
        let read = operation.inputs.iter();
        let read: Vec<TensorId> = read
            .flat_map(|one| self.reads[one.index()].clone())
            .collect();
        let base = read.first().and_then(|root| self.number[root.index()]);
        if let Some(base) = base.filter(|_| !operation.repeatable) {
            let maker = self.net.values[base as usize].maker;
            self.net.ops[maker as usize].once = true;
        }
        let beside = self.beside(operation).max(operation.temp_bytes.0 as i64);
        for output in &operation.outputs {
            self.reads[output.index()].clone_from(&read);
            self.beside[output.index()] = beside;
        }
    }

    fn value(&mut self, tensor: TensorId) -> u32 {
        let of = self.graph.tensor(tensor);
        let number = self.net.values.len() as u32;
        self.number[tensor.index()] = Some(number);
        self.net.values.push(Value {
            bytes: [of.bytes.0 as i64, of.host_bytes.0 as i64],
            maker: self.net.ops.len() as u32,
            transfers: None,
            readers: Few::new(),
        });
        number
    }

    fn add(&mut self, id: OperationId, operation: &Operation) {
        let op = self.net.ops.len() as u32;
        let taken = operation.in_place.map(|place| operation.inputs[place]);
        let taken = taken.and_then(|one| self.number[self.roots[one.index()].index()]);
        let (inputs, once) = self.read(&operation.inputs, taken);
        let outputs = operation.outputs.iter();
        let outputs: Few = outputs.map(|&output| self.value(output)).collect();
        let bytes = |value: u32| self.net.values[value as usize].bytes[0];
        let fits = |&taken: &u32| {
            let first = outputs.first();
            once && first.is_some_and(|&first| bytes(first) == bytes(taken))
        };
        let reuses = taken.filter(fits);
        let made = outputs.iter().map(|&value| bytes(value)).sum();
        let temporary = operation.temp_bytes.0 as i64;
        let added = Op {
            seconds: operation.seconds.0,
            temporary: temporary.max(self.beside(operation) - made),
            made: [made, 0],
            inputs,
            reuses,
            outputs,
            once: !operation.repeatable || operation.updates.is_some(),
            fixed: operation.updates.is_some(),
            rank: op,
            ..Op::default()
        };
        self.put(added);
        self.net.ids.push(id);
        if let Some(tensor) = operation.updates {
            self.updates[tensor.index()] = Some(op);
        }
    }

    /// Adds a transfer of a tensor, if the tensor is made at all.
    fn transfer(&mut self, id: OperationId, operation: &Operation) {
        let op = self.net.ops.len() as u32;
        let Some(input) = self.number[operation.inputs[0].index()] else {
            return;
        };
        let (tensor, output) = match operation.transfer {
            // The fetch of a tensor comes directly after its offload.
            Some(Transfer::Offload) => {
                let copy = self.value(operation.outputs[0]);
                self.net.values[input as usize].transfers = Some(Transfers {
                    offload: op,
                    copy,
                    fetch: op + 1,
                });
                (input, copy)
            }
            _ => {
                let tensor = self.number[operation.outputs[0].index()].unwrap_or(input);
                (tensor, tensor)
            }
        };
        let rank = self.net.values[tensor as usize].maker;
        self.put(Op {
            seconds: operation.seconds.0,
            temporary: operation.temp_bytes.0 as i64,
            made: self.net.values[output as usize].bytes,
            inputs: Few::from_elem(input, 1),
            outputs: Few::from_elem(output, 1),
            rank,
            transfer: true,
            ..Op::default()
        });
        self.net.ids.push(id);
    }

    fn put(&mut self, op: Op) {
        let number = self.net.ops.len() as u32;
        for &value in &op.inputs {
            self.net.values[value as usize].readers.push(number);
        }
        self.net.ops.push(op);
    }
}
