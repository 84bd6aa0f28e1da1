//! MNIST and similar data sets, from a folder of IDX files.

use std::path::{Path, PathBuf};

use super::{
    file, idx,
    images::{Images, check_labels},
};
use crate::file_error::FileError;

/// Channels, rows and columns of the original's images.
pub const DIMS: [usize; 3] = [1, 28, 28];

/// The training images and, if they exist, the official test images.
pub(super) fn open(folder: &Path) -> Result<(Images, Option<Images>), FileError> {
    file::require_folder(folder)?;
    let train = set(folder, "train")?.ok_or_else(|| {
        let needs = "; training needs it and train-labels-idx1-ubyte";
        missing(folder, "train-images-idx3-ubyte", needs)
    })?;
    Ok((train, set(folder, "t10k")?))
}

fn missing(folder: &Path, name: &str, why: &str) -> FileError {
    let reason = format!("no such file (nor with .gz at its end){why}");
    FileError::system(&folder.join(name), reason)
}

/// One set, or none if neither of its files is there.
fn set(folder: &Path, prefix: &str) -> Result<Option<Images>, FileError> {
    let look = |rest: &str| -> (String, Option<PathBuf>) {
        // Both spellings occur: that of the original archive, and one that some unpackers produce.
        let name = format!("{prefix}-{rest}-ubyte");
        let dotted = name.replace("-idx", ".idx");
        let found = file::find(folder, &[&name, &dotted]);
        (name, found)
    };
    let (images_name, images_path) = look("images-idx3");
    let (labels_name, labels_path) = look("labels-idx1");
    let (images_path, labels_path) = match (images_path, labels_path) {
        (None, None) => return Ok(None),
        (Some(images), Some(labels)) => (images, labels),
        (None, Some(_)) => return Err(missing(folder, &images_name, "")),
        (Some(_), None) => return Err(missing(folder, &labels_name, "")),
    };

    let images = idx::read_images(&images_path)?;
    let labels = idx::read_labels(&labels_path)?;
    if images.count() != labels.len() {
        let (labels, images) = (labels.len(), images.count());
        let of = images_path.display();
        let reason = format!("holds {labels} labels for the {images} images of {of}");
        return Err(FileError::content(&labels_path, reason));
    }
    check_labels(&labels, &labels_path)?;
    Ok(Some(Images {
        dims: [1, images.rows, images.cols],
        pixels: images.pixels,
        labels,
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::data::{
        batch::{Inputs, Targets},
        dataset::Dataset,
    };

    fn write_set(folder: &Path, prefix: &str, labels: &[u8]) {
        let count = labels.len() as u8;
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 2, 0, 0, 0, 2];
        images.extend((0..count).flat_map(|image| [image, 51, 102, 255]));
        fs::write(folder.join(format!("{prefix}-images-idx3-ubyte")), images).unwrap();
        let mut bytes = vec![0, 0, 8, 1, 0, 0, 0, count];
        bytes.extend(labels);
        fs::write(folder.join(format!("{prefix}-labels-idx1-ubyte")), bytes).unwrap();
    }

    #[test]
    fn pixels_are_scaled_to_one() {
        let folder = TempDir::new().unwrap();
        write_set(folder.path(), "train", &[7, 3]);
        let (train, test) = open(folder.path()).unwrap();
        assert!(test.is_none());
        let batch = train.batch(&[1]);
        assert_eq!(batch.shape, [1, 1, 2, 2]);
        assert_eq!(
            batch.inputs,
            Inputs::Floats(vec![1.0 / 255.0, 0.2, 0.4, 1.0])
        );
        assert_eq!(batch.targets, Targets::Classes(vec![3]));
    }

    fn assert_refused(folder: &Path, words: &str) {
        let message = open(folder).err().unwrap().to_string();
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn the_test_set_is_not_trained_on() {
        let folder = TempDir::new().unwrap();
        write_set(folder.path(), "t10k", &[1]);
        for words in [
            "train-images-idx3-ubyte: no such file",
            "training needs it and train-labels-idx1-ubyte",
        ] {
            assert_refused(folder.path(), words);
        }
        write_set(folder.path(), "train", &[2, 3]);
        let (train, test) = open(folder.path()).unwrap();
        assert_eq!(train.labels, [2, 3]);
        assert_eq!(test.unwrap().labels, [1]);
    }

    #[test]
    fn a_label_out_of_range_is_named() {
        let folder = TempDir::new().unwrap();
        write_set(folder.path(), "train", &[1, 2, 12]);
        let words = "label 12 of sample 2 is not one of the 10 classes (0 to 9)";
        assert_refused(folder.path(), words);
    }

    #[test]
    fn missing_files_are_named() {
        let folder = TempDir::new().unwrap();
        assert_refused(folder.path(), "train-images-idx3-ubyte: no such file");
        write_set(folder.path(), "train", &[1]);
        fs::remove_file(folder.path().join("train-labels-idx1-ubyte")).unwrap();
        assert_refused(folder.path(), "train-labels-idx1-ubyte: no such file");
        let nowhere = folder.path().join("nowhere");
        assert_refused(&nowhere, "nowhere: no such folder");
    }

    #[test]
    fn images_without_their_labels_are_refused() {
        let folder = TempDir::new().unwrap();
        write_set(folder.path(), "train", &[1, 2]);
        let one_label = [0, 0, 8, 1, 0, 0, 0, 1, 4];
        fs::write(folder.path().join("train-labels-idx1-ubyte"), one_label).unwrap();
        assert_refused(folder.path(), "holds 1 labels for the 2 images of");
    }
}
