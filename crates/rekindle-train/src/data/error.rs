//! Errors of data sources.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The error of data that cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder that a source needs does not exist.
    #[error("{}: no such {}", path.display(), what)]
    Missing {
        /// What was expected: `file`, `folder`, or the files of a data set.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// The system could not open or read a file.
    #[error("{}: cannot be read: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A `.gz` file that does not unpack.
    #[error("{}: is not a whole gzip file: {source}", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: io::Error,
    },
    /// The length of a file differs from what its header or format requires.
    #[error("{}: holds {actual} bytes where {expected} are expected{}", path.display(), truncation(*expected, *actual))]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that the format requires, unpacked.
        expected: u64,
        /// Actual bytes, unpacked.
        actual: u64,
    },
    /// A file that is longer than its format or header requires.
    #[error("{}: is longer than the {expected} bytes that it should have", path.display())]
    Longer {
        /// The file.
        path: PathBuf,
        /// Bytes that the format requires, unpacked.
        expected: u64,
    },
    /// A file whose content does not fit in memory.
    #[error("{}: is larger than the memory that is free, which is {free} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes of memory that are free.
        free: u64,
    },
    /// An IDX file of another kind.
    #[error("{}: starts with 0x{actual:08x} where an IDX file of {what} starts with 0x{expected:08x}", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// What the file should hold.
        what: &'static str,
        /// The first four bytes that such a file has.
        expected: u32,
        /// The first four bytes of this one.
        actual: u32,
    },
    /// A file without a single sample, or texts of which none has a byte.
    #[error("{}: holds no samples", path.display())]
    Empty {
        /// The file, or one of the texts.
        path: PathBuf,
    },
    /// A header with impossible sizes.
    #[error("{}: its header gives {what} of {rows} x {cols}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What has these sizes.
        what: &'static str,
        /// The first size.
        rows: u64,
        /// The second size.
        cols: u64,
    },
    /// The numbers of images and labels differ.
    #[error("{}: holds {labels} labels for the {images} images of {}", labels_path.display(), images_path.display())]
    Pairing {
        /// The images.
        images_path: PathBuf,
        /// The labels.
        labels_path: PathBuf,
        /// How many images.
        images: u64,
        /// How many labels.
        labels: u64,
    },
    /// A label outside of the classes.
    #[error("{}: label {label} of sample {index} is not one of the {classes} classes (0 to {})", path.display(), classes - 1)]
    Label {
        /// The file.
        path: PathBuf,
        /// Which sample, from 0.
        index: usize,
        /// Its label.
        label: u8,
        /// How many classes there are.
        classes: usize,
    },
    /// A text source without files.
    #[error("the text source names no files")]
    NoFiles,
    /// A window that is longer than every file.
    #[error(
        "a window of {window} bytes and the byte that follows fit no file: the longest, {}, has {bytes} bytes",
        path.display()
    )]
    Window {
        /// Bytes in a sample.
        window: usize,
        /// The longest file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// An invalid size or share.
    #[error("{what} is {value}, but must be {wanted}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        wanted: &'static str,
    },
    /// A split that leaves one side without samples.
    #[error("an evaluation share of {share} of {samples} samples leaves none for {starved}")]
    Share {
        /// The share.
        share: f64,
        /// Samples in all.
        samples: usize,
        /// `training` or `evaluation`.
        starved: &'static str,
    },
    /// A batch that is larger than the data.
    #[error("a batch of {batch} samples is larger than the data set, which has {samples}")]
    Batch {
        /// Samples per step.
        batch: usize,
        /// Samples that there are.
        samples: usize,
    },
}

/// The cause of a [`DataError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The system: a file is missing or cannot be read.
    System,
    /// The content: files were read, and their content or the settings are invalid.
    Content,
}

impl DataError {
    /// Whether the cause is the system or the content.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing { .. } | Self::Refused { .. } => Blame::System,
            _ => Blame::Content,
        }
    }

    /// The error for a path that could not be opened or read.
    pub(super) fn from_io(path: &Path, what: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { what, path },
            _ => Self::Refused { path, source },
        }
    }
}

fn truncation(expected: u64, actual: u64) -> &'static str {
    if actual < expected {
        "; it was cut short"
    } else {
        ""
    }
}
