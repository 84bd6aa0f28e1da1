//! Graphs to plan.

use rekindle_plan::graph::{Graph, Operation, Tensor, TensorId};
use rekindle_plan::{Bytes, Seconds};

/// A fixed sequence of numbers, the same in every run.
pub struct Sequence(pub u64);

impl Sequence {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Puts a graph together, operation by operation.
#[derive(Default)]
pub struct Builder {
    pub graph: Graph,
}

impl Builder {
    pub fn given(&mut self) -> TensorId {
        self.tensor(Tensor {
            given: true,
            ..Tensor::default()
        })
    }

    pub fn tensor(&mut self, tensor: Tensor) -> TensorId {
        self.graph.tensors.push(tensor);
        TensorId(self.graph.tensors.len() as u32 - 1)
    }

    /// An operation with one new output.
    pub fn operation(&mut self, inputs: &[TensorId], bytes: u64, seconds: u64) -> TensorId {
        let output = self.tensor(Tensor {
            bytes: Bytes(bytes),
            ..Tensor::default()
        });
        self.graph.operations.push(Operation {
            inputs: inputs.to_vec(),
            outputs: vec![output],
            seconds: Seconds(seconds as f64),
            ..Operation::default()
        });
        output
    }

    pub fn last(&mut self) -> &mut Operation {
        self.graph.operations.last_mut().unwrap()
    }

    pub fn output(&mut self, tensor: TensorId) {
        self.graph.tensors[tensor.index()].output = true;
    }
}

/// Any small graph: views, in-place operations, random draws, two outputs and dead code among its operations.
pub fn any(random: &mut Sequence, operations: usize) -> Graph {
    let mut builder = Builder::default();
    let mut tensors = vec![builder.given()];
    if random.chance(50) {
        tensors.push(builder.given());
    }
    for _ in 0..operations {
        let count = 1 + random.below(3).min(1 + random.below(2)) as usize;
        let inputs: Vec<TensorId> = (0..count)
            .map(|_| {
                // Late tensors are read more often, as in a network.
                let back = random
                    .below(tensors.len() as u64)
                    .min(random.below(tensors.len() as u64));
                tensors[tensors.len() - 1 - back as usize]
            })
            .collect();
        let (bytes, seconds) = (1 + random.below(8), random.below(10));
        tensors.push(builder.operation(&inputs, bytes, seconds));
        if random.chance(15) {
            let second = builder.tensor(Tensor {
                bytes: Bytes(1 + random.below(8)),
                ..Tensor::default()
            });
            builder.last().outputs.push(second);
            tensors.push(second);
        }
        let (view, in_place, draws) = (random.chance(12), random.chance(30), random.chance(8));
        let same = builder.graph.tensors[inputs[0].index()].bytes;
        let operation = builder.last();
        operation.temp_bytes = Bytes(random.below(3));
        operation.view = view;
        operation.repeatable = !draws;
        if in_place && !view {
            operation.in_place = Some(0);
            let output = operation.outputs[0];
            if same > Bytes::ZERO {
                builder.graph.tensors[output.index()].bytes = same;
            }
        }
    }
    let last = tensors.len() - 1;
    builder.output(tensors[last]);
    if random.chance(50) {
        let other = random.below(last as u64) as usize;
        builder.output(tensors[other]);
    }
    builder.graph.fixed_bytes = Bytes(random.below(5));
    builder.graph
}

/// A training step: a forward with some skips, and a backward that reads what the forward made.
pub fn training(random: &mut Sequence, layers: usize) -> Graph {
    let mut builder = Builder::default();
    let input = builder.given();
    let mut made = vec![input];
    for layer in 0..layers {
        let mut inputs = vec![made[layer]];
        if layer > 1 && random.chance(40) {
            inputs.push(made[1 + random.below(layer as u64 - 1) as usize]);
        }
        let (bytes, seconds) = (1 + random.below(8), 1 + random.below(9));
        made.push(builder.operation(&inputs, bytes, seconds));
        builder.last().temp_bytes = Bytes(random.below(3));
    }
    backward(&mut builder, &made, random);
    builder.graph
}

/// Gradients back to the first operation: operation k's backward reads its inputs, its output at times, and all
/// gradients of its output.
fn backward(builder: &mut Builder, made: &[TensorId], random: &mut Sequence) {
    let forward = builder.graph.operations.clone();
    let mut gradient: Vec<Option<TensorId>> = vec![None; builder.graph.tensors.len()];
    for (place, operation) in forward.iter().enumerate().rev() {
        let output = operation.outputs[0];
        let mut inputs: Vec<TensorId> = gradient[output.index()].into_iter().collect();
        inputs.extend(&operation.inputs);
        if inputs.len() < 2 || random.chance(50) {
            inputs.push(output);
        }
        // One operation for the gradients of all inputs.
        let target = operation.inputs[0];
        let bytes = builder.graph.tensors[target.index()].bytes.0;
        let seconds = 1 + random.below(9);
        if place == 0 {
            let last = builder.operation(&inputs, 1, seconds);
            builder.output(last);
        } else {
            if let Some(sum) = gradient[target.index()] {
                inputs.push(sum);
            }
            let made_here = builder.operation(&inputs, bytes, seconds);
            gradient[target.index()] = Some(made_here);
            gradient.resize(builder.graph.tensors.len(), None);
            for skip in operation.inputs.iter().skip(1) {
                let bytes = builder.graph.tensors[skip.index()].bytes;
                let more = builder.tensor(Tensor {
                    bytes,
                    ..Tensor::default()
                });
                let older = gradient[skip.index()];
                let operation = builder.last();
                operation.outputs.push(more);
                operation.inputs.extend(older);
                gradient.resize(builder.graph.tensors.len(), None);
                gradient[skip.index()] = Some(more);
            }
        }
        builder.last().backward = true;
    }
    let _ = made;
}

/// Layers of several operations each, every layer with a residual connection, and a backward that makes a gradient of the
/// parameters and one of the input for every forward operation.
pub fn residual(random: &mut Sequence, layers: usize, inside: usize) -> Graph {
    let mut builder = Builder::default();
    let (input, target) = (builder.given(), builder.given());
    let mut forward: Vec<(TensorId, Option<TensorId>, TensorId)> = Vec::new();
    let mut x = builder.operation(&[input], 64, 5);
    forward.push((input, None, x));
    for _ in 0..layers {
        let start = x;
        for _ in 0..inside {
            let made = builder.operation(&[x], 16 + random.below(128), 1 + random.below(20));
            builder.last().temp_bytes = Bytes(random.below(30));
            forward.push((x, None, made));
            x = made;
        }
        let sum = builder.operation(&[x, start], 64, 1);
        forward.push((x, Some(start), sum));
        x = sum;
    }
    let loss = builder.operation(&[x, target], 1, 1);
    builder.output(loss);
    let mut gradient = vec![None; builder.graph.tensors.len()];
    let start = builder.operation(&[x, target], 64, 1);
    builder.last().backward = true;
    gradient[x.index()] = Some(start);
    for &(input, skip, output) in forward.iter().rev() {
        let arriving = gradient[output.index()].unwrap();
        if let Some(skip) = skip {
            gradient[input.index()] = Some(arriving);
            gradient[skip.index()] = Some(arriving);
            continue;
        }
        let parameters = builder.operation(&[arriving, input], 4, 5);
        builder.last().backward = true;
        builder.output(parameters);
        if builder.graph.tensors[input.index()].given {
            continue;
        }
        let bytes = builder.graph.tensors[input.index()].bytes.0;
        let mut made = builder.operation(&[arriving, output], bytes, 5);
        builder.last().backward = true;
        if let Some(other) = gradient[input.index()] {
            made = builder.operation(&[made, other], bytes, 1);
            builder.last().backward = true;
        }
        gradient[input.index()] = Some(made);
    }
    builder.graph
}
