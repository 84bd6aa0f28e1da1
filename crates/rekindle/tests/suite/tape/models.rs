//! One model with every kind of part, and several ways to run it.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig},
    tensor::{Device, Int, Tensor, activation::gelu},
};
use rekindle::Layer;

use super::run::Run;

pub const WIDTH: usize = 6;
pub const ROWS: usize = 8;

/// Linear, batch normalisation, dropout: parameters, statistics, random numbers.
#[derive(Module, Debug)]
pub struct Block {
    pub linear: Linear,
    norm: BatchNorm,
    dropout: Dropout,
}

impl Layer for Block {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.dropout
            .forward(gelu(self.norm.forward(self.linear.forward(input))))
    }
}

/// A query and a memory, with row numbers that want no gradient.
pub type Pair = (Tensor<2>, (Option<Tensor<2>>, Tensor<1, Int>));

/// Takes nested data and gives nested data.
#[derive(Module, Debug)]
pub struct Mix {
    linear: Linear,
}

impl Layer for Mix {
    type Input = Pair;
    type Output = Pair;

    fn forward(&self, (query, (memory, rows)): Pair) -> Pair {
        let picked = memory.map(|memory| memory.select(0, rows.clone()));
        let mixed = match picked.clone() {
            Some(picked) => query * self.linear.forward(picked),
            None => query,
        };
        (mixed, (picked, rows))
    }

    fn draws_random(&self) -> bool {
        false
    }
}

#[derive(Module, Debug)]
pub struct Net {
    pub before: Linear,
    pub first: Block,
    pub between: Linear,
    dropout: Dropout,
    pub second: Block,
    pub mix: Mix,
    pub after: Linear,
}

pub fn block(device: &Device) -> Block {
    Block {
        linear: LinearConfig::new(WIDTH, WIDTH).init(device),
        norm: BatchNormConfig::new(WIDTH).init(device),
        dropout: DropoutConfig::new(0.3).init(),
    }
}

pub fn net() -> Net {
    let device = super::device();
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
    Net {
        before: linear(),
        first: block(&device),
        between: linear(),
        dropout: DropoutConfig::new(0.3).init(),
        second: block(&device),
        mix: Mix { linear: linear() },
        after: linear(),
    }
}

type Rows = Tensor<2>;

fn loss(output: Rows) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}

/// Ordinary code before, between and after two checkpoints.
pub fn ordinary_between<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = gelu(net.before.forward(input));
    let x = run.checkpoint(&net.first, x);
    let x = net.dropout.forward(gelu(net.between.forward(x)));
    let x = run.checkpoint(&net.second, x);
    loss(net.after.forward(x))
}

/// Nothing before, nothing between, nothing after.
pub fn in_a_row<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = run.checkpoint(&net.first, input);
    loss(run.checkpoint(&net.second, x))
}

/// A skip around a checkpoint, from ordinary code.
pub fn skip<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = gelu(net.before.forward(input));
    let inner = run.checkpoint(&net.first, x.clone());
    loss(net.after.forward(gelu(x + inner)))
}

/// Skips around the second checkpoint, from a checkpoint's output and from the input.
pub fn skip_from_leaves<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = run.checkpoint(&net.first, input.clone());
    let inner = run.checkpoint(&net.second, x.clone());
    loss(net.after.forward(gelu(x * inner + input)))
}

/// A long skip around two checkpoints and a short one inside it, with ordinary code that uses the same parameters
/// twice.
pub fn nested_skips<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let long = gelu(net.before.forward(input));
    let x = run.checkpoint(&net.first, long.clone());
    let short = gelu(net.between.forward(x));
    let x = short.clone() * run.checkpoint(&net.second, short);
    loss(net.between.forward(x) + long)
}

/// A skip that begins some operations before the checkpoint's input.
pub fn hidden_skip<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let hidden = net.before.forward(input);
    let inner = run.checkpoint(&net.first, gelu(hidden.clone() * 2.0));
    loss(net.after.forward(hidden.tanh() + inner))
}

/// Two checkpoints of one value: their gradients meet in the code that made it.
pub fn two_of_one_value<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = gelu(net.before.forward(input));
    let a = run.checkpoint(&net.first, x.clone());
    let b = run.checkpoint(&net.second, x);
    loss(net.after.forward(a * b))
}

/// One layer twice: its statistics move twice, its gradients add up.
pub fn one_layer_twice<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = run.checkpoint(&net.first, net.before.forward(input));
    let x = run.checkpoint(&net.first, gelu(x));
    loss(net.after.forward(x))
}

/// Tuples, an option, integers; the memory is computed after the query's checkpoint and used after its own.
pub fn nested_data<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let rows = Tensor::arange(0..ROWS as i64, &input.device()).flip([0]);
    let query = run.checkpoint(&net.first, gelu(net.before.forward(input.clone())));
    let memory = net.between.forward(input);
    let pair = (query, (Some(memory.clone()), rows));
    let (query, (picked, _)) = run.checkpoint(&net.mix, pair);
    let picked = match picked {
        Some(picked) => picked,
        None => unreachable!("given"),
    };
    loss(net.after.forward(query + picked) * memory)
}

/// A checkpoint that leads nowhere, and one whose output is the loss's only way.
pub fn dead_end<R: Run>(net: &Net, input: Rows, run: &mut R) -> Tensor<1> {
    let x = gelu(net.before.forward(input.clone()));
    let _ = run.checkpoint(&net.second, input);
    loss(run.checkpoint(&net.first, x))
}
