//! Folders in the form of MNIST and of CIFAR-10, whole and damaged.

use std::{
    fs::{self, File},
    io::Write,
};

use flate2::{Compression, write::GzEncoder};
use rekindle_train::data::{Dataset, Split, batch::Numbers, open, settings::Source};
use tempfile::TempDir;

/// A header and two images of 1 x 3.
const IMAGES: [u8; 22] = [
    0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 51, 102, 255, 5, 6,
];
const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 7, 3];

/// A folder that a test fills.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.path().join(name), bytes).expect("written");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).expect("removed");
    }

    fn images(&self, set: &str, end: &str, bytes: &[u8]) {
        self.write(&format!("{set}-images-idx3-ubyte{end}"), bytes);
    }

    fn labels(&self, set: &str, bytes: &[u8]) {
        self.write(&format!("{set}-labels-idx1-ubyte"), bytes);
    }

    fn mnist(&self) -> Result<Split, String> {
        let folder = self.0.path().to_path_buf();
        open(&Source::Mnist { folder }, 0.5, 1).map_err(|error| error.to_string())
    }

    fn cifar10(&self) -> Result<Split, String> {
        let folder = self.0.path().to_path_buf();
        open(&Source::Cifar10 { folder }, 0.0, 1).map_err(|error| error.to_string())
    }
}

fn assert_refused(read: Result<Split, String>, words: &str) {
    let message = read.err().expect("refused");
    assert!(message.contains(words), "{message}");
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

fn labels(data: &dyn Dataset) -> Numbers {
    let all: Vec<usize> = (0..data.len()).collect();
    data.batch(&all).targets
}

#[test]
fn images_plain_and_packed_are_read_row_by_row_and_scaled_to_one() {
    for (end, bytes) in [("", IMAGES.to_vec()), (".gz", packed(&IMAGES))] {
        let folder = Folder::new();
        folder.images("train", end, &bytes);
        folder.labels("train", &LABELS);
        // The official test set is not trained on.
        folder.images("t10k", "", &IMAGES);
        folder.labels("t10k", &LABELS);
        let split = folder.mnist().expect("read");
        let batch = split.train.batch(&[1, 0]);
        assert_eq!(batch.shape, [2, 1, 1, 3]);
        let pixels = [255, 5, 6, 0, 51, 102].map(|byte: u8| f32::from(byte) / 255.0);
        assert_eq!(batch.inputs, Numbers::Floats(pixels.to_vec()));
        assert_eq!(batch.targets, Numbers::Ids(vec![3, 7]));
        let eval = split.eval.expect("the test set");
        assert_eq!((split.train.len(), eval.len()), (2, 2));

        folder.images("train", end, &bytes[..bytes.len() / 2]);
        let cut = match end {
            "" => "holds 11 bytes where 16 are expected",
            _ => "is not a whole gzip file",
        };
        assert_refused(folder.mnist(), cut);
    }
}

/// What is read is bounded by what the header promises, and by the memory, not by what the file holds.
#[test]
fn files_that_go_on_or_promise_too_much_are_refused_at_once() {
    let folder = Folder::new();
    let mut bytes = IMAGES.to_vec();
    bytes.resize(64 << 20, 0);
    folder.labels("train", &LABELS);
    folder.images("train", ".gz", &packed(&bytes));
    let words = "is longer than the 22 bytes that it should have";
    assert_refused(folder.mnist(), words);
    let header = [&[0, 0, 8, 3][..], &[0xff; 12]].concat();
    folder.images("train", ".gz", &packed(&header));
    let words = "is larger than the memory that is left for data";
    assert_refused(folder.mnist(), words);

    // A file with a hole: 64 GiB that take no room on the disk.
    folder.images("train", "", &IMAGES);
    let path = folder.0.path().join("train-images-idx3-ubyte");
    let file = File::options().write(true).open(path).expect("opened");
    file.set_len(64 << 30).expect("longer");
    let words = format!("holds {} bytes where 22 are expected", 64_u64 << 30);
    assert_refused(folder.mnist(), &words);
}

#[test]
fn sets_that_are_wrong_or_not_whole_are_refused_with_the_numbers() {
    let folder = Folder::new();
    folder.labels("t10k", &LABELS);
    for words in [
        "train-images-idx3-ubyte: no such file",
        "training needs it and train-labels-idx1-ubyte",
    ] {
        assert_refused(folder.mnist(), words);
    }
    folder.remove("t10k-labels-idx1-ubyte");
    folder.labels("train", &LABELS);
    let cut = "holds 20 bytes where 22 are expected; it was cut short";
    let header = |sizes: [u32; 3]| {
        let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, 3].into_iter().chain(sizes).collect::<Vec<u8>>()
    };
    for (images, words) in [
        (&IMAGES[..20], cut),
        (&IMAGES[..6], "holds 6 bytes where 16 are expected"),
        (
            &header([u32::MAX; 3]),
            "where 18446744073709551615 are expected",
        ),
        (&header([1, 0, 5]), "images of 0 x 5"),
    ] {
        folder.images("train", "", images);
        assert_refused(folder.mnist(), words);
    }
    folder.images("train", "", &IMAGES);
    let kind = "0x00000803 where an IDX file of labels starts with 0x00000801";
    for (labels, words) in [
        (&IMAGES[..], kind),
        (&[0, 0, 8, 1, 0, 0, 0, 0], "holds no samples"),
        (
            &[0, 0, 8, 1, 0, 0, 0, 1, 4],
            "holds 1 labels for the 2 images of",
        ),
        (
            &[0, 0, 8, 1, 0, 0, 0, 2, 1, 12],
            "label 12 of sample 1 is not one of the 10 classes (0 to 9)",
        ),
    ] {
        folder.labels("train", labels);
        assert_refused(folder.mnist(), words);
    }
    folder.labels("train", &LABELS);
    folder.labels("t10k", &LABELS);
    let sizes = [&IMAGES[..8], &[0, 0, 0, 3, 0, 0, 0, 1], &IMAGES[16..]].concat();
    folder.images("t10k", "", &sizes);
    let words = "holds t10k images of 3 x 1 beside train images of 1 x 3";
    assert_refused(folder.mnist(), words);
    folder.remove("train-labels-idx1-ubyte");
    assert_refused(folder.mnist(), "train-labels-idx1-ubyte: no such file");
    let nowhere = folder.0.path().join("nowhere");
    let refused = open(&Source::Mnist { folder: nowhere }, 0.5, 1);
    let refused = refused.map_err(|error| error.to_string());
    assert_refused(refused, "nowhere: no such folder");
}

#[test]
fn the_five_files_of_cifar10_are_joined_and_damaged_ones_named() {
    let record = |label: u8| [&[label][..], &[label; 3072]].concat();
    let folder = Folder::new();
    for batch in 1..=5u8 {
        folder.write(&format!("data_batch_{batch}.bin"), &record(batch));
    }
    let split = folder.cifar10().expect("read");
    assert_eq!(labels(&*split.train), Numbers::Ids(vec![1, 2, 3, 4, 5]));
    assert_eq!(split.train.sample_shape().dims, [3, 32, 32]);
    assert!(split.eval.is_none());

    let third = "data_batch_3.bin";
    folder.write(third, &record(1)[..3000]);
    let cut = "data_batch_3.bin: holds 3000 bytes where 3073 are expected; it was cut short";
    assert_refused(folder.cifar10(), cut);
    folder.write(third, &[record(1), record(200)].concat());
    assert_refused(folder.cifar10(), "label 200 of sample 1");
    folder.remove(third);
    assert_refused(folder.cifar10(), "data_batch_3.bin: no such file");
}
