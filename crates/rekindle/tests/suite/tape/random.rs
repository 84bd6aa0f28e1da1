//! Programs that nobody would write: ordinary code and checkpoints mixed at random.

use std::{cell::Cell, sync::Arc};

use burn::{
    module::{Module, Param},
    nn::{Dropout, DropoutConfig, Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, SgdConfig},
    tensor::{Distribution, Int, Tensor, activation::gelu},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rekindle::{Layer, StepSeed, Tape, tape::TapeError};

use crate::compare::{Trace, assert_same, floats, gradients_of, private_copy, state_of};

use super::{
    device,
    models::{Block, ROWS, WIDTH, block},
    run::{Plain, Run},
};

const LINEARS: usize = 4;
const BLOCKS: usize = 3;

const PROGRAMS: u64 = 120;
/// Programs with a checkpoint that must be left to compare: in some the loss depends on nothing that is trained.
const LEAST_COMPARED: usize = 60;
const STEPS: u64 = 3;

/// Sums of three uses and more, over some steps; relative to the largest value.
const TOLERANCE: f32 = 2e-5;

type Rows = Tensor<2>;
type Step = (Tensor<1>, GradientsParams);

/// What programs are made of.
#[derive(Module, Debug)]
struct Parts {
    linears: Vec<Linear>,
    blocks: Vec<Block>,
    table: Param<Tensor<2>>,
    dropout: Dropout,
}

/// Operations on values, which are numbered in the order in which they come.
#[derive(Debug, Clone)]
enum Op {
    Linear(usize, usize),
    Block(usize, usize),
    Add(usize, usize),
    Mul(usize, usize),
    Swap(usize),
    Select(usize),
    Dropout(usize),
    Detach(usize),
    Ones,
    Table,
    /// A checkpoint of a block, as a layer.
    Layer(usize, usize),
    /// A checkpoint of a program, whose results become values.
    Piece(Arc<Program>, Vec<usize>),
}

/// Its inputs are the first values.
#[derive(Debug, Clone)]
struct Program {
    ops: Vec<Op>,
    outputs: Vec<usize>,
}

/// One operation that is no checkpoint.
fn ordinary(op: &Op, parts: &Parts, rows: &Tensor<1, Int>, values: &[Rows]) -> Rows {
    let get = |index: &usize| values[*index].clone();
    match op {
        Op::Linear(module, x) => gelu(parts.linears[*module].forward(get(x))),
        Op::Block(module, x) => parts.blocks[*module].forward(get(x)),
        Op::Add(a, b) => get(a) + get(b),
        Op::Mul(a, b) => get(a) * get(b),
        Op::Swap(x) => {
            let half = ROWS / 2;
            Tensor::cat(
                vec![get(x).narrow(0, half, half), get(x).narrow(0, 0, half)],
                0,
            )
        }
        Op::Select(x) => get(x).select(0, rows.clone()),
        Op::Dropout(x) => parts.dropout.forward(get(x)),
        // burn's `detach` keeps that a leaf wants a gradient.
        Op::Detach(x) => get(x).inner().autodiff(),
        Op::Ones => Tensor::ones([ROWS, WIDTH], &device()),
        Op::Table => parts.table.val(),
        Op::Layer(..) | Op::Piece(..) => unreachable!("a checkpoint"),
    }
}

fn run<R: Run>(
    program: &Program,
    parts: &Parts,
    rows: &Tensor<1, Int>,
    inputs: Vec<Rows>,
    run: &mut R,
) -> Tensor<1> {
    let mut values = inputs;
    for op in &program.ops {
        let mut new = match op {
            Op::Layer(module, x) => {
                vec![run.checkpoint(&parts.blocks[*module], values[*x].clone())]
            }
            Op::Piece(inner, inputs) => {
                let inputs: Vec<Rows> = inputs.iter().map(|&x| values[x].clone()).collect();
                let inner = Arc::clone(inner);
                let (outputs, _) = run.checkpoint_with(
                    parts,
                    (inputs, rows.clone()),
                    move |parts: &Parts, (inputs, rows): (Vec<Rows>, Tensor<1, Int>)| {
                        let mut values = inputs;
                        for op in &inner.ops {
                            let value = ordinary(op, parts, &rows, &values);
                            values.push(value);
                        }
                        let outputs: Vec<Rows> =
                            inner.outputs.iter().map(|&x| values[x].clone()).collect();
                        (outputs, rows)
                    },
                );
                outputs
            }
            op => vec![ordinary(op, parts, rows, &values)],
        };
        values.append(&mut new);
    }
    let outputs = program.outputs.iter();
    outputs
        .map(|&x| values[x].clone().tanh().mean())
        .reduce(|sum, term| sum + term)
        .expect("an output")
}

/// Makes programs. Roots are values or parameters whose gradients are sums over all uses.
struct Maker {
    random: StdRng,
    /// The most uses of one root.
    most: usize,
    uses: Vec<usize>,
    linears: Vec<usize>,
    blocks: Vec<usize>,
    table: usize,
}

impl Maker {
    fn root(&mut self) -> usize {
        self.uses.push(0);
        self.uses.len() - 1
    }

    /// A value with `times` uses left.
    fn pick(&mut self, roots: &[usize], times: usize) -> Option<usize> {
        let free: Vec<usize> = (0..roots.len())
            .filter(|&value| self.uses[roots[value]] + times <= self.most)
            .collect();
        if free.is_empty() {
            return None;
        }
        // Late values more often.
        let pick = |random: &mut StdRng| free[random.random_range(0..free.len())];
        let value = pick(&mut self.random).max(pick(&mut self.random));
        self.uses[roots[value]] += times;
        Some(value)
    }

    fn module(&mut self, uses: fn(&mut Self) -> &mut Vec<usize>) -> Option<usize> {
        let most = self.most;
        let count = uses(self).len();
        let module = self.random.random_range(0..count);
        let used = &mut uses(self)[module];
        (*used < most).then(|| {
            *used += 1;
            module
        })
    }

    /// One operation and the root of its value, or nothing where the dice ask for what is used up.
    fn ordinary(&mut self, roots: &[usize]) -> Option<(Op, usize)> {
        let op = match self.random.random_range(0..13) {
            0..=2 => Op::Linear(
                self.module(|maker| &mut maker.linears)?,
                self.pick(roots, 1)?,
            ),
            3 => Op::Block(
                self.module(|maker| &mut maker.blocks)?,
                self.pick(roots, 1)?,
            ),
            4 | 5 => Op::Add(self.pick(roots, 1)?, self.pick(roots, 1)?),
            6 => Op::Mul(self.pick(roots, 1)?, self.pick(roots, 1)?),
            7 => Op::Swap(self.pick(roots, 2)?),
            8 => Op::Select(self.pick(roots, 1)?),
            9 => Op::Dropout(self.pick(roots, 1)?),
            10 => Op::Detach(self.pick(roots, 0)?),
            11 => Op::Ones,
            _ => return Some((Op::Table, self.table)),
        };
        Some((op, self.root()))
    }

    fn piece(&mut self, roots: &[usize]) -> Option<(Op, Vec<usize>)> {
        let count = self.random.random_range(1..4);
        let mut inputs = Vec::new();
        for _ in 0..count {
            inputs.push(self.pick(roots, 0)?);
        }
        let mut inner: Vec<usize> = inputs.iter().map(|&x| roots[x]).collect();
        let mut ops = Vec::new();
        for _ in 0..self.random.random_range(0..5) {
            if let Some((op, root)) = self.ordinary(&inner) {
                ops.push(op);
                inner.push(root);
            }
        }
        let outputs: Vec<usize> = (0..self.random.random_range(1..4))
            .map(|_| self.random.random_range(0..inner.len()))
            .collect();
        let outer = outputs.iter().map(|&x| inner[x]).collect();
        let program = Program { ops, outputs };
        Some((Op::Piece(Arc::new(program), inputs), outer))
    }

    fn program(mut self) -> Program {
        let mut roots = vec![self.root(), self.root()];
        let mut ops = Vec::new();
        for _ in 0..self.random.random_range(3..14) {
            let (op, new) = match self.random.random_range(0..5) {
                0 => {
                    let Some(module) = self.module(|maker| &mut maker.blocks) else {
                        continue;
                    };
                    let Some(x) = self.pick(&roots, 1) else {
                        continue;
                    };
                    (Op::Layer(module, x), vec![self.root()])
                }
                1 | 2 => match self.piece(&roots) {
                    Some(piece) => piece,
                    None => continue,
                },
                _ => match self.ordinary(&roots) {
                    Some((op, root)) => (op, vec![root]),
                    None => continue,
                },
            };
            ops.push(op);
            roots.extend(new);
        }
        let mut outputs = Vec::new();
        for _ in 0..self.random.random_range(1..4) {
            outputs.extend(self.pick(&roots, 1));
        }
        if outputs.is_empty() {
            outputs.push(roots.len() - 1);
        }
        Program { ops, outputs }
    }
}

fn parts() -> Parts {
    let device = device();
    Parts {
        linears: (0..LINEARS)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device))
            .collect(),
        blocks: (0..BLOCKS).map(|_| block(&device)).collect(),
        table: Param::from_tensor(Tensor::random(
            [ROWS, WIDTH],
            Distribution::Default,
            &device,
        )),
        dropout: DropoutConfig::new(0.2).init(),
    }
}

struct Case {
    parts: Parts,
    rows: Vec<i64>,
    /// Sums of three terms and more may be taken in another order: Adam would make much of that.
    exact: bool,
}

/// Some steps; `None` where one is refused.
fn train(
    case: &Case,
    step: impl Fn(&Parts, &Tensor<1, Int>, Vec<Rows>, StepSeed) -> Option<Step>,
) -> Option<Trace> {
    let device = device();
    let mut parts = private_copy(&case.parts);
    let mut adam = AdamConfig::new().init();
    let mut sgd = SgdConfig::new().init();
    let mut trace = Trace::new();
    let rows = Tensor::from_ints(&case.rows[..], &device);
    for number in 0..STEPS {
        device.seed(number);
        let input = || Tensor::random([ROWS, WIDTH], Distribution::Default, &device);
        let inputs = vec![input(), input()];
        let (loss, gradients) = step(&parts, &rows, inputs, StepSeed::new(9, number))?;
        trace.push((format!("loss of step {number}"), floats(loss.inner())));
        trace.extend(gradients_of(number, &parts, &gradients));
        parts = if case.exact {
            adam.step(1e-2, parts, gradients)
        } else {
            sgd.step(1e-2, parts, gradients)
        };
    }
    trace.extend(state_of(&parts));
    Some(trace)
}

/// Whether a program with a checkpoint was compared: there is nothing to compare where the loss depends on nothing that
/// is trained.
fn compare_one(seed: u64) -> bool {
    let mut random = StdRng::seed_from_u64(seed);
    let exact = random.random_bool(0.7);
    device().seed(seed);
    let mut parts = private_copy(&parts());
    for linear in &mut parts.linears {
        if random.random_bool(0.2) {
            *linear = linear.clone().no_grad();
        }
    }
    for block in &mut parts.blocks {
        if random.random_bool(0.2) {
            *block = block.clone().no_grad();
        }
    }
    let rows = (0..ROWS).map(|_| random.random_range(0..ROWS as i64));
    let case = Case {
        parts,
        rows: rows.collect(),
        exact,
    };
    let maker = Maker {
        random,
        most: if exact { 2 } else { 4 },
        uses: vec![0],
        linears: vec![0; LINEARS],
        blocks: vec![0; BLOCKS],
        table: 0,
    };
    let program = maker.program();
    let what = format!("seed {seed}: {program:?}");
    let plain = train(&case, |parts, rows, inputs, seed| {
        let mut plain = Plain {
            seed,
            checkpoints: 0,
        };
        let loss = run(&program, parts, rows, inputs, &mut plain);
        loss.is_tracked().then(|| {
            let gradients = GradientsParams::from_grads(loss.backward(), parts);
            (loss, gradients)
        })
    });
    let refused = Cell::new(None);
    let taped = train(&case, |parts, rows, inputs, seed| {
        let mut tape = Tape::new(seed);
        let loss = run(&program, parts, rows, inputs, &mut tape);
        match tape.backward(loss.clone(), parts) {
            Ok(gradients) => Some((loss, gradients)),
            Err(error) => {
                refused.set(Some(error));
                None
            }
        }
    });
    match (plain, taped, refused.take()) {
        (Some(plain), Some(taped), None) => {
            assert_same(&what, &plain, &taped, if exact { 0.0 } else { TOLERANCE });
            let checkpoint = |op: &Op| matches!(op, Op::Layer(..) | Op::Piece(..));
            program.ops.iter().any(checkpoint)
        }
        // A constant that a checkpoint gives is tracked.
        (None, Some(_), None) | (None, None, Some(TapeError::LossUntracked)) => false,
        (_, _, refused) => panic!("{what}: {refused:?}"),
    }
}

/// Bit for bit where no value and no parameter is used more than twice.
#[test]
fn random_programs_equal_the_plain_run() {
    own_process!();
    let compared = (0..PROGRAMS).filter(|&seed| compare_one(seed)).count();
    println!("compared {compared}");
    assert!(compared >= LEAST_COMPARED, "{compared} of {PROGRAMS}");
}

/// burn keeps the input's leaf in the graph of its first use, which no gradient comes to.
#[test]
fn an_input_whose_first_use_leads_nowhere() {
    own_process!();
    let device = device();
    let (before, module) = (parts(), parts());
    // Which graph burn keeps is a matter of luck.
    for _ in 0..10 {
        let mut tape = Tape::new(StepSeed::new(0, 0));
        let input = Tensor::<2>::ones([ROWS, WIDTH], &device);
        let x = before.linears[0].forward(input);
        let (_, output) = tape.checkpoint_with(&module, x, |module, x: Rows| {
            let first = module.linears[0].forward(module.linears[1].forward(x.clone()));
            (first, x.tanh())
        });
        let gradients = tape
            .backward(output.mean(), &(before.clone(), module.clone()))
            .expect("no misuse");
        assert_eq!(gradients.len(), 2);
    }
}
