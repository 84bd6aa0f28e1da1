//! A chain as a graph, on which the simulator gives every schedule of the chain its exact bytes.
//!
//! In the symbols of [`chain`](crate::chain), with s_{i+1} for what a tracked forward of stage i keeps besides its output:
//!
//! | operation | reads | makes | temporary bytes | seconds |
//! |---|---|---|---|---|
//! | forward of stage i | a_i | a_{i+1}: x_{i+1} bytes | f_i | its forward |
//! | what its backward needs | a_i, a_{i+1} | s_{i+1}: X_{i+1} - x_{i+1} bytes | F_i | 0 |
//! | forward of the loss | a_L | the loss: 0 bytes | its forward's | its forward |
//! | backward of the loss | a_L, the loss | y_L: x_L bytes | its backward's | its backward |
//! | backward of stage i | y_{i+1}, s_{i+1}, a_{i+1}, a_i | y_i and the gradients of g_i bytes | b_i | its backward |
//!
//! a_0 is given, y_0 and all parameter gradients are outputs. The second operation of a stage is unused, and so does not
//! run, where its forward is untracked: a chain's three kinds of forwards are one list of operations.
//!
//! A tracked forward makes its output first, so it takes max(x + f, X + F). That is X + F, unless a file says that it
//! holds less for a while than an untracked one: then the prediction is an upper bound.
//!
//! The optimizer is no operation: a step's peak is at least [`Chain::optimizer_peak`], and its time comes on top.

use std::iter::once;

use super::Stages;
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::graph::{Graph, Operation, Tensor, TensorId};
use crate::seconds::Seconds;

impl Stages {
    /// The graph of a valid chain, and its stages.
    pub fn of_chain(chain: &Chain) -> (Graph, Stages) {
        let count = chain.stages.len();
        let mut graph = Graph {
            fixed_bytes: chain.resident_bytes(),
            ..Graph::default()
        };
        let mut tensor = |bytes, given, output| {
            graph.tensors.push(Tensor {
                bytes,
                given,
                output,
                ..Tensor::default()
            });
            TensorId(graph.tensors.len() as u32 - 1)
        };
        let mut operations = Vec::with_capacity(3 * count + 2);
        let mut operation =
            |inputs: &[TensorId], outputs: &[TensorId], (temp, seconds), backward| {
                operations.push(Operation {
                    inputs: inputs.to_vec(),
                    outputs: outputs.to_vec(),
                    temp_bytes: temp,
                    seconds,
                    backward,
                    ..Operation::default()
                });
            };
        let mut activations = vec![tensor(chain.input_bytes, true, false)];
        let mut saved = Vec::with_capacity(count);
        for (i, stage) in chain.stages.iter().enumerate() {
            let input = activations[i];
            let output = tensor(stage.output_bytes, false, false);
            let rest = tensor(stage.saved_bytes - stage.output_bytes, false, false);
            let forward = (stage.forward_temp_bytes, stage.forward_s);
            operation(&[input], &[output], forward, false);
            let tracked = (stage.tracked_temp_bytes, Seconds::ZERO);
            operation(&[input, output], &[rest], tracked, false);
            activations.push(output);
            saved.push(rest);
        }
        let loss = tensor(Bytes::ZERO, false, false);
        let mut gradient = tensor(chain.activation_bytes(count), false, false);
        let forward = (chain.loss.forward_temp_bytes, chain.loss.forward_s);
        operation(&[activations[count]], &[loss], forward, false);
        let backward = (chain.loss.backward_temp_bytes, chain.loss.backward_s);
        operation(&[activations[count], loss], &[gradient], backward, true);
        for (i, stage) in chain.stages.iter().enumerate().rev() {
            let inputs = [gradient, saved[i], activations[i + 1], activations[i]];
            gradient = tensor(chain.gradient_bytes(i), false, i == 0);
            let parameters = tensor(stage.grad_bytes, false, true);
            let backward = (stage.backward_temp_bytes, stage.backward_s);
            operation(&inputs, &[gradient, parameters], backward, true);
        }
        graph.operations = operations;
        let loss = 2 * count;
        let forward = (0..count).map(|i| 2 * i..2 * i + 2);
        let last = graph.operations.len();
        let backward = (0..count).map(|i| last - 1 - i..last - i);
        let stages = Stages {
            chain: chain.clone(),
            forward: forward.chain(once(loss..loss + 1)).collect(),
            backward: backward.chain(once(loss + 1..loss + 2)).collect(),
            once: vec![false; last],
        };
        (graph, stages)
    }
}
