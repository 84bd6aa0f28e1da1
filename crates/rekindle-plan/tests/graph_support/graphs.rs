//! Graphs to plan.

use rekindle_plan::graph::{Graph, Operation, Tensor, TensorId};
use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Seconds, Stage};

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
        // A view reads one tensor, and draws nothing.
        let view = random.chance(12) && inputs.len() == 1;
        let (in_place, draws) = (random.chance(30), random.chance(8) && !view);
        let same = builder.graph.tensors[inputs[0].index()].bytes;
        let operation = builder.last();
        operation.temp_bytes = Bytes(if view { 0 } else { random.below(3) });
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

/// Layers of several operations each, every layer with a residual connection, and a backward that makes a gradient of
/// the parameters and one of the input for every forward operation.
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

/// A chain with random stages whose forward costs the same memory tracked or not.
pub fn random_chain(random: &mut Sequence, stages: usize) -> Chain {
    let stages = (0..stages).map(|_| {
        let (output, extra, temp) = (1 + random.below(8), random.below(8), random.below(4));
        Stage {
            forward_s: Seconds(1.0 + random.below(9) as f64),
            backward_s: Seconds(1.0 + random.below(18) as f64),
            output_bytes: Bytes(output),
            saved_bytes: Bytes(output + extra),
            forward_temp_bytes: Bytes(extra + temp),
            tracked_temp_bytes: Bytes(temp),
            backward_temp_bytes: Bytes(random.below(4)),
            grad_bytes: Bytes(random.below(3)),
            ..Stage::default()
        }
    });
    Chain {
        stages: stages.collect(),
        input_bytes: Bytes::ZERO,
        input_grad: false,
        fixed_bytes: Bytes(random.below(10)),
        loss: LossCost::default(),
        optimizer: OptimizerCost::default(),
    }
}

/// Equal steps whose backward reads their input alone: the pebble game of Griewank & Walther. States take one byte,
/// gradients none, and a step overwrites its input where nobody wants it any more.
pub fn equal_steps(steps: usize) -> Graph {
    let mut builder = Builder::default();
    let mut states = vec![builder.given()];
    for i in 1..steps {
        let state = builder.operation(&[states[i - 1]], 1, 1);
        builder.last().in_place = Some(0);
        states.push(state);
    }
    let mut gradient = None;
    for &state in states.iter().rev() {
        let inputs: Vec<TensorId> = gradient.into_iter().chain([state]).collect();
        gradient = Some(builder.operation(&inputs, 0, 1));
        builder.last().backward = true;
    }
    builder.output(gradient.unwrap());
    builder.graph
}

/// A U-Net: `depth` levels down and up again, the activations of every level read on the way up too. The resolution
/// halves twice a level, the channels double.
pub fn unet(depth: usize, marked: bool) -> Graph {
    let mut builder = Builder::default();
    let (input, target) = (builder.given(), builder.given());
    // Forward operations as (inputs, output), and whether the backward reads the inputs or the output.
    let mut forward: Vec<(Vec<TensorId>, TensorId, bool)> = Vec::new();
    let mut stage = 0;
    let mut layer =
        |builder: &mut Builder, inputs: &[TensorId], bytes: u64, seconds, reads: bool| {
            let output = builder.operation(inputs, bytes, seconds);
            builder.last().stage = marked.then_some(stage);
            stage += u32::from(!reads);
            forward.push((inputs.to_vec(), output, reads));
            output
        };
    let mut block = |builder: &mut Builder, inputs: &[TensorId], bytes: u64| {
        let mut x = inputs.to_vec();
        for _ in 0..2 {
            let convolved = layer(builder, &x, bytes, 40, true);
            x = vec![layer(builder, &[convolved], bytes, 1, false)];
        }
        x[0]
    };
    let size = |level: usize| 4096 >> level;
    let mut x = input;
    let mut skips = Vec::new();
    for level in 0..depth {
        x = block(&mut builder, &[x], size(level));
        skips.push(x);
        x = block(&mut builder, &[x], size(level) / 4);
    }
    x = block(&mut builder, &[x], size(depth));
    for (level, skip) in skips.into_iter().enumerate().rev() {
        x = block(&mut builder, &[x, skip], size(level));
    }
    let loss = builder.operation(&[x, target], 1, 1);
    builder.output(loss);
    let bytes = |builder: &Builder, t: TensorId| builder.graph.tensors[t.index()].bytes.0;
    let mut gradients = vec![None; builder.graph.tensors.len()];
    let size = bytes(&builder, x);
    gradients[x.index()] = Some(builder.operation(&[x, target], size, 1));
    builder.last().backward = true;
    for (inputs, output, reads_inputs) in forward.iter().rev() {
        let arriving = gradients[output.index()].unwrap();
        for &wanted in inputs.iter().filter(|&&t| t != input) {
            let size = bytes(&builder, wanted);
            let read = if *reads_inputs { wanted } else { *output };
            let mut gradient = builder.operation(&[arriving, read], size, 40);
            builder.last().backward = true;
            if let Some(other) = gradients[wanted.index()] {
                gradient = builder.operation(&[gradient, other], size, 1);
                builder.last().in_place = Some(0);
                builder.last().backward = true;
            }
            gradients[wanted.index()] = Some(gradient);
        }
        if *reads_inputs {
            let mut read = vec![arriving];
            read.extend(inputs);
            let parameters = builder.operation(&read, 8, 40);
            builder.last().backward = true;
            builder.output(parameters);
        }
    }
    builder.graph
}

/// Which part of a transformer's block an operation of [`transformer`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Norm,
    Projection,
    /// Scores, softmax, and the weighted sum of values.
    Attention,
    Activation,
    Residual,
}

/// The training step of a pre-norm transformer: `layers` blocks of 12 heads, 768 wide, on 4,096 tokens of 512 in a row.
/// Bytes are those of `f32`, in KiB; seconds are microseconds: 50 for a million multiply-adds, 100 for a million bytes that
/// are read or written. Returns what each forward operation is as well.
pub fn transformer(layers: u64) -> (Graph, Vec<Kind>) {
    const WIDTH: u64 = 768;
    const TOKENS: u64 = 4096;
    const SCORES: u64 = 12 * 512 * TOKENS;
    let kib = |values: u64| values * 4 / 1024;
    let moved = |values: u64| values * 4 / 10_000;
    let product = |rows: u64, inner: u64, columns: u64| rows * inner * columns / 20_000;
    let mut builder = Builder::default();
    let mut kinds = Vec::new();
    // Each backward: the gradient of which input, from what else is read, its size and time.
    type Backward = (Option<TensorId>, Vec<TensorId>, u64, u64);
    type Run<'a> = dyn FnMut(
            &mut Builder,
            Kind,
            &[TensorId],
            u64,
            u64,
            &dyn Fn(TensorId) -> Vec<Backward>,
        ) -> TensorId
        + 'a;
    let mut backward: Vec<(TensorId, Vec<Backward>)> = Vec::new();
    let mut run = |builder: &mut Builder,
                   kind: Kind,
                   inputs: &[TensorId],
                   values: u64,
                   time: u64,
                   back: &dyn Fn(TensorId) -> Vec<Backward>| {
        let output = builder.operation(inputs, kib(values), time);
        kinds.push(kind);
        backward.push((output, back(output)));
        output
    };
    let activation = TOKENS * WIDTH;
    let mut x = builder.given();
    let given = x;
    for _ in 0..layers {
        let norm = |builder: &mut Builder, run: &mut Run<'_>, x: TensorId| {
            run(
                builder,
                Kind::Norm,
                &[x],
                activation,
                moved(4 * activation),
                &|_| vec![(Some(x), vec![x], kib(activation), moved(8 * activation))],
            )
        };
        // A product with weights: the gradients of both take as long as it does.
        let linear = |builder: &mut Builder, run: &mut Run<'_>, x: TensorId, from: u64, to: u64| {
            let time = product(TOKENS, from, to);
            run(builder, Kind::Projection, &[x], TOKENS * to, time, &|_| {
                vec![
                    (None, vec![x], kib(from * to), time),
                    (Some(x), vec![], kib(TOKENS * from), time),
                ]
            })
        };
        // A product of two activations.
        let matmul = |builder: &mut Builder,
                      run: &mut Run<'_>,
                      [a, b]: [TensorId; 2],
                      [of_a, of_b, values]: [u64; 3]| {
            let time = product(TOKENS, 512, WIDTH);
            run(builder, Kind::Attention, &[a, b], values, time, &|_| {
                vec![
                    (Some(a), vec![b], kib(of_a), time),
                    (Some(b), vec![a], kib(of_b), time),
                ]
            })
        };
        let add = |builder: &mut Builder, run: &mut Run<'_>, a: TensorId, b: TensorId| {
            run(
                builder,
                Kind::Residual,
                &[a, b],
                activation,
                moved(3 * activation),
                &|_| vec![(Some(a), vec![], 0, 0), (Some(b), vec![], 0, 0)],
            )
        };
        let n = norm(&mut builder, &mut run, x);
        let [q, k, v] = [(); 3].map(|()| linear(&mut builder, &mut run, n, WIDTH, WIDTH));
        let scores = matmul(
            &mut builder,
            &mut run,
            [q, k],
            [activation, activation, SCORES],
        );
        let time = moved(6 * SCORES);
        let shares = run(
            &mut builder,
            Kind::Attention,
            &[scores],
            SCORES,
            time,
            &|shares| vec![(Some(scores), vec![shares], kib(SCORES), time)],
        );
        let sum = matmul(
            &mut builder,
            &mut run,
            [shares, v],
            [SCORES, activation, activation],
        );
        let o = linear(&mut builder, &mut run, sum, WIDTH, WIDTH);
        let r = add(&mut builder, &mut run, o, x);
        let n = norm(&mut builder, &mut run, r);
        let f = linear(&mut builder, &mut run, n, WIDTH, 4 * WIDTH);
        let time = moved(12 * activation);
        let g = run(
            &mut builder,
            Kind::Activation,
            &[f],
            4 * activation,
            time,
            &|_| vec![(Some(f), vec![f], kib(4 * activation), time)],
        );
        let y = linear(&mut builder, &mut run, g, 4 * WIDTH, WIDTH);
        x = add(&mut builder, &mut run, y, r);
    }
    let mut gradients: Vec<Option<TensorId>> = vec![None; builder.graph.tensors.len()];
    let first = builder.operation(&[x], kib(activation), moved(2 * activation));
    builder.last().backward = true;
    gradients[x.index()] = Some(first);
    for (output, parts) in backward.into_iter().rev() {
        let Some(arriving) = gradients[output.index()] else {
            continue;
        };
        for (of, read, bytes, time) in parts {
            if of == Some(given) {
                continue;
            }
            let made = match bytes {
                // The same gradient goes on.
                0 => arriving,
                _ => {
                    let inputs: Vec<TensorId> = [arriving].into_iter().chain(read).collect();
                    let made = builder.operation(&inputs, bytes, time);
                    builder.last().backward = true;
                    made
                }
            };
            let Some(of) = of else {
                builder.output(made);
                continue;
            };
            let sum = match gradients[of.index()] {
                Some(other) => {
                    let size = builder.graph.tensors[of.index()].bytes.0;
                    let sum = builder.operation(&[made, other], size, moved(3 * size * 256));
                    let last = builder.last();
                    (last.backward, last.in_place) = (true, (bytes > 0).then_some(0));
                    sum
                }
                None => made,
            };
            gradients[of.index()] = Some(sum);
        }
    }
    (builder.graph, kinds)
}
