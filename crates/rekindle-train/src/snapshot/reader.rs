//! A snapshot, read one tensor at a time.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, ErrorKind, Read},
    path::{Path, PathBuf},
};

use bincode::{config, error::DecodeError, serde::decode_from_std_read};
use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    optim::{DynOptimizer, DynState, StateSource},
    tensor::{Device, Tensor, TensorData},
};
use rekindle::quiet::catch;
use serde::de::DeserializeOwned;

use super::{
    Progress,
    format::{START, STATE_PREFIX},
    whole::check_whole,
};
use crate::{device::staging::Staging, fingerprint::first_difference, run_dir_error::RunDirError};

/// A number takes up to eight times as many bytes in memory as in the file.
const MOST_PER_BYTE: u64 = 8;
/// Limits on a value's memory: the first of these that is enough for the whole file is used.
const SMALL: usize = 1 << 20;
const LARGE: usize = 1 << 30;
const HUGE: usize = usize::MAX >> 20;

/// A checked snapshot that is being read: the model first, then the optimizer.
pub(crate) struct Snapshot {
    path: PathBuf,
    input: BufReader<File>,
    /// Its length.
    bytes: u64,
    fingerprint: String,
    progress: Progress,
    /// Shapes of the model's tensors by their ids, once they are read.
    shapes: HashMap<u64, Vec<usize>>,
}

impl Snapshot {
    /// Opens a snapshot and checks that it is whole.
    ///
    /// # Errors
    ///
    /// A file that is missing or not readable, of another format, cut short or damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, RunDirError> {
        let refused = || RunDirError::refused(path, "read");
        check_whole(path, File::open(path).map_err(refused())?)?;
        let file = File::open(path).map_err(refused())?;
        let bytes = file.metadata().map_err(refused())?.len();
        let mut input = BufReader::new(file);
        let mut start = [0; START.len()];
        input.read_exact(&mut start).map_err(refused())?;
        let mut snapshot = Self {
            path: path.to_path_buf(),
            input,
            bytes,
            fingerprint: String::new(),
            progress: Progress::default(),
            shapes: HashMap::new(),
        };
        snapshot.fingerprint = snapshot.take()?;
        snapshot.progress = snapshot.take()?;
        Ok(snapshot)
    }

    /// Fails if it belongs to another run than the one with this fingerprint and number of steps.
    pub(crate) fn check(&self, fingerprint: &str, steps: usize) -> Result<(), RunDirError> {
        let difference = first_difference(&self.fingerprint, fingerprint)
            .map_err(|error| self.malformed(error.to_string()))?;
        if let Some(difference) = difference {
            return Err(RunDirError::Mismatch {
                path: self.path.clone(),
                field: difference.field,
                recorded: difference.recorded,
                wanted: difference.wanted,
            });
        }
        let done = self.progress.steps;
        if done > steps {
            return Err(RunDirError::Ahead {
                path: self.path.clone(),
                done,
                steps,
            });
        }
        Ok(())
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the run has done.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Reads the next value. Lengths far beyond the file's are rejected before memory is allocated for them.
    pub(crate) fn take<T: DeserializeOwned>(&mut self) -> Result<T, RunDirError> {
        let from = &mut self.input;
        let most = self.bytes.saturating_mul(MOST_PER_BYTE);
        // bincode's limits are constants.
        let decoded = catch(|| {
            if most <= SMALL as u64 {
                decode_from_std_read(from, config::standard().with_limit::<SMALL>())
            } else if most <= LARGE as u64 {
                decode_from_std_read(from, config::standard().with_limit::<LARGE>())
            } else {
                decode_from_std_read(from, config::standard().with_limit::<HUGE>())
            }
        });
        match decoded {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(DecodeError::Io { inner, .. })) if inner.kind() != ErrorKind::UnexpectedEof => {
                Err(RunDirError::refused(&self.path, "read")(inner))
            }
            Ok(Err(other)) => Err(self.malformed(other.to_string())),
            Err(panic) => Err(self.malformed(panic)),
        }
    }

    pub(crate) fn malformed(&self, reason: String) -> RunDirError {
        RunDirError::Malformed {
            path: self.path.clone(),
            reason,
        }
    }

    /// Puts recorded values, and ids of parameters, into a module.
    pub(crate) fn restore<M: Module>(&mut self, model: M) -> Result<M, RunDirError> {
        let recorded: usize = self.take()?;
        // Statistics are replaced in place: those of clones must not change, and a pending update would be applied on
        // top.
        let own = model.valid().train();
        drop(model);
        let mut restore = Restore {
            from: self,
            recorded,
            restored: 0,
            staging: Staging::default(),
            result: Ok(()),
        };
        let model = own.map(&mut restore);
        let restored = restore.restored;
        restore.result?;
        if restored < recorded {
            return Err(self.malformed(format!(
                "it holds {recorded} tensors, but the model has {restored}"
            )));
        }
        Ok(model)
    }

    /// Reads an optimizer's state, parameter by parameter, for the requested parameters.
    pub(crate) fn optimizer(
        &mut self,
        optimizer: &dyn DynOptimizer,
        wanted: impl Fn(ParamId) -> bool,
        device: &Device,
    ) -> Result<HashMap<ParamId, DynState>, RunDirError> {
        // Updates are computed without autodiff.
        let device = device.clone().without_autodiff();
        let count: usize = self.take()?;
        let mut staging = Staging::default();
        let states = (0..count).map(|_| {
            let (id, rank, tensors, scalars) =
                self.take::<(u64, usize, Vec<(String, TensorData)>, _)>()?;
            let wrong =
                |what| self.malformed(format!("the optimizer's state of parameter {id} {what}"));
            let shape = self.shapes.get(&id);
            if !tensors
                .iter()
                .all(|(_, data)| Some(&data.shape()[..]) == shape.map(|shape| &shape[..]))
            {
                return Err(wrong("has another shape"));
            }
            if !wanted(ParamId::from(id)) {
                return Ok(None);
            }
            let mut source = StateSource::new(scalars);
            let mut bytes = 0;
            for (name, data) in tensors {
                bytes += data.bytes().len() as u64;
                source.insert_tensor(name, data);
            }
            // burn panics if values do not fill their shape, or have another rank than `rank`.
            let state =
                catch(|| optimizer.state_unflatten(rank, STATE_PREFIX, &mut source, &device))
                    .map_err(|_| wrong("holds something else than its tensors"))?
                    .ok_or_else(|| wrong("is incomplete"))?;
            staging.copied(bytes, &device);
            Ok(Some((ParamId::from(id), state)))
        });
        states.filter_map(Result::transpose).collect()
    }
}

struct Restore<'a> {
    from: &'a mut Snapshot,
    recorded: usize,
    restored: usize,
    staging: Staging,
    result: Result<(), RunDirError>,
}

impl Restore<'_> {
    fn next(&mut self, shape: &[usize]) -> Result<(ParamId, TensorData), RunDirError> {
        let number = self.restored;
        if number == self.recorded {
            let reason = format!("it holds {number} tensors, but the model has more");
            return Err(self.from.malformed(reason));
        }
        let (id, data) = self.from.take::<(u64, TensorData)>()?;
        if data.shape()[..] != *shape {
            let reason = format!(
                "tensor {number} has the shape {:?}, but {shape:?} in the model",
                &data.shape()[..]
            );
            return Err(self.from.malformed(reason));
        }
        self.restored += 1;
        self.from.shapes.insert(id, shape.to_vec());
        Ok((ParamId::from(id), data))
    }
}

impl ModuleMapper for Restore<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.result.is_err() {
            return param;
        }
        match self.next(&param.dims()) {
            Ok((id, data)) => {
                let (_, tensor, mapper) = param.consume();
                let (device, wants_gradient) = (tensor.device(), tensor.is_require_grad());
                let options = (&device, tensor.dtype());
                // Free the old tensor before the new one is allocated.
                drop(tensor);
                let (shape, bytes) = (data.shape().clone(), data.bytes().len() as u64);
                // burn panics if it cannot convert the kind of values.
                let tensor = catch(|| Tensor::from_data(data, options)).unwrap_or_else(|_| {
                    let reason =
                        format!("tensor {} cannot be put into the model", self.restored - 1);
                    self.result = Err(self.from.malformed(reason));
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
