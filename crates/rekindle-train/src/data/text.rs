//! Next-byte prediction over files.
//!
//! A sample is `window` bytes of one file as token ids. Its class is the next byte; or each of its bytes has the
//! following byte as its class. No window spans two files.
//!
//! The last share of each file, by position, is reserved for evaluation: no byte of a training sample, target included,
//! is in an evaluation sample. Training windows start at every byte; evaluation windows are adjacent, so that an
//! evaluation reads each byte about once.

use std::{path::PathBuf, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    batch::{Batch, Numbers},
    dataset::{Dataset, TargetKind, contents},
    error::{empty, starved},
    file::{Input, free},
};
use crate::{file_error::FileError, model::spec::SampleShape};

/// The number of values of a byte.
pub const CLASSES: usize = 256;

/// What is to be predicted of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Predict {
    /// The byte that follows the window.
    #[default]
    Next,
    /// For each byte of the window the one that follows it: for models that see no later bytes, as causal attention.
    Each,
}

impl Predict {
    /// As data sets say it.
    #[must_use]
    pub fn target(self) -> TargetKind {
        match self {
            Self::Next => TargetKind::Classes(CLASSES),
            Self::Each => TargetKind::TokenClasses(CLASSES),
        }
    }
}

/// Windows over pieces of files.
#[derive(Debug)]
pub(super) struct Text {
    files: Arc<Vec<Vec<u8>>>,
    window: usize,
    predict: Predict,
    /// Bytes from the start of a window to the start of the next.
    stride: usize,
    pieces: Vec<Piece>,
    len: usize,
}

/// Consecutive bytes of a file and the windows in them.
#[derive(Debug, Clone, Copy)]
struct Piece {
    file: usize,
    start: usize,
    /// Number of the piece's first sample.
    first: usize,
}

/// Reads the files and reserves the last `share` of each.
pub(super) fn open(
    paths: &[PathBuf],
    (window, predict): (usize, Predict),
    share: f64,
) -> Result<(Text, Option<Text>), FileError> {
    if window == 0 {
        let message = "the window is 0, but must be at least 1 byte";
        return Err(FileError::setting(message));
    }
    let files = paths
        .iter()
        .map(|path| Input::open(path)?.all(free()))
        .collect::<Result<Vec<_>, FileError>>()?;
    let (longest, bytes) = paths
        .iter()
        .zip(&files)
        .map(|(path, bytes)| (path, bytes.len()))
        .max_by_key(|&(_, bytes)| bytes)
        .ok_or_else(|| FileError::setting("the text source names no files"))?;
    if bytes == 0 {
        return Err(empty(longest));
    }
    if bytes <= window {
        return Err(FileError::setting(format!(
            "a window of {window} bytes and the byte that follows fit no file: the longest, {}, has {bytes} bytes; \
             use a smaller `window`, or a longer text",
            longest.display()
        )));
    }

    let files = Arc::new(files);
    let cuts: Vec<usize> = files.iter().map(|bytes| cut(bytes.len(), share)).collect();
    let samples = files.iter().map(|bytes| bytes.len().saturating_sub(window));
    let samples: usize = samples.sum();
    let train = Text::new(&files, (window, predict), 1, |file| (0, cuts[file]));
    if train.len == 0 {
        return Err(starved(share, samples, "training"));
    }
    if share == 0.0 {
        return Ok((train, None));
    }
    let rest = |file: usize| (cuts[file], files[file].len());
    let eval = Text::new(&files, (window, predict), window, rest);
    if eval.len == 0 {
        return Err(starved(share, samples, "evaluation"));
    }
    Ok((train, Some(eval)))
}

/// Where the evaluation share of a file of `bytes` bytes begins.
fn cut(bytes: usize, share: f64) -> usize {
    bytes - (bytes as f64 * share).round() as usize
}

impl Text {
    /// Windows over the bytes `[start, end)` of each file.
    fn new(
        files: &Arc<Vec<Vec<u8>>>,
        (window, predict): (usize, Predict),
        stride: usize,
        range: impl Fn(usize) -> (usize, usize),
    ) -> Self {
        let mut pieces = Vec::new();
        let mut first = 0;
        for file in 0..files.len() {
            let (start, end) = range(file);
            // A sample takes one more byte than its window: the target.
            if let Some(room) = (end - start).checked_sub(window + 1) {
                pieces.push(Piece { file, start, first });
                first += room / stride + 1;
            }
        }
        Self {
            files: Arc::clone(files),
            window,
            predict,
            stride,
            pieces,
            len: first,
        }
    }

    /// The window of sample `index`, and the bytes to predict.
    fn sample(&self, index: usize) -> (&[u8], &[u8]) {
        assert!(index < self.len, "sample {index} of {}", self.len);
        let piece = self.pieces[self.pieces.partition_point(|piece| piece.first <= index) - 1];
        let start = piece.start + (index - piece.first) * self.stride;
        let end = start + self.window;
        let bytes = &self.files[piece.file];
        let predicted = match self.predict {
            Predict::Next => &bytes[end..=end],
            Predict::Each => &bytes[start + 1..=end],
        };
        (&bytes[start..end], predicted)
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        self.len
    }

    fn sample_shape(&self) -> SampleShape {
        SampleShape::tokens([self.window])
    }

    fn target(&self) -> TargetKind {
        self.predict.target()
    }

    fn identity(&self) -> Value {
        contents(self.files.iter().map(Vec::as_slice))
    }

    fn batch(&self, indices: &[usize]) -> Batch {
        let mut values = Vec::with_capacity(indices.len() * self.window);
        let mut classes = Vec::new();
        for &index in indices {
            let (window, predicted) = self.sample(index);
            values.extend(window.iter().copied().map(i32::from));
            classes.extend(predicted.iter().copied().map(i32::from));
        }
        Batch {
            shape: vec![indices.len(), self.window],
            inputs: Numbers::Ids(values),
            targets: Numbers::Ids(classes),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::{collections::HashSet, fs};

    use tempfile::TempDir;

    use super::*;

    fn files(contents: &[&[u8]]) -> (TempDir, Vec<PathBuf>) {
        let folder = TempDir::new().unwrap();
        let paths = contents
            .iter()
            .enumerate()
            .map(|(index, bytes)| {
                let path = folder.path().join(format!("{index}.txt"));
                fs::write(&path, bytes).unwrap();
                path
            })
            .collect();
        (folder, paths)
    }

    #[test]
    fn no_window_crosses_files() {
        let (_folder, paths) = files(&[b"abcd", b"xy", b"12345"]);
        let (train, eval) = open(&paths, (3, Predict::Next), 0.0).unwrap();
        assert!(eval.is_none());
        let samples: Vec<_> = (0..train.len()).map(|index| train.sample(index)).collect();
        assert_eq!(
            samples,
            [(&b"abc"[..], &b"d"[..]), (b"123", b"4"), (b"234", b"5")]
        );
    }

    #[test]
    fn a_batch_holds_bytes_as_token_ids() {
        let (_folder, paths) = files(&[&[0, 200, 255, 7]]);
        let (train, _) = open(&paths, (2, Predict::Next), 0.0).unwrap();
        let batch = train.batch(&[1, 0]);
        assert_eq!(batch.shape, [2, 2]);
        assert_eq!(batch.inputs, Numbers::Ids(vec![200, 255, 0, 200]));
        assert_eq!(batch.targets, Numbers::Ids(vec![7, 255]));
        let (each, _) = open(&paths, (2, Predict::Each), 0.0).unwrap();
        let each = each.batch(&[1, 0]);
        assert_eq!(each.inputs, batch.inputs);
        assert_eq!(each.targets, Numbers::Ids(vec![255, 7, 200, 255]));
        assert_eq!((each.samples(), each.predictions()), (2, 4));
    }

    #[test]
    fn training_and_evaluation_share_no_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (_folder, paths) = files(&[&bytes[..100], &bytes[100..]]);
        let (train, eval) = open(&paths, (5, Predict::Next), 0.2).unwrap();
        let eval = eval.unwrap();
        let bytes_of = |text: &Text| -> HashSet<u8> {
            (0..text.len())
                .flat_map(|index| {
                    let (window, next) = text.sample(index);
                    window.iter().chain(next).copied().collect::<Vec<_>>()
                })
                .collect()
        };
        let (trained, evaluated) = (bytes_of(&train), bytes_of(&eval));
        assert!(trained.is_disjoint(&evaluated));
        assert_eq!(trained.len(), 80 + 125);
        // Side by side: 20 bytes hold 3 windows of 5 and their next bytes, 31 bytes hold 6.
        assert_eq!(eval.len(), 3 + 6);
    }

    #[test]
    fn too_little_text_is_refused_with_its_numbers() {
        let (_folder, paths) = files(&[b"abc", b"abcd"]);
        let (_folder, empty) = files(&[b"", b""]);
        for (paths, window, share, words) in [
            (&paths[..], 4, 0.0, "a window of 4 bytes"),
            (&paths[..], 4, 0.0, "1.txt, has 4 bytes"),
            (&[][..], 4, 0.0, "names no files"),
            (&paths[..], 0, 0.0, "the window is 0"),
            (
                &paths[..],
                2,
                0.25,
                "of 3 samples leaves none for evaluation",
            ),
            (&empty[..], 1, 0.0, "holds no samples"),
        ] {
            let message = open(paths, (window, Predict::Next), share).unwrap_err();
            assert!(message.to_string().contains(words), "{message}");
        }
    }
}
