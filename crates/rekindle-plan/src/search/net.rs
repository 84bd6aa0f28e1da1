//! A graph as the search sees it: views are contracted into their bases, and what must be there at the end is read by a
//! last operation.

use std::collections::HashMap;

use crate::graph::{Graph, GraphError, Operation, OperationId, Program, TensorId, Transfer};

/// No operation, or no value.
pub(super) const NONE: u32 = u32::MAX;

/// An operation.
#[derive(Clone)]
pub(super) struct Op {
    pub(super) seconds: f64,
    /// Bytes beside inputs and outputs while it runs.
    pub(super) temporary: i64,
    /// Bytes of its outputs, on the device and on the host.
    pub(super) made: [i64; 2],
    /// The values that it reads, each once.
    pub(super) inputs: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    /// The value whose storage its first output takes over, if this is the value's last read.
    pub(super) reuses: u32,
    pub(super) repeatable: bool,
    /// Whether it runs where it was recorded: an update, or the last operation.
    pub(super) fixed: bool,
    /// The update of a parameter that it reads: it cannot run after it.
    pub(super) before: u32,
    /// Its place in recorded order; of a transfer, that of its tensor's maker.
    pub(super) rank: u32,
    pub(super) transfer: bool,
}

/// What an operation makes and others read: a tensor with its views.
#[derive(Clone)]
pub(super) struct Value {
    pub(super) bytes: [i64; 2],
    pub(super) maker: u32,
    /// The operation that makes it from its copy on the host, and the operation that makes the copy.
    pub(super) fetch: u32,
    pub(super) offload: u32,
    pub(super) readers: Vec<u32>,
}

/// The contracted graph.
#[derive(Clone)]
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
            number: vec![NONE; graph.tensors.len()],
            reads: graph.tensor_ids().map(|tensor| vec![tensor]).collect(),
            beside: vec![0; graph.tensors.len()],
            updates: vec![NONE; graph.tensors.len()],
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

    /// The same net with operations of equal times.
    pub(super) fn even(&self) -> Net {
        let mut even = self.clone();
        for op in even
            .ops
            .iter_mut()
            .filter(|op| op.rank as usize + 1 < self.ranks)
        {
            op.seconds = 1e-6;
        }
        even
    }

    /// The operations of a program, and the last one.
    pub(super) fn order(&self, program: &Program) -> Vec<u32> {
        let numbers: HashMap<OperationId, u32> = self.ids.iter().copied().zip(0..).collect();
        let known = program.operations().iter();
        let known = known.filter_map(|id| numbers.get(id).copied());
        known.chain([self.ids.len() as u32]).collect()
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
        let mut viewed = vec![NONE; graph.tensors.len()];
        let mut list = Vec::new();
        let mut view = |tensor: TensorId, made: &[u32], list: &mut Vec<OperationId>| {
            let mut views = Vec::new();
            let mut open = vec![tensor];
            while let Some(tensor) = open.pop() {
                let now = made[roots[tensor.index()].index()];
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
    number: Vec<u32>,
    /// What a read of a tensor reads: itself, or the base of its views and what these read besides.
    reads: Vec<Vec<TensorId>>,
    /// The most bytes that a view on the way to it takes while it runs.
    beside: Vec<i64>,
    /// The update of a tensor.
    updates: Vec<u32>,
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
            let updates = inputs.map(|input| self.updates[self.roots[input.index()].index()]);
            let update = updates.filter(|&update| update != op as u32).min();
            self.net.ops[op].before = update.unwrap_or(NONE);
        }
        let recorded = self.net.ops.len();
        self.net.ranks = recorded + 1;
        for (id, operation) in graph.operation_ids().zip(&graph.operations) {
            if operation.transfer.is_some() {
                self.transfer(id, operation);
            }
        }
        let outputs: Vec<TensorId> = graph.outputs().collect();
        let (inputs, _) = self.read(&outputs, NONE);
        let beside = outputs.iter().map(|one| self.beside[one.index()]);
        self.put(Op {
            temporary: beside.max().unwrap_or(0),
            inputs,
            repeatable: false,
            fixed: true,
            rank: recorded as u32,
            ..Op::none()
        });
        self.net
    }

    /// The values that are read with some tensors, and whether `taken` is read once.
    fn read(&self, tensors: &[TensorId], taken: u32) -> (Vec<u32>, bool) {
        let read = tensors.iter().flat_map(|one| &self.reads[one.index()]);
        let values = read.map(|one| self.number[one.index()]);
        let mut values: Vec<u32> = values.filter(|&value| value != NONE).collect();
        let once = values.iter().filter(|&&value| value == taken).count() == 1;
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
        let base = read.first().map_or(NONE, |root| self.number[root.index()]);
        if base != NONE && !operation.repeatable {
            let maker = self.net.values[base as usize].maker;
            self.net.ops[maker as usize].repeatable = false;
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
        self.number[tensor.index()] = number;
        self.net.values.push(Value {
            bytes: [of.bytes.0 as i64, of.host_bytes.0 as i64],
            maker: self.net.ops.len() as u32,
            fetch: NONE,
            offload: NONE,
            readers: Vec::new(),
        });
        number
    }

    fn add(&mut self, id: OperationId, operation: &Operation) {
        let op = self.net.ops.len() as u32;
        let taken = operation.in_place.map(|place| operation.inputs[place]);
        let taken = taken.map_or(NONE, |one| self.number[self.roots[one.index()].index()]);
        let (inputs, once) = self.read(&operation.inputs, taken);
        let outputs = operation.outputs.iter();
        let outputs: Vec<u32> = outputs.map(|&output| self.value(output)).collect();
        let bytes = |value: u32| self.net.values[value as usize].bytes[0];
        let fits = |&first: &u32| taken != NONE && once && bytes(first) == bytes(taken);
        let made = outputs.iter().map(|&value| bytes(value)).sum();
        let temporary = operation.temp_bytes.0 as i64;
        let added = Op {
            seconds: operation.seconds.0,
            temporary: temporary.max(self.beside(operation) - made),
            made: [made, 0],
            inputs,
            reuses: outputs
                .first()
                .filter(|first| fits(first))
                .map_or(NONE, |_| taken),
            outputs,
            repeatable: operation.repeatable && operation.updates.is_none(),
            fixed: operation.updates.is_some(),
            rank: op,
            ..Op::none()
        };
        self.put(added);
        self.net.ids.push(id);
        if let Some(tensor) = operation.updates {
            self.updates[tensor.index()] = op;
        }
    }

    /// Adds a transfer of a tensor, if the tensor is made at all.
    fn transfer(&mut self, id: OperationId, operation: &Operation) {
        let op = self.net.ops.len() as u32;
        let offloads = operation.transfer == Some(Transfer::Offload);
        let input = self.number[operation.inputs[0].index()];
        if input == NONE {
            return;
        }
        let output = match offloads {
            true => self.value(operation.outputs[0]),
            false => self.number[operation.outputs[0].index()],
        };
        let tensor = if offloads { input } else { output };
        let of = &mut self.net.values[tensor as usize];
        if offloads {
            of.offload = op;
        } else {
            of.fetch = op;
        }
        let rank = of.maker;
        self.put(Op {
            seconds: operation.seconds.0,
            temporary: operation.temp_bytes.0 as i64,
            made: self.net.values[output as usize].bytes,
            inputs: vec![input],
            outputs: vec![output],
            rank,
            transfer: true,
            ..Op::none()
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

impl Op {
    /// An operation that does nothing.
    fn none() -> Op {
        Op {
            seconds: 0.0,
            temporary: 0,
            made: [0; 2],
            inputs: Vec::new(),
            outputs: Vec::new(),
            reuses: NONE,
            repeatable: true,
            fixed: false,
            before: NONE,
            rank: 0,
            transfer: false,
        }
    }
}
