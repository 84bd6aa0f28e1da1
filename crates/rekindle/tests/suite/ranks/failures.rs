//! What one rank cannot do, none does; the next step works.

use std::sync::{
    Arc,
    atomic::{AtomicIsize, Ordering},
};

use burn::{
    module::Module,
    nn::LinearConfig,
    optim::SgdConfig,
    tensor::{Device, Tensor},
};
use rekindle::{
    meter::FailedAllocation,
    record::RecordError,
    reduce::{ReduceError, broadcast_parameters, part},
};
use rekindle_plan::Bytes;

use super::{Asked, Mlp, Normed, Silent, Task, Wide, ranks};
use crate::compare::{assert_same, state_of};

const RANKS: usize = 3;
/// The rank that fails.
const FAILS: usize = 1;
const SAMPLES: usize = 6;

/// Has an allocation fail before the operation that is told.
#[derive(Default)]
struct Fails(AtomicIsize);

impl Asked for Fails {
    fn asked(&self) -> Option<FailedAllocation> {
        let left = self.0.fetch_sub(1, Ordering::SeqCst);
        (left == 1).then_some(FailedAllocation {
            asked: Bytes(7),
            in_use: Bytes(5),
        })
    }
}

/// The message of the failing rank is its own; the others name it.
fn assert_told(rank: usize, error: &RecordError) {
    match error {
        RecordError::OutOfMemory(failed) => {
            assert_eq!((rank, failed.asked), (FAILS, Bytes(7)));
        }
        RecordError::OtherRank {
            rank: other,
            message,
        } => {
            assert_ne!(rank, FAILS);
            assert_eq!(*other, FAILS);
            assert!(message.contains("could not allocate"), "{message}");
        }
        other => panic!("rank {rank}: {other}"),
    }
}

/// One rank fails after such shares of its operations.
fn fail_together<T: Task>(shares: &[f64]) {
    let device = Device::flex().autodiff();
    let model = T::model(&device);
    drop(model.valid());
    let batch = T::batch(SAMPLES, &device);
    for share in shares {
        let results = ranks(RANKS, |rank| {
            let own = T::part(&batch, part(SAMPLES, rank.rank(), RANKS));
            let model = model.valid().train();
            let meter = Arc::new(Silent(Fails::default()));
            let recorded = rekindle::record(&model, &own, T::loss).expect("recorded");
            let recorded = recorded
                .with_meter(meter.clone())
                .with_reducer(rank.clone());
            let step = recorded.plain().expect("planned");
            let before = step.run(&model, own.clone()).expect("run");
            if rank.rank() == FAILS {
                let operations = step.graph().1.operations().len() as f64;
                meter
                    .0
                    .0
                    .store((operations * share) as isize, Ordering::SeqCst);
            }
            let error = step.run(&model, own.clone()).err().expect("fails");
            assert_told(rank.rank(), &error);
            let after = step.run(&model, own).expect("runs again");
            (
                before.loss.into_scalar::<f32>(),
                after.loss.into_scalar::<f32>(),
            )
        });
        for (before, after) in results {
            assert_eq!(before.to_bits(), after.to_bits());
        }
    }
}

#[test]
fn a_step_that_fails_on_one_rank_fails_on_all() {
    own_process!();
    // Amid the buckets, and at the end.
    fail_together::<Wide>(&[0.7, 1.0]);
    // Before the first mean over ranks, amid those of the forward and the backward pass, and after the last.
    fail_together::<Normed>(&[0.01, 0.2, 0.7, 1.0]);
}

#[test]
fn ranks_that_update_in_the_backward_pass_tell_alike_what_is_updated() {
    let device = Device::flex().autodiff();
    let model = Wide::model(&device);
    drop(model.valid());
    let batch = Wide::batch(SAMPLES, &device);
    for share in [0.1, 1.0] {
        let updated = ranks(RANKS, |rank| {
            let own = Wide::part(&batch, part(SAMPLES, rank.rank(), RANKS));
            let mut model = model.valid().train();
            let start = state_of(&model);
            let mut optimizer = SgdConfig::new().init();
            let meter = Arc::new(Silent(Fails::default()));
            let recorded = rekindle::record(&model, &own, Wide::loss).expect("recorded");
            let recorded = recorded.with_update_in_backward(&optimizer);
            let recorded = recorded
                .with_meter(meter.clone())
                .with_reducer(rank.clone());
            let step = recorded.plain().expect("planned");
            if rank.rank() == FAILS {
                let operations = step.graph().1.operations().len() as f64;
                meter
                    .0
                    .0
                    .store((operations * share) as isize, Ordering::SeqCst);
            }
            let mut run =
                |model: &mut _| step.run_updating(model, own.clone(), 0.1, &mut optimizer);
            match run(&mut model).err().expect("fails") {
                RecordError::PartlyUpdated {
                    updated, source, ..
                } => {
                    assert_told(rank.rank(), &source);
                    updated
                }
                error => {
                    assert_told(rank.rank(), &error);
                    assert_same("the model", &start, &state_of(&model), 0.0);
                    assert!(run(&mut model).is_ok(), "the next step works");
                    0
                }
            }
        });
        assert!(updated.iter().all(|one| *one == updated[0]), "{updated:?}");
        assert_eq!(updated[0] > 0, share > 0.5, "{updated:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_is_seen_by_all_ranks() {
    let device = Device::flex().autodiff();
    let model = Mlp::model(&device);
    drop(model.valid());
    let (inputs, targets) = Mlp::batch(SAMPLES, &device);
    let results = ranks(RANKS, |rank| {
        let (mut own, targets) = Mlp::part(
            &(inputs.clone(), targets.clone()),
            part(SAMPLES, rank.rank(), RANKS),
        );
        let model = model.valid().train();
        let sound = (own.clone(), targets.clone());
        let recorded = rekindle::record(&model, &sound, Mlp::loss).expect("recorded");
        let step = recorded
            .with_reducer(rank.clone())
            .plain()
            .expect("planned");
        if rank.rank() == FAILS {
            own = own * f32::NAN;
        }
        let error = step.run(&model, (own, targets)).err().expect("fails");
        assert!(step.run(&model, sound).is_ok());
        error
    });
    for error in results {
        assert!(
            matches!(&error, RecordError::NotFinite { what } if what == "the loss"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_cannot_plan_is_named_by_all() {
    let device = Device::flex().autodiff();
    let model = Mlp::model(&device);
    drop(model.valid());
    let batch = Mlp::batch(SAMPLES, &device);
    let errors = ranks(RANKS, |rank| {
        let model = model.valid().train();
        let recorded = rekindle::record(&model, &batch, Mlp::loss).expect("recorded");
        let budget = Bytes(if rank.rank() == FAILS { 1 } else { u64::MAX });
        let recorded = recorded.with_meter(Arc::new(Silent(Fails::default())));
        recorded
            .with_reducer(rank)
            .within(budget)
            .err()
            .expect("refused")
    });
    for (rank, error) in errors.iter().enumerate() {
        match error {
            RecordError::Infeasible { .. } => assert_eq!(rank, FAILS),
            RecordError::OtherRank {
                rank: FAILS,
                message,
            } => {
                assert!(
                    rank != FAILS && message.contains("no plan fits"),
                    "{message}"
                );
            }
            other => panic!("rank {rank}: {other}"),
        }
    }
}

#[test]
fn ranks_that_differ_are_told_so() {
    let device = Device::flex().autodiff();
    let of = |rank: usize| if rank == FAILS { 2.0 } else { 1.0 };
    let input = Tensor::<2>::ones([4, 3], &device);
    let expected = |what: &str| ReduceError::Differ {
        what: what.into(),
        ranks: vec![FAILS],
    };
    let steps = ranks(RANKS, |rank| {
        let model = LinearConfig::new(3, 3).init(&device);
        let scale = of(rank.rank());
        let recorded = rekindle::record(&model, &input, |model: &burn::nn::Linear, input| {
            model.forward(input).mean() * scale
        });
        recorded.expect("recorded").with_reducer(rank).plain().err()
    });
    for error in steps {
        let operations = expected("the operations of the steps");
        assert_eq!(error, Some(RecordError::Reduce(operations)));
    }
    let models = ranks(RANKS, |rank| {
        let width = 3 * of(rank.rank()) as usize;
        let model = LinearConfig::new(3, width).init(&device);
        broadcast_parameters(&rank, model).err()
    });
    for error in models {
        assert_eq!(error, Some(expected("the model's parameters")));
    }
}
