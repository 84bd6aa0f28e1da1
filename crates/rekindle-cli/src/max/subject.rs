//! A config with one variable size.

use rekindle::record::{Kernels, Update};
use rekindle_plan::Bytes;
use rekindle_train::{
    Estimated,
    device::DeviceId,
    kernels,
    model::spec::MAX_LAYERS,
    session::MeasuredStep,
    update::{Updates, updates},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    args::{ConfigArgs, Lever},
    config::{Config, depth::deepest},
    exit,
    failure::Failure,
};

/// Maximum size in the search.
const LARGEST: usize = 1 << 32;

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
        let varied = match lever {
            Lever::Batch => batch(config, samples),
            Lever::Depth => depth(config)?,
        };
        Ok(Self {
            config,
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
        match self.varied.lever {
            Lever::Depth => model = self.config.deepened(size)?,
            Lever::Batch => settings.batch = size,
        }
        let estimated = Estimated {
            model: &model,
            held: self.process_bytes,
            ..self.config.estimated(&settings, self.kernels)
        };
        let estimate = estimated.estimate()?;
        Ok(MeasuredStep::estimated(&estimate, &model, &settings))
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

fn depth(config: &Config) -> Result<Varied, Failure> {
    let Some(group) = deepest(&config.written) else {
        return Err(Failure::with_help(
            exit::USAGE,
            "the depth cannot be varied: no group in `layers` has a `repeat`",
            "write the layers that repeat as a group: `{ repeat = { times = 4, layers = [...] } }`",
        ));
    };
    Ok(Varied {
        lever: Lever::Depth,
        configured: group.times,
        limit: (MAX_LAYERS.saturating_sub(group.others) / group.turn.max(1)).max(1),
        limited_by: format!("the end of the search ({MAX_LAYERS} layers)"),
    })
}

/// Memory of a process of this program besides the training: on the CPU, about as much as this process holds.
fn process_bytes(device: DeviceId) -> Bytes {
    match device {
        DeviceId::Cpu => Bytes(rekindle_alloc::in_use() as u64),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Bytes(0),
    }
}
