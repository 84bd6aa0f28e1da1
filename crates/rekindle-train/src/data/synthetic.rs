//! Random samples with targets that can be learnt from them.
//!
//! Nothing is stored: a sample is drawn from (seed, number) whenever it is read. All draws come from ChaCha8 with a
//! separate stream per sample, and use only additions, multiplications and one square root, so every machine draws the
//! same bits.
//!
//! **Classes.** Each class has a prototype. A sample is its class's prototype plus noise of the same variance
//! (numbers), or has the prototype's token at about half of its positions and random tokens at the others (token ids).
//!
//! **Classes of tokens.** Each token id has its own class, drawn from the seed.
//!
//! **Regression.** A fixed random linear teacher: `y = W x / sqrt(n)` for `n` numbers; for token ids the mean over
//! places of a random vector per id, times `sqrt(n)`. Targets have a variance near 1, so an untrained model has a loss
//! near 1.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{
    batch::{Batch, Numbers},
    dataset::{Dataset, TargetKind},
};
use crate::{file_error::FileError, model::spec::SampleShape};

/// First random stream for each purpose; far enough apart that they never overlap.
const PROTOTYPES: u64 = 0;
const TEACHER: u64 = 1 << 61;
const SAMPLES: u64 = 1 << 62;

/// Maximum number of samples, and of values of a sample: every backend requires an `i32` index. An evaluation reads its share
/// of the samples.
const MOST: usize = i32::MAX as usize;

/// Maximum number of a teacher's weights.
const MOST_WEIGHTS: usize = MOST / 4;

/// Random samples.
#[derive(Debug)]
pub(super) struct Synthetic {
    shape: Vec<usize>,
    vocab: Option<usize>,
    samples: usize,
    seed: u64,
    target: TargetKind,
    /// For numbers to predict, a row of weights for each number of a sample, or for each token id.
    teacher: Vec<f32>,
}

impl Synthetic {
    /// Checks the sizes and draws the teacher.
    pub(super) fn new(
        shape: &[usize],
        vocab: Option<usize>,
        target: TargetKind,
        samples: usize,
        seed: u64,
    ) -> Result<Self, FileError> {
        let size = shape
            .iter()
            .try_fold(1usize, |size, &dim| size.checked_mul(dim))
            .filter(|size| (1..=MOST).contains(size) && !shape.is_empty());
        let Some(size) = size else {
            return Err(FileError::setting(format!(
                "the synthetic shape {shape:?} must have sizes of at least 1, and at most {MOST} values in all"
            )));
        };
        let counted = |what: &str, count: usize, most: usize| match (1..=most).contains(&count) {
            true => Ok(()),
            false => Err(FileError::setting(format!(
                "the number of synthetic {what} is {count}, but must be from 1 to {most}"
            ))),
        };
        counted("samples", samples, MOST)?;
        counted("token ids", vocab.unwrap_or(1), MOST)?;
        let mut teacher = Vec::new();
        match target {
            TargetKind::TokenClasses(_) if vocab.is_none() => {
                let message = "`token_classes` need token ids: give `vocab`";
                return Err(FileError::setting(message));
            }
            TargetKind::Classes(classes) | TargetKind::TokenClasses(classes) => {
                counted("classes", classes, MOST)?;
            }
            TargetKind::Values(values) => {
                let rows = vocab.unwrap_or(size);
                counted("target values", values, MOST_WEIGHTS / rows)?;
                let scale = 1.0 / (size as f32).sqrt();
                let mut rng = stream(seed, TEACHER);
                teacher.extend((0..rows * values).map(|_| scale * unit_variance(&mut rng)));
            }
        }
        Ok(Self {
            shape: shape.to_vec(),
            vocab,
            samples,
            seed,
            target,
            teacher,
        })
    }

    /// Draws a number or a token id: both are exact in an `f64`.
    fn value(&self, rng: &mut ChaCha8Rng) -> f64 {
        match self.vocab {
            None => unit_variance(rng).into(),
            Some(vocab) => rng.random_range(0..vocab as u32).into(),
        }
    }

    /// A value of a class, from its prototype and noise.
    fn noisy(&self, prototype: &mut ChaCha8Rng, noise: &mut ChaCha8Rng) -> f64 {
        let (shown, other) = (self.value(prototype), self.value(noise));
        match self.vocab {
            None => (0.5f32.sqrt() * (shown as f32 + other as f32)).into(),
            Some(_) if noise.random::<bool>() => shown,
            Some(_) => other,
        }
    }

    /// Draws a sample, and adds its target to those before.
    fn sample(&self, index: usize, targets: &mut Numbers) -> Vec<f64> {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        let mut rng = stream(self.seed, SAMPLES + index as u64);
        let places = 0..self.shape.iter().product();
        match (self.target, targets) {
            (TargetKind::Classes(classes), Numbers::Ids(drawn)) => {
                let class = rng.random_range(0..classes as u32);
                drawn.push(class as i32);
                let mut prototype = stream(self.seed, PROTOTYPES + u64::from(class));
                let values = places.map(|_: usize| self.noisy(&mut prototype, &mut rng));
                values.collect()
            }
            (TargetKind::TokenClasses(classes), Numbers::Ids(drawn)) => {
                let sample: Vec<f64> = places.map(|_| self.value(&mut rng)).collect();
                drawn.extend(sample.iter().map(|&id| {
                    let mut rng = stream(self.seed, PROTOTYPES + id as u64);
                    rng.random_range(0..classes as u32) as i32
                }));
                sample
            }
            (TargetKind::Values(width), Numbers::Floats(drawn)) => {
                let sample: Vec<f64> = places.map(|_| self.value(&mut rng)).collect();
                let mut target = vec![0.0; width];
                for (place, &value) in sample.iter().enumerate() {
                    let (row, times) = match self.vocab {
                        None => (place, value as f32),
                        Some(_) => (value as usize, 1.0),
                    };
                    let row = &self.teacher[row * width..(row + 1) * width];
                    for (sum, weight) in target.iter_mut().zip(row) {
                        *sum += times * weight;
                    }
                }
                drawn.extend(target);
                sample
            }
            _ => unreachable!("a data set has one kind of target"),
        }
    }
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        self.samples
    }

    fn sample_shape(&self) -> SampleShape {
        match self.vocab {
            Some(_) => SampleShape::tokens(self.shape.as_slice()),
            None => SampleShape::float(self.shape.as_slice()),
        }
    }

    fn target(&self) -> TargetKind {
        self.target
    }

    fn identity(&self) -> Value {
        json!({ "seed": self.seed, "vocab": self.vocab })
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let shape = [&[indices.len()], &self.shape[..]].concat();
        let mut targets = match self.target {
            TargetKind::Classes(_) | TargetKind::TokenClasses(_) => Numbers::Ids(Vec::new()),
            TargetKind::Values(width) => Numbers::Floats(Vec::with_capacity(indices.len() * width)),
        };
        let size = shape.iter().product();
        let mut inputs = match self.vocab {
            None => Numbers::Floats(Vec::with_capacity(size)),
            Some(_) => Numbers::Ids(Vec::with_capacity(size)),
        };
        for &index in indices {
            let sample = self.sample(index, &mut targets).into_iter();
            match &mut inputs {
                Numbers::Floats(numbers) => numbers.extend(sample.map(|value| value as f32)),
                Numbers::Ids(ids) => ids.extend(sample.map(|value| value as i32)),
            }
        }
        Batch {
            shape,
            inputs,
            targets,
        }
    }
}

fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// A draw with mean 0 and variance 1. Uniform rather than normal: no logarithm, whose last bit differs among machines.
fn unit_variance(rng: &mut ChaCha8Rng) -> f32 {
    let sqrt_12 = 12.0f32.sqrt();
    (rng.random::<f32>() - 0.5) * sqrt_12
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const CLASSES: TargetKind = TargetKind::Classes(4);

    #[test]
    fn the_same_seed_draws_the_same_samples_in_any_order() {
        let one = Synthetic::new(&[2, 3], None, CLASSES, 10, 7).unwrap();
        let two = Synthetic::new(&[2, 3], None, CLASSES, 10, 7).unwrap();
        let other = Synthetic::new(&[2, 3], None, CLASSES, 10, 8).unwrap();
        assert_eq!(one.batch(&[9]), two.batch(&[9]));
        assert_ne!(one.batch(&[9]), one.batch(&[8]));
        assert_ne!(one.batch(&[9]), other.batch(&[9]));
    }

    #[test]
    fn draws_do_not_change_from_release_to_release() {
        let data = Synthetic::new(&[2], Some(100), CLASSES, 10, 0).unwrap();
        let batch = data.batch(&[0, 1]);
        assert_eq!(batch.shape, [2, 2]);
        assert_eq!(batch.inputs, Numbers::Ids(vec![78, 75, 22, 75]));
        assert_eq!(batch.targets, Numbers::Ids(vec![1, 1]));
    }

    /// The nearest prototype names the class far more often than chance: what a linear model can learn.
    #[test]
    fn classes_can_be_told_from_the_samples() {
        let data = Synthetic::new(&[32], None, CLASSES, 400, 1).unwrap();
        let prototypes: Vec<Vec<f32>> = (0..4)
            .map(|class| {
                let mut rng = stream(1, PROTOTYPES + class);
                (0..32).map(|_| unit_variance(&mut rng)).collect()
            })
            .collect();
        let hits = (0..400)
            .filter(|&index| {
                let batch = data.batch(&[index]);
                let (Numbers::Floats(values), Numbers::Ids(classes)) =
                    (batch.inputs, batch.targets)
                else {
                    panic!("numbers and classes were asked for");
                };
                let score = |prototype: &[f32]| -> f32 {
                    prototype.iter().zip(&values).map(|(p, x)| p * x).sum()
                };
                let best =
                    (0..4).max_by(|&a, &b| score(&prototypes[a]).total_cmp(&score(&prototypes[b])));
                best == Some(classes[0] as usize)
            })
            .count();
        assert!(hits > 360, "{hits} of 400");
    }

    #[test]
    fn each_token_id_has_a_class_of_its_own() {
        let target = TargetKind::TokenClasses(5);
        let data = Synthetic::new(&[40], Some(9), target, 10, 3).unwrap();
        let batch = data.batch(&[0, 7]);
        let (Numbers::Ids(values), Numbers::Ids(classes)) = (&batch.inputs, &batch.targets) else {
            panic!("token ids and classes were asked for");
        };
        assert_eq!((values.len(), classes.len()), (80, 80));
        let mut class_of = HashMap::new();
        for (id, class) in values.iter().zip(classes) {
            assert_eq!(class_of.entry(id).or_insert(class), &class);
        }
        let distinct: HashSet<_> = class_of.values().collect();
        assert!(class_of.len() == 9 && distinct.len() > 1, "{class_of:?}");
        assert!(Synthetic::new(&[40], None, target, 10, 3).is_err());
    }

    #[test]
    fn regression_targets_are_a_fixed_linear_map() {
        let data = Synthetic::new(&[8], None, TargetKind::Values(3), 500, 1).unwrap();
        let all: Vec<usize> = (0..500).collect();
        let Numbers::Floats(values) = data.batch(&all).targets else {
            panic!("numbers were asked for");
        };
        assert_eq!(values.len(), 1500);
        let variance = values.iter().map(|y| y * y).sum::<f32>() / 1500.0;
        assert!((0.3..3.0).contains(&variance), "{variance}");
    }

    #[test]
    fn sizes_of_zero_are_refused() {
        for (shape, vocab, target, samples) in [
            (&[][..], None, CLASSES, 1),
            (&[3, 0], None, CLASSES, 1),
            (&[usize::MAX, 2], None, CLASSES, 1),
            (&[3], Some(0), CLASSES, 1),
            (&[3], None, TargetKind::Classes(0), 1),
            (&[3], None, TargetKind::Values(0), 1),
            (&[3], None, CLASSES, 0),
        ] {
            let error = Synthetic::new(shape, vocab, target, samples, 0).err();
            let error = error.expect("refused");
            assert_eq!(error.reason(), error.to_string(), "no file");
        }
    }
}
