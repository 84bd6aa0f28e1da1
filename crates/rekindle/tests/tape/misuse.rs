//! What would give a wrong gradient gives an error. (A second backward of one tape does not compile: see the docs of
//! `Tape::backward`.)

use burn::{
    nn::{Linear, LinearConfig},
    tensor::{Tensor, activation::gelu},
};
use rekindle::{
    StepSeed, Tape,
    tape::{TapeError, TapePart},
};

use crate::{B, models::ROWS, one_at_a_time};

const WIDTH: usize = 3;

fn linear() -> Linear<B> {
    LinearConfig::new(WIDTH, WIDTH).init(&Default::default())
}

fn input() -> Tensor<B, 2> {
    Tensor::ones([ROWS, WIDTH], &Default::default())
}

fn tape() -> Tape<B> {
    Tape::new(StepSeed::new(0, 0))
}

fn checkpoint(tape: &mut Tape<B>, module: &Linear<B>, input: Tensor<B, 2>) -> Tensor<B, 2> {
    tape.checkpoint_with(module, input, |module, input| gelu(module.forward(input)))
}

#[test]
fn a_skip_that_is_not_shared() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let mut tape = tape();
    let x = model.0.forward(input());
    let inner = checkpoint(&mut tape, &model.1, x.clone());
    // The sum drops `x`: burn deletes its graph in the first sweep.
    let error = tape
        .backward((x + inner).mean(), &model)
        .expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert!(
        error == TapeError::Shared { part } || error == TapeError::Consumed { part },
        "{error}"
    );
}

#[test]
fn a_skip_that_is_not_shared_and_still_held() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let mut tape = tape();
    let x = model.0.forward(input());
    let inner = checkpoint(&mut tape, &model.1, x.clone());
    let error = tape
        .backward((x.clone() + inner).mean(), &model)
        .expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert_eq!(error, TapeError::Shared { part });
    drop(x);
}

/// The value that both uses meet in lies some operations before the checkpoint's input.
#[test]
fn a_hidden_skip() {
    let _alone = one_at_a_time();
    for held in [false, true] {
        let model = (linear(), linear());
        let mut tape = tape();
        let hidden = model.0.forward(input());
        let kept = held.then(|| hidden.clone());
        let x = gelu(hidden.clone() * 2.0);
        let inner = checkpoint(&mut tape, &model.1, x);
        let error = tape
            .backward((hidden.exp() + inner).mean(), &model)
            .expect_err("misuse");
        let part = TapePart::Checkpoint(0);
        assert!(
            error == TapeError::Shared { part } || error == TapeError::Consumed { part },
            "held: {held}: {error}"
        );
        drop(kept);
    }
}

#[test]
fn a_shared_value_whose_original_is_used() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let mut tape = tape();
    let x = model.0.forward(input());
    let shared = tape.share(x.clone());
    let inner = checkpoint(&mut tape, &model.1, shared);
    let error = tape
        .backward((x.clone() + inner).mean(), &model)
        .expect_err("misuse");
    let part = TapePart::Share(0);
    assert_eq!(error, TapeError::Shared { part });
    drop(x);
}

/// The graph before the input is older than the tape, and used up by another backward.
#[test]
fn an_input_whose_graph_is_gone() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let x = gelu(model.0.forward(input()));
    let y = x.clone() * 2.0;
    let _ = x.clone().mean().backward();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &model.1, y);
    let error = tape.backward(output.mean(), &model).expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert_eq!(error, TapeError::Consumed { part });
    drop(x);
}

#[test]
fn an_output_used_after_its_tape() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let mut first = tape();
    let output = checkpoint(&mut first, &model.0, input());
    first
        .backward(output.clone().mean(), &model)
        .expect("no misuse");
    let mut second = tape();
    let more = checkpoint(&mut second, &model.1, output);
    let error = second.backward(more.mean(), &model).expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert_eq!(error, TapeError::Consumed { part });
}

#[test]
fn an_output_of_another_tape() {
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let (mut first, mut second) = (tape(), tape());
    let output = checkpoint(&mut first, &model.0, input());
    let more = checkpoint(&mut second, &model.1, output.exp());
    let error = second.backward(more.mean(), &model).expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert_eq!(error, TapeError::OtherTape { part });
}

#[test]
#[should_panic(expected = "call `tape.backward(loss, &model)`")]
fn an_ordinary_backward() {
    let _alone = one_at_a_time();
    let module = linear();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &module, input());
    let _ = output.mean().backward();
}

#[test]
fn a_loss_of_several_values() {
    let _alone = one_at_a_time();
    let module = linear();
    let mut tape = tape();
    let output = checkpoint(&mut tape, &module, input());
    let loss = output.mean_dim(1).flatten(0, 1);
    let error = tape.backward(loss, &module).expect_err("misuse");
    assert_eq!(error, TapeError::LossNotScalar { elements: ROWS });
}

#[test]
fn a_detached_loss() {
    let _alone = one_at_a_time();
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
    let _alone = one_at_a_time();
    let model = (linear(), linear());
    let mut tape = tape();
    let captured = model.0.forward(input());
    let output = tape.checkpoint_with(&model.1, input(), move |module, input| {
        module.forward(input) + captured.clone()
    });
    let error = tape.backward(output.mean(), &model).expect_err("misuse");
    let part = TapePart::Checkpoint(0);
    assert_eq!(error, TapeError::Captured { part });
}
