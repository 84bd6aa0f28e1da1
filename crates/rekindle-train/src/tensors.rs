//! A file of tensors in the format [safetensors](https://github.com/huggingface/safetensors), written in pieces and read
//! one tensor at a time, so that no second copy of a model is held.
//!
//! ```text
//! length of the header, 8 bytes, little-endian
//! {"__metadata__": {..}, "0.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..}
//! the values of all tensors, in the header's order
//! ```
//! Tensors of a model are called as their paths in it. `burn-store` writes the same format with a buffer of 1 MiB, too much for
//! a budget of a few megabytes.

use std::{
    array::from_fn,
    cmp::Ordering,
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    mem::replace,
    ops::Range,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{DType, Shape, Tensor, TensorData},
};
use flate2::CrcWriter;
use rekindle::record::driver::{PIECE_BYTES, catch, pieces};
use serde::{Deserialize, Serialize};

use crate::{device::staging::Staging, file_error::FileError};

/// Bytes of a tensor up to which it is written as a whole: burn holds two copies of each piece of a larger one.
pub(crate) const MOST_COPIED: usize = 2 * PIECE_BYTES;

/// The most bytes of a header, as in the format's own library.
const MOST_HEADER: u64 = 100_000_000;

/// Types of values by the names that the format gives them.
const TYPES: [(&str, DType); 5] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F64", DType::F64),
    ("U32", DType::U32),
];

/// What a header says of a tensor.
#[derive(Serialize, Deserialize)]
struct Place {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl Place {
    fn dtype(&self) -> Option<DType> {
        let known = TYPES.iter().find(|(name, _)| *name == self.dtype);
        known.map(|(_, dtype)| *dtype)
    }

    /// Whether its bytes are as many as its type and shape need, and before `end`.
    fn is_valid(&self, end: u64) -> bool {
        let [from, to] = self.data_offsets;
        // Another type is an error where it is read.
        let size = self.dtype().map_or(0, |dtype| dtype.size() as u64);
        let mut sizes = self.shape.iter();
        let bytes = sizes.try_fold(size, |bytes, &size| bytes.checked_mul(size as u64));
        from <= to && to <= end && (size == 0 || bytes == Some(to - from))
    }
}

/// A header that is being written.
pub(crate) struct Header<'a> {
    out: &'a mut dyn Write,
    /// What stands before the next entry.
    before: &'static [u8],
    /// Bytes of the tensors so far.
    bytes: u64,
}

impl Header<'_> {
    /// Writes the header that `entries` makes. It is called twice, first for the header's length, which comes before it: a
    /// header is never held.
    pub(crate) fn write(
        out: &mut dyn Write,
        entries: impl Fn(&mut Header<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let made = |out: &mut dyn Write| {
            let mut header = Header {
                out,
                before: b"",
                bytes: 0,
            };
            header.out.write_all(b"{")?;
            entries(&mut header)?;
            header.out.write_all(b"}")
        };
        let mut counted = CrcWriter::new(io::sink());
        made(&mut counted)?;
        let length = u64::from(counted.crc().amount());
        // Tensors start at a multiple of 8.
        let padded = length.next_multiple_of(8);
        out.write_all(&padded.to_le_bytes())?;
        made(out)?;
        out.write_all(&b"       "[..(padded - length) as usize])
    }

    pub(crate) fn add(&mut self, name: &str, dtype: DType, shape: &[usize]) -> io::Result<()> {
        let known = TYPES.iter().find(|(_, known)| *known == dtype);
        let Some((kind, _)) = known else {
            let message = format!("tensors of type {dtype:?} are not written");
            return Err(io::Error::other(message));
        };
        let start = self.bytes;
        self.bytes += (shape.iter().product::<usize>() * dtype.size()) as u64;
        let place = Place {
            dtype: (*kind).into(),
            shape: shape.to_vec(),
            data_offsets: [start, self.bytes],
        };
        self.entry(name, &place)
    }

    pub(crate) fn entry(&mut self, name: &str, value: &impl Serialize) -> io::Result<()> {
        self.out.write_all(replace(&mut self.before, b","))?;
        serde_json::to_writer(&mut *self.out, name)?;
        self.out.write_all(b":")?;
        Ok(serde_json::to_writer(&mut *self.out, value)?)
    }
}

/// A float tensor of a module.
pub(crate) struct Listed {
    /// Its path in the module.
    pub(crate) path: String,
    pub(crate) id: ParamId,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

/// The float tensors of a module, in its order.
pub(crate) fn list(module: &impl Module) -> Vec<Listed> {
    #[derive(Default)]
    struct List {
        path: Vec<String>,
        all: Vec<Listed>,
    }
    impl ModuleVisitor for List {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.all.push(Listed {
                path: self.path.join("."),
                id: param.id,
                dtype: tensor.dtype(),
                shape: tensor.shape(),
            });
        }
    }
    let mut list = List::default();
    module.visit(&mut list);
    list.all
}

/// Writes the values of the float tensors of a module, in its order.
pub(crate) fn write_values(module: &impl Module, out: &mut impl Write) -> io::Result<()> {
    struct Put<'a, W> {
        out: &'a mut W,
        result: io::Result<()>,
    }
    impl<W: Write> Put<'_, W> {
        fn put<const D: usize>(&mut self, tensor: Tensor<D>) -> io::Result<()> {
            let (shape, value) = (tensor.shape(), tensor.dtype().size());
            if shape.num_elements() * value <= MOST_COPIED {
                return self.out.write_all(tensor.into_data().as_bytes());
            }
            pieces(shape.as_slice(), value)
                .into_iter()
                .try_for_each(|piece| {
                    let piece: [Range<usize>; D] = from_fn(|dim| piece[dim].clone());
                    let data = tensor.clone().slice(piece).into_data();
                    self.out.write_all(data.as_bytes())
                })
        }
    }
    impl<W: Write> ModuleVisitor for Put<'_, W> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.result.is_ok() {
                self.result = self.put(param.val());
            }
        }
    }
    let result = Ok(());
    let mut put = Put { out, result };
    module.visit(&mut put);
    put.result
}

/// Writes a model as a file of its own.
pub(crate) fn write(model: &impl Module, mut out: impl Write) -> io::Result<()> {
    let listed = list(model);
    Header::write(&mut out, |header| {
        let mut each = listed.iter();
        each.try_for_each(|one| header.add(&one.path, one.dtype, &one.shape))
    })?;
    drop(listed);
    write_values(model, &mut out)
}

/// An open file of tensors.
pub(crate) struct Tensors {
    path: PathBuf,
    file: File,
    /// Where the values start.
    start: u64,
    pub(crate) metadata: BTreeMap<String, String>,
    places: BTreeMap<String, Place>,
}

impl Tensors {
    /// Opens a file and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(FileError::refused(path, "read"))?;
        Self::read(path.to_path_buf(), file)
    }

    /// Reads the header. Its lengths are checked against the file's, so that no value takes more memory than the file.
    pub(crate) fn read(path: PathBuf, mut file: File) -> Result<Self, FileError> {
        #[derive(Deserialize)]
        struct Read {
            #[serde(rename = "__metadata__", default)]
            metadata: BTreeMap<String, String>,
            #[serde(flatten)]
            places: BTreeMap<String, Place>,
        }
        let refused = || FileError::refused(&path, "read");
        let malformed = |what: &str| {
            FileError::content(&path, format!("cannot be read as safetensors: {what}"))
        };
        file.rewind().map_err(refused())?;
        let all = file.metadata().map_err(refused())?.len();
        let cut = || {
            malformed(&format!(
                "it was cut short: its end is missing after {all} bytes"
            ))
        };
        let mut length = [0; 8];
        if all < 8 {
            return Err(cut());
        }
        file.read_exact(&mut length).map_err(refused())?;
        let length = u64::from_le_bytes(length);
        let values = (all - 8).checked_sub(length).ok_or_else(cut)?;
        if length > MOST_HEADER {
            return Err(malformed("its header is too long"));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(refused())?;
        let Read { metadata, places } =
            serde_json::from_slice(&header).map_err(|error| malformed(&error.to_string()))?;
        let end = places.values().map(|place| place.data_offsets[1]).max();
        match end.unwrap_or(0).cmp(&values) {
            Ordering::Less => return Err(malformed("it goes on after its last tensor")),
            Ordering::Equal => {}
            Ordering::Greater => return Err(cut()),
        }
        if let Some((name, _)) = places.iter().find(|(_, place)| !place.is_valid(values)) {
            return Err(malformed(&format!("the place of {} is wrong", named(name))));
        }
        Ok(Self {
            path,
            file,
            start: 8 + length,
            metadata,
            places,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file alone, with its path.
    pub(crate) fn into_file(self) -> (PathBuf, File) {
        (self.path, self.file)
    }

    pub(crate) fn wrong(&self, reason: impl Into<String>) -> FileError {
        FileError::content(&self.path, reason)
    }

    /// Reads a tensor of this shape.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorData, FileError> {
        let Some(place) = self.places.get(name) else {
            return Err(self.wrong(format!("lacks {}, which the model has", named(name))));
        };
        let shown = named(name);
        if place.shape != shape {
            let found = &place.shape;
            let reason = format!("{shown} has the shape {found:?}, but {shape:?} in the model");
            return Err(self.wrong(reason));
        }
        let Some(dtype) = place.dtype() else {
            let kind = named(&place.dtype);
            return Err(self.wrong(format!("{shown} is of the type {kind}, which is not read")));
        };
        let [from, to] = place.data_offsets;
        let mut bytes = vec![0; (to - from) as usize];
        let read = self.file.seek(SeekFrom::Start(self.start + from));
        let read = read.and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(FileError::refused(&self.path, "read"))?;
        Ok(TensorData::from_bytes_vec(bytes, shape.to_vec(), dtype))
    }

    /// The model with this file's values.
    pub(crate) fn restore<M: Module>(&mut self, model: M) -> Result<M, FileError> {
        // Statistics are replaced in place: those of clones must not change, and a pending update would be applied on
        // top.
        let own = model.valid().train();
        drop(model);
        let mut restore = Restore {
            from: self,
            path: Vec::new(),
            staging: Staging::default(),
            result: Ok(()),
        };
        let model = own.map(&mut restore);
        restore.result.map(|()| model)
    }

    /// Fails if the file has more tensors than this model.
    pub(crate) fn check_all_used(&self, model: &impl Module) -> Result<(), FileError> {
        let used: HashSet<_> = list(model).into_iter().map(|one| one.path).collect();
        match self.places.keys().find(|name| !used.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let reason = format!("holds {}, which the model lacks", named(name));
                Err(self.wrong(reason))
            }
        }
    }
}

/// A name from a file in a message.
fn named(name: &str) -> String {
    format!("`{}`", name.escape_debug())
}

struct Restore<'a> {
    from: &'a mut Tensors,
    path: Vec<String>,
    staging: Staging,
    result: Result<(), FileError>,
}

impl ModuleMapper for Restore<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.result.is_err() {
            return param;
        }
        let path = self.path.join(".");
        match self.from.take(&path, &param.dims()) {
            Ok(data) => {
                let (id, tensor, mapper) = param.consume();
                let (device, wants_gradient) = (tensor.device(), tensor.is_require_grad());
                let options = (&device, tensor.dtype());
                // Free the old tensor before the new one is allocated.
                drop(tensor);
                let (shape, bytes) = (data.shape().clone(), data.bytes().len() as u64);
                // burn panics if it cannot convert the kind of values.
                let tensor = catch(|| Tensor::from_data(data, options)).unwrap_or_else(|_| {
                    let reason = format!("{} cannot be put into the model", named(&path));
                    self.result = Err(self.from.wrong(reason));
                    Tensor::zeros(shape, options)
                });
                self.staging.copied(bytes, &device);
                let tensor = tensor.set_require_grad(wants_gradient);
                Param::from_mapped_value(id, tensor, mapper)
            }
            Err(error) => {
                self.result = Err(error);
                param
            }
        }
    }
}
