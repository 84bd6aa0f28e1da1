//! A config with one variable size.

use rekindle::record::{Kernels, Update};
use rekindle_plan::Bytes;
use rekindle_train::{
    Estimated,
    device::DeviceId,
    kernels,
    session::MeasuredStep,
    update::{Updates, updates},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    args::{ConfigArgs, Lever},
    config::{Config, depth::Group},
    exit,
    failure::Failure,
};

/// Maximum size in the search.
const LARGEST: usize = 1 << 32;

/// Maximum number of stages in the search: simulating a schedule of more would take too long.
const MOST_STAGES: usize = 20_000;

/// What is varied, between which bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Varied {
    /// What is varied.
    pub lever: Lever,
    /// The config's size.
    pub configured: usize,
    /// The largest size that is tried.
    pub limit: usize,
    /// Why no larger size is tried, in words.
    pub limited_by: String,
}

/// A config, and what is varied of it.
pub struct Subject<'a> {
    config: &'a Config,
    /// The group that depth is about.
    group: Option<Group>,
    kernels: Kernels,
    process_bytes: Bytes,
    /// What is varied.
    pub varied: Varied,
}

impl<'a> Subject<'a> {
    /// Leaves a size open. `samples` is how many the data has, if that is known.
    pub fn new(
        config: &'a Config,
        lever: Lever,
        device: DeviceId,
        samples: Option<usize>,
    ) -> Result<Self, Failure> {
        let group = Group::deepest(&config.groups).cloned();
        let varied = match lever {
            Lever::Batch => batch(config, samples),
            Lever::Depth => depth(config, group.as_ref())?,
        };
        Ok(Self {
            config,
            group,
            kernels: kernels(device),
            process_bytes: process_bytes(device),
            varied,
        })
    }

    /// The same config with this size.
    pub fn sized(&self, config: &ConfigArgs, size: usize) -> ConfigArgs {
        let mut config = config.clone();
        let replace = &mut config.replace;
        *match self.varied.lever {
            Lever::Batch => &mut replace.batch,
            Lever::Depth => &mut replace.depth,
        } = Some(size);
        config
    }

    /// Sizes are multiples of this: a batch that is run in equal parts has whole parts.
    pub fn unit(&self) -> usize {
        match self.varied.lever {
            Lever::Batch => self.config.training.accumulate.max(1),
            Lever::Depth => 1,
        }
    }

    /// Which updates plans may have.
    pub fn updates(&self) -> Updates {
        updates(&self.config.training, true)
    }

    /// The step of a size, from shapes alone, with one of the updates.
    pub fn counted(&self, size: usize, update: Update) -> Result<MeasuredStep, Failure> {
        let (mut model, mut settings) = (self.config.model.clone(), self.config.training.clone());
        settings.update = update.into();
        match &self.group {
            Some(group) if self.varied.lever == Lever::Depth => {
                model.layers = group.repeated(&model.layers, size);
            }
            _ => settings.batch = size,
        }
        let estimated = Estimated {
            model: &model,
            held: self.process_bytes,
            ..self.config.estimated(&settings, self.kernels)
        };
        Ok(estimated.step()?)
    }
}

fn batch(config: &Config, samples: Option<usize>) -> Varied {
    let parts = config.training.accumulate.max(1);
    Varied {
        lever: Lever::Batch,
        configured: config.training.batch,
        limit: samples.unwrap_or(LARGEST) / parts * parts,
        limited_by: match samples {
            Some(samples) => format!("the data set ({samples} training samples)"),
            None => "the end of the search".into(),
        },
    }
}

fn depth(config: &Config, group: Option<&Group>) -> Result<Varied, Failure> {
    let Some(group) = group else {
        return Err(Failure::with_help(
            exit::USAGE,
            "the depth cannot be varied: no group in `layers` has a `repeat`",
            "write the layers that repeat as a group: `{ repeat = { times = 4, layers = [...] } }`",
        ));
    };
    let turn = group.turn().max(1);
    let others = config.model.layers.len() - group.layers.len();
    Ok(Varied {
        lever: Lever::Depth,
        configured: group.times,
        limit: (MOST_STAGES.saturating_sub(others) / turn).max(1),
        limited_by: format!("the end of the search ({MOST_STAGES} layers)"),
    })
}

/// Memory of a process of this program besides the training: on the CPU, about as much as this process holds.
fn process_bytes(device: DeviceId) -> Bytes {
    match device {
        DeviceId::Cpu => Bytes(rekindle_alloc::in_use() as u64),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Bytes(0),
    }
}
