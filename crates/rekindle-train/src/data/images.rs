//! Labelled images, stored as bytes and returned as numbers in `[0, 1]`.

use std::path::Path;

use serde_json::Value;

use super::{
    batch::{Batch, Inputs, Targets},
    dataset::{Dataset, TargetKind, contents},
};
use crate::{file_error::FileError, model::spec::SampleShape};

/// Images of one size, one byte a value, and a class for each.
#[derive(Debug)]
pub(super) struct Images {
    /// Channels, rows, columns.
    pub dims: [usize; 3],
    /// The values, image by image.
    pub pixels: Vec<u8>,
    /// The classes.
    pub labels: Vec<u8>,
}

/// Classes of MNIST, of data sets in its form, and of CIFAR-10.
pub(super) const CLASSES: usize = 10;

/// Fails if one of a file's labels is none of the classes.
pub(super) fn check_labels(labels: &[u8], path: &Path) -> Result<(), FileError> {
    let mut labels = labels.iter().enumerate();
    let Some((index, label)) = labels.find(|(_, label)| usize::from(**label) >= CLASSES) else {
        return Ok(());
    };
    let last = CLASSES - 1;
    let reason = format!(
        "label {label} of sample {index} is not one of the {CLASSES} classes (0 to {last})"
    );
    Err(FileError::content(path, reason))
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn sample_shape(&self) -> SampleShape {
        SampleShape::float(self.dims)
    }

    fn target(&self) -> TargetKind {
        TargetKind::Classes(CLASSES)
    }

    fn identity(&self) -> Value {
        contents([&self.pixels[..], &self.labels])
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let size = self.dims.iter().product::<usize>();
        let mut values = Vec::with_capacity(indices.len() * size);
        for &index in indices {
            let image = &self.pixels[index * size..(index + 1) * size];
            values.extend(image.iter().map(|&byte| f32::from(byte) / 255.0));
        }
        let [channels, rows, cols] = self.dims;
        Batch {
            shape: vec![indices.len(), channels, rows, cols],
            inputs: Inputs::Floats(values),
            targets: Targets::Classes(
                indices
                    .iter()
                    .map(|&index| i32::from(self.labels[index]))
                    .collect(),
            ),
        }
    }
}
