//! A run's state in one [file of tensors](super::tensors), written and read one tensor at a time.
//!
//! | what | where |
//! |---|---|
//! | format, then fingerprint, progress, loss scale, and the form of the optimizer's state | metadata |
//! | parameters and statistics | tensors called as their paths |
//! | the optimizer's state | `optimizer.PATH.NAME`: tensors in `f32` of the shape of the parameter at that path |
//! | CRC-32 of everything before | the last tensor, `checksum` |
//!
//! Memory: a parameter or two pieces of it, then, on the host, copies of one parameter's optimizer state, and another
//! copy of one tensor while burn aligns it: two times the largest parameter for SGD with momentum, three times for Adam,
//! and one more with master weights. There are no gradients when a snapshot is taken, so this stays below the
//! optimizer's own peak if no parameter is more than a third of the model (a sixth with master weights). Cost: the optimizer's state is read twice when a snapshot is
//! written, because the header comes first, and the file is read twice when it is opened, so that damage is detected
//! before the content is used.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use burn::{
    module::{Module, ParamId},
    optim::{DynOptimizer, DynState, StateSource},
    tensor::{DType, Device},
};
use flate2::CrcWriter;
use rekindle::{dtype::Dtype, record::driver::catch};
use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    checksum::checksum,
    device::staging::Staging,
    file_error::FileError,
    fingerprint::first_difference,
    optimizer::{AnyOptimizer, Forms},
    progress::Progress,
    settings::TrainSettings,
    tensors::{self, Header, Listed, Tensors},
};

const FORMAT: &str = "rekindle-snapshot/5";
const CHECKSUM: &str = "checksum";

/// Memory of a file writer: its buffer of 8 KiB, and the file system calls.
const WRITER_BYTES: u64 = 12 << 10;

/// Memory per parameter: handles in the copy of the model, its name, and its lines in a header.
const HANDLE_BYTES: u64 = 2 << 10;

/// Names inside a parameter's state start with nothing.
pub(crate) const STATE_PREFIX: &str = "";

/// The metadata, apart from the format.
#[derive(Serialize, Deserialize)]
struct About {
    fingerprint: String,
    progress: Progress,
    /// A dynamic scale, and steps since it changed.
    loss_scale: Option<(f64, u32)>,
    /// What states look like.
    forms: Vec<Form>,
    /// The place of each state's form, by the parameters' paths.
    states: BTreeMap<String, usize>,
}

/// A parameter's optimizer state without its values. Most parameters' are equal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Form {
    /// Names of its tensors.
    pub(crate) tensors: Vec<String>,
    /// Its scalars by name.
    pub(crate) scalars: Value,
}

/// Peak memory of writing a snapshot or the weights of so many parameters and statistics, the largest of so many
/// numbers: a parameter or two pieces of it, or its optimizer state, copied to the host, and another contiguous copy of
/// one of the state's tensors. Ranks that divide the state send it encoded, in a buffer that doubles as it grows.
pub(crate) fn taken_bytes(
    settings: &TrainSettings,
    parameters: usize,
    largest: u64,
    on_host: bool,
    sharded: bool,
) -> Bytes {
    let written = Bytes(WRITER_BYTES + parameters as u64 * HANDLE_BYTES);
    let tensor = Bytes(largest * Dtype::F32.bytes());
    let state = match settings.state_bytes(largest) {
        Bytes::ZERO => Bytes::ZERO,
        _ if !on_host => tensor,
        state => tensor + Bytes(state.0 * if sharded { 3 } else { 1 }),
    };
    written + state.max(tensor.min(Bytes(tensors::MOST_COPIED as u64)))
}

/// Writes a model whose statistics are up to date, and its optimizer.
pub(crate) fn put(
    out: &mut dyn Write,
    fingerprint: &str,
    progress: &Progress,
    model: &impl Module,
    optimizer: &AnyOptimizer,
) -> io::Result<()> {
    let mut out = CrcWriter::new(out);
    let listed = tensors::list(model);
    let Forms { all, mut of } = optimizer.forms()?;
    // A tensor at two paths has one state, at the first.
    let with_form = |one: &Listed| Some((one.path.clone(), of.remove(&one.id)?));
    let about = About {
        fingerprint: fingerprint.to_owned(),
        progress: progress.clone(),
        loss_scale: optimizer.scaler.saved(),
        states: listed.iter().filter_map(with_form).collect(),
        forms: all,
    };
    let metadata = [
        ("format", FORMAT.to_owned()),
        ("run", serde_json::to_string(&about)?),
    ];
    let metadata = BTreeMap::from(metadata);
    let states = listed
        .iter()
        .filter_map(|one| Some((one, &about.forms[*about.states.get(&one.path)?])));
    Header::write(&mut out, |header| {
        header.entry("__metadata__", &metadata)?;
        for one in &listed {
            header.add(&one.path, one.dtype, &one.shape)?;
        }
        for (one, form) in states.clone() {
            for name in &form.tensors {
                header.add(&state_name(&one.path, name), DType::F32, &one.shape)?;
            }
        }
        header.add(CHECKSUM, DType::U32, &[1])
    })?;
    tensors::write_values(model, &mut out)?;
    for (one, form) in states {
        let bytes = form.tensors.len() * one.shape.num_elements() * DType::F32.size();
        optimizer.write_state(one.id, bytes, &mut out)?;
    }
    let checksum = out.crc().sum();
    out.write_all(&checksum.to_le_bytes())
}

/// What a tensor of the state of the parameter at `path` is called.
fn state_name(path: &str, name: &str) -> String {
    format!("optimizer.{path}.{name}")
}

/// A checked snapshot that is being read: the model first, then the optimizer.
pub(crate) struct Snapshot {
    tensors: Tensors,
    about: About,
}

impl Snapshot {
    /// Opens a snapshot and checks that it is whole.
    ///
    /// # Errors
    ///
    /// A file that is missing or not readable, of another format, cut short or damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let tensors = Tensors::open(path)?;
        if tensors.metadata.get("format").map(String::as_str) != Some(FORMAT) {
            let reason = format!("is not a snapshot that this version reads, which is `{FORMAT}`");
            return Err(tensors.wrong(reason));
        }
        check_sum(path)?;
        Self::read(tensors)
    }

    fn read(mut tensors: Tensors) -> Result<Self, FileError> {
        let about = tensors.metadata.remove("run").unwrap_or_default();
        let about = serde_json::from_str(&about).map_err(|error| malformed(&tensors, error))?;
        Ok(Self { tensors, about })
    }

    /// Frees all but the file, and returns how it is read again. Between model and optimizer the step is planned, and on
    /// the host a plan counts what is in use: a resumed run must have the budget that the run had before.
    pub(crate) fn close(self) -> impl FnOnce() -> Result<Self, FileError> {
        let (path, file) = self.tensors.into_file();
        move || Self::read(Tensors::read(path, file)?)
    }

    /// Fails if it belongs to another run than the one with this fingerprint and number of steps.
    pub(crate) fn check(&self, fingerprint: &str, steps: usize) -> Result<(), FileError> {
        let difference = first_difference(&self.about.fingerprint, fingerprint)
            .map_err(|error| self.malformed(error))?;
        if let Some(difference) = difference {
            let advice = "keep it, or start a new run";
            return Err(self.tensors.wrong(format!("{difference}: {advice}")));
        }
        let done = self.about.progress.steps;
        if done > steps {
            return Err(self.tensors.wrong(format!(
                "has done {done} steps already, but {steps} are asked for: ask for at least {done}"
            )));
        }
        Ok(())
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        self.tensors.path()
    }

    /// What the run has done.
    pub(crate) fn progress(&self) -> &Progress {
        &self.about.progress
    }

    /// A dynamic loss scale, and steps since it changed.
    pub(crate) fn loss_scale(&self) -> Option<(f64, u32)> {
        self.about.loss_scale
    }

    pub(crate) fn malformed(&self, what: impl std::fmt::Display) -> FileError {
        malformed(&self.tensors, what)
    }

    /// Puts recorded values into a module, whose parameters keep their ids.
    pub(crate) fn restore<M: Module>(&mut self, model: M) -> Result<M, FileError> {
        self.tensors.restore(model)
    }

    /// Reads the optimizer's state of the requested parameters of the model, one after another.
    pub(crate) fn optimizer(
        &mut self,
        model: &impl Module,
        optimizer: &dyn DynOptimizer,
        wanted: impl Fn(ParamId) -> bool,
        mut keep: impl FnMut(ParamId, DynState),
        device: &Device,
    ) -> Result<(), FileError> {
        // Updates are computed without autodiff.
        let device = device.clone().without_autodiff();
        let params = tensors::list(model).into_iter();
        let params: HashMap<_, _> = params.map(|one| (one.path, (one.id, one.shape))).collect();
        let mut staging = Staging::default();
        for (path, form) in &self.about.states {
            let wrong = |from: &Tensors, what| {
                malformed(
                    from,
                    format!("the state of `{}` {what}", path.escape_debug()),
                )
            };
            let Some((id, shape)) = params.get(path) else {
                return Err(wrong(&self.tensors, "has no parameter"));
            };
            let form = self.about.forms.get(*form);
            let form = form.ok_or_else(|| wrong(&self.tensors, "has no form"))?;
            if !wanted(*id) {
                continue;
            }
            let scalars = serde_json::from_value(form.scalars.clone())
                .map_err(|_| wrong(&self.tensors, "has other scalars"))?;
            let mut source = StateSource::new(scalars);
            let mut bytes = 0;
            for name in &form.tensors {
                let data = self.tensors.take(&state_name(path, name), shape)?;
                bytes += data.bytes().len() as u64;
                source.insert_tensor(name.clone(), data);
            }
            // burn panics if it cannot convert the kind of values.
            let rank = shape.num_dims();
            let state =
                catch(|| optimizer.state_unflatten(rank, STATE_PREFIX, &mut source, &device))
                    .map_err(|_| wrong(&self.tensors, "holds something else than its tensors"))?
                    .ok_or_else(|| wrong(&self.tensors, "is incomplete"))?;
            staging.copied(bytes, &device);
            keep(*id, state);
        }
        Ok(())
    }
}

fn malformed(tensors: &Tensors, what: impl std::fmt::Display) -> FileError {
    tensors.wrong(format!("cannot be understood: {what}"))
}

/// Fails if the checksum at a file's end is not that of everything before.
fn check_sum(path: &Path) -> Result<(), FileError> {
    let mut stored = [0; 4];
    let read = (|| {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len().saturating_sub(stored.len() as u64);
        let (_, computed) = checksum((&mut file).take(length))?;
        file.read_exact(&mut stored)?;
        Ok(computed)
    })();
    let computed = read.map_err(FileError::refused(path, "read"))?;
    let stored = u32::from_le_bytes(stored);
    match stored == computed {
        true => Ok(()),
        false => Err(FileError::content(
            path,
            format!(
                "is damaged: its checksum is {computed:08x}, but {stored:08x} when it was written"
            ),
        )),
    }
}
