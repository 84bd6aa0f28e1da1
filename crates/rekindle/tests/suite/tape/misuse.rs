//! What would give a wrong gradient gives an error. (A second backward of one tape does not compile: see the docs of
//! `Tape::backward`.)

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Tensor, activation::gelu},
};
use rekindle::{StepSeed, Tape, tape::TapeError};

use super::{device, models::ROWS};

const WIDTH: usize = 3;

fn linear() -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(&device())
}

fn input() -> Tensor<2> {
    Tensor::ones([ROWS, WIDTH], &device())
}

fn tape() -> Tape {
    Tape::new(StepSeed::new(0, 0))
}

fn checkpoint(tape: &mut Tape, module: &Linear, input: Tensor<2>) -> Tensor<2> {
    tape.checkpoint_with(module, input, |module, input| gelu(module.forward(input)))
}

/// The graph before the input is older than the tape, and used up by another backward.
#[test]
fn an_input_whose_graph_is_gone() {
    own_process!();
    let model = (linear(), linear());
    let x = gelu(model.0.forward(input()));
    let y = x.clone() * 2.0;
    let _ = x.clone().mean().backward();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &model.1, y);
    let error = tape.backward(output.mean(), &model).expect_err("misuse");
    assert_eq!(error, TapeError::Consumed);
    drop(x);
}

#[test]
fn an_output_used_after_its_tape() {
    own_process!();
    let model = (linear(), linear());
    let mut first = tape();
    let output = checkpoint(&mut first, &model.0, input());
    first
        .backward(output.clone().mean(), &model)
        .expect("no misuse");
    let mut second = tape();
    let more = checkpoint(&mut second, &model.1, output);
    let error = second.backward(more.mean(), &model).expect_err("misuse");
    assert_eq!(error, TapeError::Consumed);
}

#[test]
fn an_output_of_another_tape() {
    own_process!();
    let model = (linear(), linear());
    let (mut first, mut second) = (tape(), tape());
    let output = checkpoint(&mut first, &model.0, input());
    let more = checkpoint(&mut second, &model.1, output.exp());
    let error = second.backward(more.mean(), &model).expect_err("misuse");
    assert_eq!(error, TapeError::OtherTape);
}

#[test]
#[should_panic(expected = "call `tape.backward(loss, &model)`")]
fn an_ordinary_backward() {
    let module = linear();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &module, input());
    let _ = output.mean().backward();
}

#[test]
fn a_loss_of_several_values() {
    own_process!();
    let module = linear();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &module, input());
    let loss = output.mean_dim(1).flatten(0, 1);
    let error = tape.backward(loss, &module).expect_err("misuse");
    assert_eq!(error, TapeError::LossNotScalar { elements: ROWS });
}

#[test]
fn a_detached_loss() {
    own_process!();
    let module = linear();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &module, input());
    let error = tape
        .backward(output.mean().detach(), &module)
        .expect_err("misuse");
    assert_eq!(error, TapeError::LossUntracked);
}

#[test]
fn a_captured_value() {
    own_process!();
    let model = (linear(), linear());
    let mut tape = tape();
    let captured = model.0.forward(input());
    let output = tape.checkpoint_with(&model.1, input(), move |module, input| {
        module.forward(input) + captured.clone()
    });
    let error = tape.backward(output.mean(), &model).expect_err("misuse");
    assert_eq!(error, TapeError::Captured { checkpoint: 0 });
}
