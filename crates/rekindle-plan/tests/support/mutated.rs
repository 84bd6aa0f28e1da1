//! Files that are damaged or made to do harm: cut, with bits flipped, parts copied over others, and huge numbers.

use proptest::{collection::vec, prelude::*, sample::Index};

/// One change to a file's bytes.
#[derive(Debug, Clone)]
pub enum Edit {
    /// The rest is gone.
    Cut(Index),
    /// One bit is another.
    Flip(Index, u8),
    /// So many bytes of one place come again at another.
    Splice(Index, Index, usize),
    /// A number of 1, 2, 4 or 8 bytes, big-endian or little-endian, is a huge one.
    Number(Index, u64, usize, bool),
    /// The next digits are these.
    Digits(Index, &'static str),
}

/// A few changes.
pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<Index>;
    let huge = prop_oneof![
        Just(u64::MAX),
        Just(1 << 62),
        Just(1 << 40),
        Just(1 << 31),
        any::<u64>()
    ];
    let width = prop::sample::select(vec![1, 2, 4, 8]);
    let digits = prop::sample::select(vec![
        "9223372036854775807",
        "18446744073709551616",
        "4294967296",
        "1000000",
        "-1",
        "0",
        "1e400",
        "nan",
    ]);
    let edit = prop_oneof![
        1 => at().prop_map(Edit::Cut),
        2 => (at(), 0..8u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        2 => (at(), at(), 1..40usize).prop_map(|(from, to, count)| Edit::Splice(from, to, count)),
        2 => (at(), huge, width, any::<bool>()).prop_map(|(at, value, width, big)| Edit::Number(at, value, width, big)),
        3 => (at(), digits).prop_map(|(at, digits)| Edit::Digits(at, digits)),
    ];
    vec(edit, 1..4)
}

/// The bytes with the changes.
pub fn edited(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for edit in edits {
        if bytes.is_empty() {
            return bytes;
        }
        let length = bytes.len();
        match edit {
            Edit::Cut(at) => bytes.truncate(at.index(length)),
            Edit::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Edit::Splice(from, to, count) => {
                let from = from.index(length);
                let part = bytes[from..length.min(from + count)].to_vec();
                let to = to.index(length);
                bytes.splice(to..to, part);
            }
            Edit::Number(at, value, width, big) => {
                let at = at.index(length);
                let number = match big {
                    true => value.to_be_bytes()[8 - width..].to_vec(),
                    false => value.to_le_bytes()[..*width].to_vec(),
                };
                for (byte, new) in bytes[at..].iter_mut().zip(number) {
                    *byte = new;
                }
            }
            Edit::Digits(at, digits) => {
                let from = at.index(length);
                let start = bytes[from..].iter().position(u8::is_ascii_digit);
                let start = from + start.unwrap_or(length - from);
                let count = bytes[start..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                bytes.splice(start..start + count, digits.bytes());
            }
        }
    }
    bytes
}
