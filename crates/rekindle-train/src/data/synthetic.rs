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

use super::{
    batch::{Batch, Inputs, Targets},
    dataset::{Dataset, TargetKind},
    error::DataError,
    identity::{Identity, Origin},
};
use crate::model::spec::{ElementKind, SampleShape};

/// First random stream for each purpose; far enough apart that they never overlap.
const PROTOTYPES: u64 = 0;
const TEACHER: u64 = 1 << 61;
const SAMPLES: u64 = 1 << 62;

/// Maximum number of samples. They cost nothing by themselves, but an evaluation reads its share of them.
const MAX_SAMPLES: usize = i32::MAX as usize;

/// Maximum number of values of a sample: every backend requires an `i32` index.
const MAX_VALUES: usize = i32::MAX as usize;

/// Random samples.
#[derive(Debug)]
pub(super) struct Synthetic {
    shape: Vec<usize>,
    vocab: Option<usize>,
    samples: usize,
    seed: u64,
    target: Rule,
}

#[derive(Debug)]
enum Rule {
    Classes(usize),
    TokenClasses(usize),
    /// Rows of `values` weights: one row for each number of a sample, or for each token id.
    Regression {
        values: usize,
        teacher: Vec<f32>,
    },
}

impl Synthetic {
    /// Checks the sizes and draws the teacher.
    pub(super) fn new(
        shape: &[usize],
        vocab: Option<usize>,
        target: TargetKind,
        samples: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        let setting = |what, value: String, wanted| {
            Err(DataError::Setting {
                what,
                value,
                wanted,
            })
        };
        if shape.is_empty() || shape.contains(&0) {
            return setting(
                "the synthetic shape",
                format!("{shape:?}"),
                "one or more sizes of at least 1",
            );
        }
        if vocab.is_some_and(|vocab| vocab == 0 || i32::try_from(vocab).is_err()) {
            return setting(
                "the synthetic vocabulary",
                vocab.unwrap_or(0).to_string(),
                "from 1 to 2147483647",
            );
        }
        if samples == 0 || samples > MAX_SAMPLES {
            return setting(
                "the number of synthetic samples",
                samples.to_string(),
                "from 1 to 2147483647",
            );
        }
        let size = shape
            .iter()
            .try_fold(1usize, |size, &dim| size.checked_mul(dim));
        let Some(size) = size.filter(|&size| size <= MAX_VALUES) else {
            return setting(
                "the synthetic shape",
                format!("{shape:?}"),
                "at most 2147483647 values a sample",
            );
        };
        let target = match target {
            TargetKind::TokenClasses(_) if vocab.is_none() => {
                return setting(
                    "the synthetic target",
                    "token_classes".into(),
                    "classes or values where samples are numbers: give `vocab`",
                );
            }
            TargetKind::Classes(classes) | TargetKind::TokenClasses(classes)
                if classes == 0 || i32::try_from(classes).is_err() =>
            {
                return setting(
                    "the number of synthetic classes",
                    classes.to_string(),
                    "from 1 to 2147483647",
                );
            }
            TargetKind::Values(0) => {
                return setting(
                    "the number of synthetic target values",
                    "0".into(),
                    "at least 1",
                );
            }
            TargetKind::Classes(classes) => Rule::Classes(classes),
            TargetKind::TokenClasses(classes) => Rule::TokenClasses(classes),
            TargetKind::Values(values) => {
                let scale = 1.0 / (size as f32).sqrt();
                let mut rng = stream(seed, TEACHER);
                let weights = vocab.unwrap_or(size).saturating_mul(values);
                if weights > MAX_VALUES / 4 {
                    return setting(
                        "the number of synthetic target values",
                        values.to_string(),
                        "small enough for a teacher of at most 536870911 weights",
                    );
                }
                let teacher = (0..weights)
                    .map(|_| scale * unit_variance(&mut rng))
                    .collect();
                Rule::Regression { values, teacher }
            }
        };
        Ok(Self {
            shape: shape.to_vec(),
            vocab,
            samples,
            seed,
            target,
        })
    }

    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    fn numbers(&self, index: usize) -> (Vec<f32>, Drawn) {
        let half = 0.5f32.sqrt();
        self.sample(
            index,
            unit_variance,
            |shown, noise| half * (unit_variance(shown) + unit_variance(noise)),
            |place, &number| (place, number),
        )
    }

    fn tokens(&self, index: usize, vocab: usize) -> (Vec<i32>, Drawn) {
        let token = |rng: &mut ChaCha8Rng| rng.random_range(0..vocab as u32) as i32;
        self.sample(
            index,
            token,
            |shown, noise| {
                let (shown, other) = (token(shown), token(noise));
                if noise.random::<bool>() { shown } else { other }
            },
            |_, &id| (id as usize, 1.0),
        )
    }

    /// A sample and its target. `value` draws a value, `noisy` draws a value of a class from its prototype and noise;
    /// `weight` returns the teacher's row for a value at a position, and its factor.
    fn sample<V>(
        &self,
        index: usize,
        value: impl Fn(&mut ChaCha8Rng) -> V,
        noisy: impl Fn(&mut ChaCha8Rng, &mut ChaCha8Rng) -> V,
        weight: impl Fn(usize, &V) -> (usize, f32),
    ) -> (Vec<V>, Drawn) {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        let mut rng = stream(self.seed, SAMPLES + index as u64);
        match &self.target {
            Rule::Classes(classes) => {
                let class = rng.random_range(0..*classes as u32);
                let mut prototype = stream(self.seed, PROTOTYPES + u64::from(class));
                let values = (0..self.size()).map(|_| noisy(&mut prototype, &mut rng));
                (values.collect(), Drawn::Classes(vec![class]))
            }
            Rule::TokenClasses(classes) => {
                let sample: Vec<V> = (0..self.size()).map(|_| value(&mut rng)).collect();
                let class = |(place, value)| {
                    let (id, _) = weight(place, value);
                    let mut rng = stream(self.seed, PROTOTYPES + id as u64);
                    rng.random_range(0..*classes as u32)
                };
                let drawn = sample.iter().enumerate().map(class).collect();
                (sample, Drawn::Classes(drawn))
            }
            Rule::Regression { values, teacher } => {
                let sample: Vec<V> = (0..self.size()).map(|_| value(&mut rng)).collect();
                let mut target = vec![0.0; *values];
                for (place, value) in sample.iter().enumerate() {
                    let (row, times) = weight(place, value);
                    let row = &teacher[row * values..(row + 1) * values];
                    for (sum, weight) in target.iter_mut().zip(row) {
                        *sum += times * weight;
                    }
                }
                (sample, Drawn::Values(target))
            }
        }
    }

    fn empty_targets(&self) -> Targets {
        match self.target {
            Rule::Classes(_) | Rule::TokenClasses(_) => Targets::Classes(Vec::new()),
            Rule::Regression { values, .. } => Targets::Values {
                values: Vec::new(),
                width: values,
            },
        }
    }
}

/// The target of one sample.
enum Drawn {
    Classes(Vec<u32>),
    Values(Vec<f32>),
}

impl Drawn {
    fn push_to(self, targets: &mut Targets) {
        match (self, targets) {
            (Self::Classes(drawn), Targets::Classes(classes)) => {
                classes.extend(drawn.into_iter().map(|class| class as i32));
            }
            (Self::Values(drawn), Targets::Values { values, .. }) => values.extend(drawn),
            _ => unreachable!("a data set has one kind of target"),
        }
    }
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        self.samples
    }

    fn sample_shape(&self) -> SampleShape {
        let kind = match self.vocab {
            Some(_) => ElementKind::Token,
            None => ElementKind::Float,
        };
        SampleShape {
            kind,
            dims: self.shape.clone(),
        }
    }

    fn target(&self) -> TargetKind {
        match self.target {
            Rule::Classes(classes) => TargetKind::Classes(classes),
            Rule::TokenClasses(classes) => TargetKind::TokenClasses(classes),
            Rule::Regression { values, .. } => TargetKind::Values(values),
        }
    }

    fn identity(&self) -> Identity {
        Identity::whole(Origin::Drawn {
            seed: self.seed,
            vocab: self.vocab,
        })
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let mut shape = vec![indices.len()];
        shape.extend(&self.shape);
        let mut targets = self.empty_targets();
        let inputs = match self.vocab {
            None => {
                let mut values = Vec::with_capacity(indices.len() * self.size());
                for &index in indices {
                    let (sample, target) = self.numbers(index);
                    values.extend(sample);
                    target.push_to(&mut targets);
                }
                Inputs::Floats { values, shape }
            }
            Some(vocab) => {
                let mut values = Vec::with_capacity(indices.len() * self.size());
                for &index in indices {
                    let (sample, target) = self.tokens(index, vocab);
                    values.extend(sample);
                    target.push_to(&mut targets);
                }
                Inputs::Tokens { values, shape }
            }
        };
        Batch { inputs, targets }
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
        assert_eq!(
            batch.inputs,
            Inputs::Tokens {
                values: vec![78, 75, 22, 75],
                shape: vec![2, 2],
            }
        );
        assert_eq!(batch.targets, Targets::Classes(vec![1, 1]));
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
                let (sample, Drawn::Classes(classes)) = data.numbers(index) else {
                    panic!("classes were asked for");
                };
                let score = |prototype: &[f32]| -> f32 {
                    prototype.iter().zip(&sample).map(|(p, x)| p * x).sum()
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
        let (Inputs::Tokens { values, .. }, Targets::Classes(classes)) =
            (&batch.inputs, &batch.targets)
        else {
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
        let Targets::Values { values, width } = data.batch(&all).targets else {
            panic!("numbers were asked for");
        };
        assert_eq!((values.len(), width), (1500, 3));
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
            assert!(matches!(
                Synthetic::new(shape, vocab, target, samples, 0),
                Err(DataError::Setting { .. })
            ));
        }
    }
}
