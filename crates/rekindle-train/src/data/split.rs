//! Opens a source and reserves samples for evaluation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    batch::Batch,
    batches::Permutation,
    dataset::{Dataset, TargetKind},
    error::starved,
    images::{self, Images},
    settings::Source,
    synthetic::Synthetic,
    text,
};
use crate::{file_error::FileError, model::spec::SampleShape};

/// Samples to train on and, optionally, samples to evaluate on. No sample is in both.
pub struct Split {
    /// Samples to train on.
    pub train: Arc<dyn Dataset>,
    /// Samples reserved for evaluation.
    pub eval: Option<Arc<dyn Dataset>>,
}

/// Opens a source.
///
/// If the folder contains MNIST's or CIFAR-10's official test set, it is the evaluation set, and a `share` only
/// turns it off if it is 0. Text is split by position. Other data are split by a shuffle with `seed`.
///
/// # Errors
///
/// See [`FileError`]: files that are missing, unreadable or wrong; sizes of zero; a share outside of `[0, 1)` or one
/// that leaves no samples for one side.
pub fn open(source: &Source, share: f64, seed: u64) -> Result<Split, FileError> {
    if !(0.0..1.0).contains(&share) {
        return Err(FileError::setting(format!(
            "the evaluation share is {share}, but must be at least 0 and below 1"
        )));
    }
    match source {
        Source::Text {
            files,
            window,
            predict,
        } => {
            let (train, eval) = text::open(files, (*window, *predict), share)?;
            Ok(Split {
                train: Arc::new(train),
                eval: eval.map(|eval| Arc::new(eval) as Arc<dyn Dataset>),
            })
        }
        Source::Mnist { folder } => official(images::mnist(folder)?, share, seed),
        Source::Cifar10 { folder } => official(images::cifar10(folder)?, share, seed),
        Source::Synthetic {
            shape,
            vocab,
            target,
            samples,
            seed: own_seed,
        } => {
            let all = Synthetic::new(shape, *vocab, *target, *samples, *own_seed)?;
            by_shuffle(Arc::new(all), share, seed)
        }
    }
}

fn official(
    (train, test): (Images, Option<Images>),
    share: f64,
    seed: u64,
) -> Result<Split, FileError> {
    match test {
        Some(test) if share > 0.0 => Ok(Split {
            train: Arc::new(train),
            eval: Some(Arc::new(test)),
        }),
        _ => by_shuffle(Arc::new(train), share, seed),
    }
}

fn by_shuffle(all: Arc<dyn Dataset>, share: f64, seed: u64) -> Result<Split, FileError> {
    if share == 0.0 {
        return Ok(Split {
            train: all,
            eval: None,
        });
    }
    let samples = all.len();
    let eval = (samples as f64 * share).round() as usize;
    for (count, side) in [(eval, "evaluation"), (samples - eval, "training")] {
        if count == 0 {
            return Err(starved(share, samples, side));
        }
    }
    let order = Permutation::new(samples, seed, SPLIT);
    let part = |first, len| Part {
        all: Arc::clone(&all),
        order,
        seed,
        first,
        len,
    };
    Ok(Split {
        train: Arc::new(part(eval, samples - eval)),
        eval: Some(Arc::new(part(0, eval))),
    })
}

/// An epoch that no run reaches, so that the order of the split differs from every training order.
const SPLIT: u64 = u64::MAX;

/// A part of a shuffled data set.
struct Part {
    all: Arc<dyn Dataset>,
    order: Permutation,
    seed: u64,
    first: usize,
    len: usize,
}

impl Dataset for Part {
    fn len(&self) -> usize {
        self.len
    }

    fn sample_shape(&self) -> SampleShape {
        self.all.sample_shape()
    }

    fn target(&self) -> TargetKind {
        self.all.target()
    }

    fn identity(&self) -> Value {
        let mut identity = self.all.identity();
        identity["split"] = json!({ "seed": self.seed, "first": self.first });
        identity
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let inner: Vec<usize> = indices
            .iter()
            .map(|&index| {
                assert!(index < self.len, "sample {index} of {}", self.len);
                self.order.at(self.first + index)
            })
            .collect();
        self.all.batch(&inner)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::data::batch::Numbers;

    fn open_synthetic(samples: usize, eval_split: f64, seed: u64) -> Result<Split, FileError> {
        let source = Source::Synthetic {
            shape: vec![1],
            vocab: None,
            target: TargetKind::Classes(2),
            samples,
            seed: 0,
        };
        open(&source, eval_split, seed)
    }

    fn values(dataset: &dyn Dataset) -> HashSet<u32> {
        let all: Vec<usize> = (0..dataset.len()).collect();
        let Numbers::Floats(values) = dataset.batch(&all).inputs else {
            panic!("numbers were asked for");
        };
        values.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn the_parts_are_disjoint_and_complete_and_follow_the_seed() {
        let split = open_synthetic(50, 0.2, 1).unwrap();
        let eval = split.eval.unwrap();
        assert_eq!((split.train.len(), eval.len()), (40, 10));
        let (trained, evaluated) = (values(&*split.train), values(&*eval));
        assert!(trained.is_disjoint(&evaluated));
        assert_eq!(trained.len() + evaluated.len(), 50);
        assert_eq!(
            values(&*open_synthetic(50, 0.2, 1).unwrap().eval.unwrap()),
            evaluated
        );
        assert_ne!(
            values(&*open_synthetic(50, 0.2, 2).unwrap().eval.unwrap()),
            evaluated
        );
    }

    #[test]
    fn shares_that_starve_a_side_are_refused() {
        let message = |samples, share| open_synthetic(samples, share, 0).err().unwrap().to_string();
        for (share, side) in [(0.01, "evaluation"), (0.99, "training")] {
            let starved = format!("share of {share} of 10 samples leaves none for {side}: ");
            assert!(message(10, share).contains(&starved));
        }
        for share in [1.0, -0.1, f64::NAN] {
            assert!(message(10, share).ends_with("must be at least 0 and below 1"));
        }
        assert!(open_synthetic(10, 0.0, 0).unwrap().eval.is_none());
    }
}
