//! Records blocks of memory that are allocated and freed, action by action.
//!
//! After every action the meter reports in a [`Census`] the blocks that were allocated and remain, and the older blocks
//! that were freed. Only the size of a block is known, so it is matched with a tensor of the same size in the action's
//! stage: its input, its output, a value inside it, or one of its parameters. A gradient has the same size as its
//! tensor.
//!
//! For each moment, `in use after - in use before = appeared - went + others`, to the byte; others are small blocks
//! without a matching tensor. Memory allocated by tracking itself is left out.

use std::sync::{Arc, Mutex, PoisonError};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};
use rekindle_plan::{Action, Bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{
    shape::{LayerShape, ModelShape},
    spec::{ElementKind, LayerSpec, ModelSpec, SampleShape},
    stages::ModelStages,
};
use rekindle::{
    dtype::Dtype,
    meter::{Census, Change, Meter},
};

/// Format tag of a file of [`TrackedMoment`]s, one a line.
pub const TRACK_FORMAT: &str = "rekindle-track/1";

/// Blocks smaller than this are shown only if a known tensor is as large.
const SMALL: Bytes = Bytes(4096);

/// What came and went in one moment of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrackedMoment {
    /// Number of the step, from 1.
    pub step: usize,
    /// An action as in a plan's `schedule`; `batch` while data moves to the device; `end` for what the end of the step
    /// frees.
    pub moment: String,
    /// The action's stage, from 0; `null` where it has none.
    pub stage: Option<usize>,
    /// The stage's name; `null` where it has none.
    pub layer: Option<String>,
    /// Blocks of memory that came and stayed, the largest first.
    pub appeared: Vec<Blocks>,
    /// Blocks that were there before the moment and went, the largest first.
    pub went: Vec<Blocks>,
    /// Small blocks that are no known tensor: bytes that appeared less bytes that went.
    pub others_bytes: i64,
    /// Bytes in use after the moment.
    pub in_use_bytes: Bytes,
}

/// Blocks of one size; on a GPU the balance of all blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Blocks {
    /// Number of blocks; `null` on a GPU, where only their balance is known.
    pub count: Option<u64>,
    /// Bytes of one block; `null` on a GPU.
    pub block_bytes: Option<Bytes>,
    /// Bytes of all of them.
    pub bytes: Bytes,
    /// Shape of a tensor of this size, the batch first; `null` where none is known.
    pub shape: Option<Vec<usize>>,
    /// Which tensor that is; `null` where none is known.
    pub like: Option<String>,
}

/// A tensor whose size is known.
#[derive(Debug, Clone)]
struct Known {
    bytes: u64,
    shape: Vec<usize>,
    what: String,
}

/// Records allocated and freed blocks.
pub struct Tracker {
    meter: Arc<dyn Meter>,
    /// Names of the stages, and their tensors.
    stages: Vec<(String, Vec<Known>)>,
    state: Mutex<State>,
}

struct State {
    step: usize,
    before: Census,
    now: Census,
    in_use: Bytes,
    moments: Vec<TrackedMoment>,
}

impl Tracker {
    /// A tracker of a model of this shape, at `batch` samples.
    pub(super) fn new<M: Module>(
        meter: Arc<dyn Meter>,
        (model, shape): (&ModelSpec, &ModelShape),
        modules: &[M],
        (batch, dtype): (usize, Dtype),
    ) -> Self {
        let plan = ModelStages::new(model, shape);
        let stages = plan.stages.iter().zip(modules).map(|(stage, module)| {
            let mut known = Tensors {
                stage: &stage.name,
                batch,
                dtype,
                known: Vec::new(),
            };
            known.add(format!("the output of {}", stage.name), &stage.output);
            known.add(format!("the input of {}", stage.name), &stage.input);
            for layer in stage.layers.clone() {
                known.add_layer(&model.layers[layer], &shape.layers[layer]);
            }
            module.visit(&mut known);
            (stage.name.clone(), known.known)
        });
        Self {
            stages: stages.collect(),
            state: Mutex::new(State {
                step: 0,
                before: Census::default(),
                now: Census::default(),
                in_use: Bytes(0),
                moments: Vec::new(),
            }),
            meter,
        }
    }

    /// A step starts.
    pub(super) fn start(&self, step: usize) {
        let mut state = self.state();
        self.meter.count_blocks(true);
        state.step = step;
        self.begin_moment(&mut state);
    }

    /// The batch is on the device.
    pub(super) fn batch(&self) {
        self.note("batch".into(), None);
    }

    /// An action is done.
    pub(super) fn done(&self, action: Action) {
        self.note(action.to_string(), action.stage().map(|stage| stage.0));
    }

    /// The step is over. Returns its moments.
    pub(super) fn end(&self) -> Vec<TrackedMoment> {
        self.note("end".into(), None);
        self.meter.count_blocks(false);
        std::mem::take(&mut self.state().moments)
    }

    fn note(&self, moment: String, stage: Option<usize>) {
        let in_use = self.meter.read().in_use_bytes;
        let mut state = self.state();
        self.meter.census(&mut state.now);
        let changes = state.now.since(&state.before).into_iter();
        let changes = changes.map(|change| (change.came, self.blocks(&change, stage)));
        let changes: Vec<(bool, Blocks)> = changes
            .filter(|(_, blocks)| {
                blocks.like.is_some() || blocks.block_bytes.is_none_or(|each| each >= SMALL)
            })
            .collect();
        let of = |came: bool| -> Vec<Blocks> {
            let of = changes.iter().filter(|change| change.0 == came);
            of.map(|(_, blocks)| blocks.clone()).collect()
        };
        let (appeared, went) = (of(true), of(false));
        let sum =
            |blocks: &[Blocks]| -> i64 { blocks.iter().map(|blocks| blocks.bytes.0 as i64).sum() };
        let grown = in_use.0 as i64 - state.in_use.0 as i64;
        let others_bytes = grown - sum(&appeared) + sum(&went);
        let tracked = TrackedMoment {
            step: state.step,
            moment,
            stage,
            layer: stage.map(|stage| self.stages[stage].0.clone()),
            appeared,
            went,
            others_bytes,
            in_use_bytes: in_use,
        };
        state.moments.push(tracked);
        self.begin_moment(&mut state);
    }

    /// Blocks, with a tensor of the same size: of the stage, or of any stage if the moment has none.
    fn blocks(&self, change: &Change, stage: Option<usize>) -> Blocks {
        let stages = match stage {
            Some(stage) => &self.stages[stage..=stage],
            None => &self.stages[..],
        };
        let mut tensors = stages.iter().flat_map(|(_, known)| known);
        let like = change
            .block_bytes
            .and_then(|bytes| tensors.find(|known| known.bytes == bytes.0));
        Blocks {
            count: change.count,
            block_bytes: change.block_bytes,
            bytes: change.bytes,
            shape: like.map(|known| known.shape.clone()),
            like: like.map(|known| known.what.clone()),
        }
    }

    /// Called after all bookkeeping, so that its allocations belong to no moment.
    fn begin_moment(&self, state: &mut State) {
        self.meter.start_census();
        self.meter.census(&mut state.before);
        state.in_use = self.meter.read().in_use_bytes;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a token id, and of a position that a max pooling keeps.
const TOKEN_BYTES: u64 = 4;

/// The tensors of one stage.
struct Tensors<'a> {
    stage: &'a str,
    batch: usize,
    dtype: Dtype,
    known: Vec<Known>,
}

impl Tensors<'_> {
    fn add(&mut self, what: String, sample: &SampleShape) {
        let width = match sample.kind {
            ElementKind::Float => self.dtype.bytes(),
            ElementKind::Token => TOKEN_BYTES,
        };
        self.add_of_width(what, sample, width);
    }

    fn add_of_width(&mut self, what: String, sample: &SampleShape, width: u64) {
        let shape: Vec<usize> = [self.batch]
            .into_iter()
            .chain(sample.dims.iter().copied())
            .collect();
        self.known.push(Known {
            bytes: shape.iter().product::<usize>() as u64 * width,
            shape,
            what,
        });
    }

    fn add_layer(&mut self, spec: &LayerSpec, shape: &LayerShape) {
        let inside = format!("{} in {}", spec.kind(), self.stage);
        self.add(format!("the output of {inside}"), &shape.output);
        if let LayerSpec::MaxPool2d(_) = spec {
            let what = format!("the positions of {inside}");
            self.add_of_width(what, &shape.output, TOKEN_BYTES);
        }
        if let LayerSpec::Residual { layers } = spec {
            for (spec, shape) in layers.iter().zip(&shape.inner) {
                self.add_layer(spec, shape);
            }
        }
    }
}

impl ModuleVisitor for Tensors<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.val().dims().to_vec();
        self.known.push(Known {
            bytes: shape.iter().product::<usize>() as u64 * self.dtype.bytes(),
            shape,
            what: format!("a parameter of {}", self.stage),
        });
    }
}
