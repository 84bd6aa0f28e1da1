#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, io::Write};

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;

use super::*;

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn assert_refused<T>(read: Result<T, FileError>, words: &str) {
    let message = read.err().unwrap().to_string();
    assert!(message.contains(words), "{message}");
}

fn read_images(path: &Path) -> Result<([usize; 3], Vec<u8>), FileError> {
    read_idx(path, "images", IDX_IMAGES)
}

fn two_images() -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3];
    bytes.extend([1, 2, 3, 4, 5, 6]);
    bytes
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn reads_images_plain_and_packed_row_by_row() {
    let folder = TempDir::new().unwrap();
    let expected = ([2, 1, 3], vec![1, 2, 3, 4, 5, 6]);
    let plain = write(&folder, "images", &two_images());
    assert_eq!(read_images(&plain).unwrap(), expected);
    let packed = packed(&two_images());
    let path = write(&folder, "images.gz", &packed);
    assert_eq!(read_images(&path).unwrap(), expected);

    let cut = write(&folder, "cut.gz", &packed[..packed.len() / 2]);
    assert_refused(read_images(&cut), "is not a whole gzip file");
}

/// What is unpacked is bounded by what the header promises, not by what the file holds.
#[test]
fn a_gzip_file_that_goes_on_is_read_no_further_than_its_header_says() {
    let folder = TempDir::new().unwrap();
    let mut bytes = two_images();
    bytes.resize(64 << 20, 0);
    let path = write(&folder, "images.gz", &packed(&bytes));
    let words = "is longer than the 22 bytes that it should have";
    assert_refused(read_images(&path), words);
}

/// A file with a hole: 64 GiB that take no room on the disk.
#[test]
fn a_padded_file_is_refused_by_its_length() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "images", &two_images());
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(64 << 30).unwrap();
    let words = format!("holds {} bytes where 22 are expected", 64_u64 << 30);
    assert_refused(read_images(&path), &words);
}

#[test]
fn a_promise_larger_than_the_memory_is_refused() {
    let folder = TempDir::new().unwrap();
    let header = [&[0_u8, 0, 8, 3][..], &[0xff; 12]].concat();
    let path = write(&folder, "images.gz", &packed(&header));
    let words = "is larger than the memory that is left for data";
    assert_refused(read_images(&path), words);
}

/// What it unpacks to is in no header.
#[test]
fn a_packed_text_is_unpacked_as_far_as_there_is_room() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "text.gz", &packed(&[b'a'; 1 << 16]));
    let all = |most| Input::open(&path).unwrap().all(most);
    assert_eq!(all(1 << 16).unwrap(), [b'a'; 1 << 16]);
    assert_refused(all((1 << 16) - 1), "left for data, which is 65535 bytes");
}

#[test]
fn files_that_are_wrong_are_refused_with_the_numbers() {
    let folder = TempDir::new().unwrap();
    let cut = "holds 20 bytes where 22 are expected; it was cut short";
    let header = |sizes: [u32; 3]| {
        let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, 3].into_iter().chain(sizes).collect()
    };
    let all: [(Vec<u8>, &str); 4] = [
        (two_images()[..20].to_vec(), cut),
        (
            two_images()[..6].to_vec(),
            "holds 6 bytes where 16 are expected",
        ),
        (header([u32::MAX; 3]), "where 18446744073709551615 are"),
        (header([1, 0, 5]), "images of 0 x 5"),
    ];
    for (bytes, words) in all {
        assert_refused(read_images(&write(&folder, "images", &bytes)), words);
    }
    let none = [0, 0, 8, 1, 0, 0, 0, 0];
    let kind = "0x00000803 where an IDX file of labels starts with 0x00000801";
    for (bytes, words) in [(&two_images()[..], kind), (&none, "holds no samples")] {
        let path = write(&folder, "labels", bytes);
        assert_refused(read_idx::<1>(&path, "labels", IDX_LABELS), words);
    }
}

fn write_set(folder: &TempDir, prefix: &str, labels: &[u8]) {
    let count = labels.len() as u8;
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 2, 0, 0, 0, 2];
    images.extend((0..count).flat_map(|image| [image, 51, 102, 255]));
    write(folder, &format!("{prefix}-images-idx3-ubyte"), &images);
    let labels = [&[0, 0, 8, 1, 0, 0, 0, count][..], labels].concat();
    write(folder, &format!("{prefix}-labels-idx1-ubyte"), &labels);
}

#[test]
fn pixels_are_scaled_to_one() {
    let folder = TempDir::new().unwrap();
    write_set(&folder, "train", &[7, 3]);
    let (train, test) = mnist(folder.path()).unwrap();
    assert!(test.is_none());
    let batch = train.batch(&[1]);
    assert_eq!(batch.shape, [1, 1, 2, 2]);
    let pixels = vec![1.0 / 255.0, 0.2, 0.4, 1.0];
    assert_eq!(batch.inputs, Numbers::Floats(pixels));
    assert_eq!(batch.targets, Numbers::Ids(vec![3]));
}

#[test]
fn the_test_set_is_not_trained_on() {
    let folder = TempDir::new().unwrap();
    write_set(&folder, "t10k", &[1]);
    for words in [
        "train-images-idx3-ubyte: no such file",
        "training needs it and train-labels-idx1-ubyte",
    ] {
        assert_refused(mnist(folder.path()), words);
    }
    write_set(&folder, "train", &[2, 3]);
    let (train, test) = mnist(folder.path()).unwrap();
    assert_eq!(train.labels, [2, 3]);
    assert_eq!(test.unwrap().labels, [1]);
}

#[test]
fn labels_out_of_range_and_files_that_are_missing_are_named() {
    let folder = TempDir::new().unwrap();
    let refused = |words: &str| assert_refused(mnist(folder.path()), words);
    refused("train-images-idx3-ubyte: no such file");
    write_set(&folder, "train", &[1, 2, 12]);
    refused("label 12 of sample 2 is not one of the 10 classes (0 to 9)");
    let one_label = [0, 0, 8, 1, 0, 0, 0, 1, 4];
    let labels = write(&folder, "train-labels-idx1-ubyte", &one_label);
    refused("holds 1 labels for the 3 images of");
    fs::remove_file(labels).unwrap();
    refused("train-labels-idx1-ubyte: no such file");
    let nowhere = folder.path().join("nowhere");
    assert_refused(mnist(&nowhere), "nowhere: no such folder");
}

fn record(label: u8, pixel: u8) -> Vec<u8> {
    let mut record = vec![pixel; CIFAR10_RECORD];
    record[0] = label;
    record
}

#[test]
fn the_five_files_of_cifar10_are_joined_and_damaged_ones_named() {
    let folder = TempDir::new().unwrap();
    for batch in 1..=5u8 {
        let name = format!("data_batch_{batch}.bin");
        write(&folder, &name, &record(batch, batch));
    }
    let (train, test) = cifar10(folder.path()).unwrap();
    assert_eq!(train.labels, [1, 2, 3, 4, 5]);
    assert_eq!(train.sample_shape().dims, [3, 32, 32]);
    assert!(test.is_none());

    let third = |bytes: &[u8]| write(&folder, "data_batch_3.bin", bytes);
    let refused = |words: &str| assert_refused(cifar10(folder.path()), words);
    third(&record(1, 0)[..3000]);
    refused("data_batch_3.bin: holds 3000 bytes where 3073 are expected; it was cut short");
    let path = third(&[record(1, 0), record(200, 0)].concat());
    refused("label 200 of sample 1");
    fs::remove_file(path).unwrap();
    refused("data_batch_3.bin: no such file");
}

#[test]
fn test_images_of_another_size_are_refused() {
    let folder = TempDir::new().unwrap();
    let other = [
        &two_images()[..8],
        &[0, 0, 0, 3, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6],
    ]
    .concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 0, 1];
    write(&folder, "train-images-idx3-ubyte", &two_images());
    write(&folder, "train-labels-idx1-ubyte", &labels);
    write(&folder, "t10k-images-idx3-ubyte", &other);
    write(&folder, "t10k-labels-idx1-ubyte", &labels);
    let words = "holds t10k images of 3 x 1 beside train images of 1 x 3";
    assert_refused(mnist(folder.path()), words);
}
