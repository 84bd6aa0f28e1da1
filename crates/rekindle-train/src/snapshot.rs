//! A run's state in one file, written and read one tensor at a time.
//!
//! ```text
//! "rekindle-snapshot/3\n"
//! fingerprint, steps done, first and last loss, last and best evaluation
//! count, then an id and a tensor for each parameter and statistic, in the model's order
//! count, then an id, a rank, named tensors and named scalars for each parameter that has optimizer state
//! where the loss scale is dynamic: the scale, and steps since it changed
//! "end\n", CRC-32 of everything before
//! ```
//! Between the marks all is bincode, at full precision. Ids of parameters survive, since the optimizer finds its state
//! by them; statistics get new ones, which nothing looks up.
//!
//! Memory: on the host, copies of one parameter's optimizer state, and of one tensor once more while burn aligns it: two
//! times the largest parameter for SGD with momentum, three times for Adam, each once more with master weights. No gradient
//! is there when a snapshot is taken, so this stays below the optimizer's own peak where no parameter is more than a third of
//! the model, with master weights a sixth.
//! Cost: reading goes over the file twice, so that a damaged one is known before anything is built on it.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use bincode::{
    config,
    error::{DecodeError, EncodeError},
    serde::{decode_from_std_read, encode_into_std_write},
};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{DynOptimizer, DynState, StateSink, StateSource},
    tensor::{Device, Tensor, TensorData},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    fingerprint::first_difference,
    record::{EvalRecord, StepRecord},
    replace::replace,
    run_dir_error::RunDirError,
};
use crate::device::staging::Staging;
use rekindle::quiet::catch;

const START: &str = "rekindle-snapshot/3\n";
/// How files of earlier versions start: the first with burn 0.21, the second with the whole history inside.
const EARLIER_STARTS: [&str; 2] = ["rekindle-snapshot/1\n", "rekindle-snapshot/2\n"];
const END: &[u8; 4] = b"end\n";
/// Bytes of [`END`] and of the checksum.
const TRAILER: u64 = 8;

/// A number takes up to eight times the room that it takes in the file.
const MOST_PER_BYTE: u64 = 8;
/// What a value may take in memory: the first of these that is enough for the whole file.
const SMALL: usize = 1 << 20;
const LARGE: usize = 1 << 30;
const HUGE: usize = usize::MAX >> 20;

/// Names inside a parameter's state start with nothing: the id stands beside them.
const STATE_PREFIX: &str = "";

/// What a run has done, apart from its tensors. It does not grow with the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Steps that are done.
    pub(super) steps: usize,
    pub(super) first_loss: f64,
    pub(super) last_loss: f64,
    /// The last evaluation.
    pub(super) evaluation: Option<EvalRecord>,
    /// The evaluation with the smallest loss.
    pub(super) best: Option<EvalRecord>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            steps: 0,
            first_loss: f64::NAN,
            last_loss: f64::NAN,
            evaluation: None,
            best: None,
        }
    }
}

impl Progress {
    pub(super) fn stepped(&mut self, step: &StepRecord) {
        if self.steps == 0 {
            self.first_loss = step.loss;
        }
        self.steps = step.step;
        self.last_loss = step.loss;
    }

    /// Whether no evaluation before had so small a loss.
    pub(super) fn evaluated(&mut self, evaluation: &EvalRecord) -> bool {
        self.evaluation = Some(evaluation.clone());
        let bound = self.best.as_ref().map_or(f64::INFINITY, |best| best.loss);
        let better = evaluation.loss < bound;
        if better {
            self.best = Some(evaluation.clone());
        }
        better
    }
}

/// Replaces the snapshot at `path`; `tensors` writes the model and the optimizer, in this order.
pub(super) fn write(
    path: &Path,
    fingerprint: &str,
    progress: &Progress,
    tensors: impl FnOnce(&mut SnapshotWriter<'_>) -> io::Result<()>,
) -> Result<(), RunDirError> {
    replace(path, |out| {
        let mut writer = SnapshotWriter {
            out,
            checksum: crc32fast::Hasher::new(),
        };
        writer.write_all(START.as_bytes())?;
        writer.put(fingerprint)?;
        writer.put(progress)?;
        tensors(&mut writer)?;
        writer.write_all(END)?;
        let checksum = writer.checksum.finalize();
        out.write_all(&checksum.to_le_bytes())
    })
    .map_err(RunDirError::refused(path, "written"))
}

/// A snapshot that is being written.
pub(super) struct SnapshotWriter<'a> {
    out: &'a mut dyn Write,
    checksum: crc32fast::Hasher,
}

impl SnapshotWriter<'_> {
    pub(super) fn put<T: Serialize + ?Sized>(&mut self, value: &T) -> io::Result<()> {
        match encode_into_std_write(value, self, config::standard()) {
            Ok(_) => Ok(()),
            Err(EncodeError::Io { inner, .. }) => Err(inner),
            Err(other) => Err(io::Error::other(other)),
        }
    }

    /// Writes every float tensor of a module whose statistics are up to date.
    pub(super) fn model(&mut self, model: &impl Module) -> io::Result<()> {
        struct Count(usize);
        impl ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
                self.0 += 1;
            }
        }
        struct Put<'w, 'a> {
            to: &'w mut SnapshotWriter<'a>,
            result: io::Result<()>,
        }
        impl ModuleVisitor for Put<'_, '_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.result.is_ok() {
                    let data = param.val().into_data();
                    self.result = self.to.put(&(param.id.val(), data));
                }
            }
        }

        let mut count = Count(0);
        model.visit(&mut count);
        self.put(&count.0)?;
        let mut put = Put {
            to: self,
            result: Ok(()),
        };
        model.visit(&mut put);
        put.result
    }

    /// Writes an optimizer's state, parameter by parameter.
    pub(super) fn optimizer(
        &mut self,
        optimizer: &dyn DynOptimizer,
        states: &HashMap<ParamId, DynState>,
    ) -> io::Result<()> {
        let mut states: Vec<_> = states.iter().collect();
        // The map has an order of its own in every process.
        states.sort_unstable_by_key(|(id, _)| id.val());
        self.put(&states.len())?;
        for (id, state) in states {
            self.put(&id.val())?;
            self.put(&flattened(optimizer, state))?;
        }
        Ok(())
    }

    /// Writes a parameter's [flattened] state that was encoded elsewhere.
    pub(super) fn state(&mut self, id: ParamId, encoded: &[u8]) -> io::Result<()> {
        self.put(&id.val())?;
        self.write_all(encoded)
    }
}

impl Write for SnapshotWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A parameter's optimizer state as plain values: its rank, tensors and scalars.
pub(super) fn flattened(optimizer: &dyn DynOptimizer, state: &DynState) -> impl Serialize + use<> {
    let mut sink = StateSink::default();
    optimizer.state_flatten(STATE_PREFIX, state, &mut sink);
    (state.rank(), sink.tensors, sink.scalars)
}

/// A snapshot that was found whole and is being read: the model first, then the optimizer.
pub(super) struct Snapshot {
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
    pub(super) fn open(path: &Path) -> Result<Self, RunDirError> {
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
    pub(super) fn check(&self, fingerprint: &str, steps: usize) -> Result<(), RunDirError> {
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
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the run has done.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The next value. Lengths in it that are far beyond the file's are refused before memory is taken for them.
    pub(super) fn take<T: DeserializeOwned>(&mut self) -> Result<T, RunDirError> {
        let from = &mut self.input;
        let most = self.bytes.saturating_mul(MOST_PER_BYTE);
        // To bincode limits are constants.
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

    pub(super) fn malformed(&self, reason: String) -> RunDirError {
        RunDirError::Malformed {
            path: self.path.clone(),
            reason,
        }
    }

    /// Puts recorded values, and ids of parameters, into a module.
    pub(super) fn restore<M: Module>(&mut self, model: M) -> Result<M, RunDirError> {
        let recorded: usize = self.take()?;
        // Statistics are replaced in place: those of clones must stay, and an update that waits would come on top.
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

    /// Reads an optimizer's state, parameter by parameter: of those that are wanted.
    pub(super) fn optimizer(
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
            // burn panics where values do not fill their shape, or have another rank than `rank`.
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
                // Freed before its successor comes.
                drop(tensor);
                let (shape, bytes) = (data.shape().clone(), data.bytes().len() as u64);
                // burn panics where values are of a kind that it cannot convert.
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

/// Fails if a file does not start, end and add up as it was written.
fn check_whole(path: &Path, mut file: File) -> Result<(), RunDirError> {
    let refused = || RunDirError::refused(path, "read");
    let bytes = file.metadata().map_err(refused())?.len();
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(START.len() as u64)
        .read_to_end(&mut start)
        .map_err(refused())?;
    if let Some(earlier) = EARLIER_STARTS
        .iter()
        .find(|earlier| start == earlier.as_bytes())
    {
        return Err(RunDirError::Outdated {
            path: path.to_path_buf(),
            format: earlier.trim_end(),
        });
    }
    if !START.as_bytes().starts_with(&start) {
        return Err(RunDirError::Format {
            path: path.to_path_buf(),
            expected: START.trim_end(),
        });
    }
    let truncated = || RunDirError::Truncated {
        path: path.to_path_buf(),
        bytes,
    };
    let body = bytes
        .checked_sub(START.len() as u64 + TRAILER)
        .ok_or_else(truncated)?;

    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&start);
    let mut left = body;
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let wanted = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let chunk = &mut buffer[..wanted];
        file.read_exact(chunk).map_err(refused())?;
        checksum.update(chunk);
        left -= wanted as u64;
    }
    let (mut end, mut stored) = ([0; END.len()], [0; 4]);
    file.read_exact(&mut end).map_err(refused())?;
    file.read_exact(&mut stored).map_err(refused())?;
    if end != *END {
        return Err(truncated());
    }
    checksum.update(&end);
    let (stored, computed) = (u32::from_le_bytes(stored), checksum.finalize());
    if stored != computed {
        return Err(RunDirError::Checksum {
            path: path.to_path_buf(),
            stored,
            computed,
        });
    }
    Ok(())
}

/// Writes a snapshot with `body` between its marks, and the checksum that belongs to it.
#[cfg(any(test, fuzzing))]
fn crafted(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut bytes = [START.as_bytes(), body, END].concat();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    std::fs::write(path, bytes)
}

/// Reads a snapshot with this body into a small model, at a path that it may write to.
///
/// # Errors
///
/// What is wrong with the body.
#[cfg(fuzzing)]
pub fn fuzz_snapshot(path: &Path, body: &[u8]) -> Result<(), RunDirError> {
    crafted(path, body).map_err(RunDirError::refused(path, "written"))?;
    let device = Device::flex().autodiff();
    let mut snapshot = Snapshot::open(path)?;
    snapshot.restore(burn::nn::LinearConfig::new(3, 2).init(&device))?;
    let settings = super::settings::TrainSettings {
        optimizer: super::settings::OptimizerSettings::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        ..Default::default()
    };
    let optimizer = super::optimizer::AnyOptimizer::new(&settings);
    optimizer.restored(&mut snapshot, &device).map(drop)
}

#[cfg(test)]
#[path = "../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use bincode::serde::encode_to_vec;
    use burn::{
        nn::{Linear, LinearConfig},
        optim::GradientsParams,
    };
    use proptest::prelude::*;

    use super::{
        mutated::{edited, edits},
        *,
    };
    use crate::{optimizer::AnyOptimizer, settings::TrainSettings};
    use rekindle::{dtype::Dtype, record::Optimizer as _};

    fn encoded<T: Serialize>(value: T) -> Vec<u8> {
        encode_to_vec(value, config::standard()).unwrap()
    }

    #[test]
    fn lengths_far_beyond_the_file_are_refused_before_memory_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let refused = |body: &[u8]| {
            crafted(&path, body).unwrap();
            let error = Snapshot::open(&path).err().unwrap();
            assert!(matches!(error, RunDirError::Malformed { .. }), "{error}");
        };
        for length in [1 << 30, 1 << 40, 1 << 62, u64::MAX] {
            refused(&encoded(length));
            refused(&[encoded("{}"), encoded(length)].concat());
        }
    }

    /// Adam, with all else that a snapshot may hold.
    fn adam() -> AnyOptimizer {
        AnyOptimizer::new(&TrainSettings {
            dtype: Dtype::F16,
            ..TrainSettings::default()
        })
    }

    /// Opens a snapshot and restores all that is in it.
    fn restored(path: &Path, model: &Linear) -> Result<(), RunDirError> {
        let mut snapshot = Snapshot::open(path)?;
        snapshot.restore(model.clone())?;
        let device = Device::flex().autodiff();
        adam().restored(&mut snapshot, &device).map(drop)
    }

    #[test]
    fn snapshots_with_any_content_and_a_right_checksum_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let device = Device::flex().autodiff();
        let model: Linear = Dtype::F16.cast(LinearConfig::new(3, 2).init(&device));
        let input = Tensor::<2>::ones([1, 3], (&device, burn::tensor::DType::F16));
        let loss = model.forward(input).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let mut optimizer = adam();
        let model = optimizer.step(0.1, model, gradients);
        write(&path, "{}", &Progress::default(), |to| {
            to.model(&model)?;
            optimizer.save(to)
        })
        .unwrap();
        assert!(restored(&path, &model).is_ok());
        let whole = std::fs::read(&path).unwrap();
        let body = &whole[START.len()..whole.len() - TRAILER as usize];
        let config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(400)
        };
        proptest!(config, |(edits in edits())| {
            crafted(&path, &edited(body, &edits)).unwrap();
            let _ = restored(&path, &model);
        });
    }

    #[test]
    fn snapshots_of_earlier_versions_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        for version in [1, 2] {
            std::fs::write(
                &path,
                format!("rekindle-snapshot/{version}\nwhatever follows"),
            )
            .unwrap();
            let error = Snapshot::open(&path).err().unwrap();
            assert_eq!(
                error.to_string(),
                format!(
                    "{}: is a `rekindle-snapshot/{version}` of an earlier version and cannot be read: continue the run \
                     with that version, or start a new run",
                    path.display()
                )
            );
        }
    }
}
