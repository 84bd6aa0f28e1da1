//! What a device answers, or why it cannot be used.

use rekindle_plan::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use super::DeviceId;

/// A device that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceInfo {
    /// As `--device` takes it.
    #[schemars(with = "String")]
    pub device: DeviceId,
    /// What it calls itself.
    pub name: String,
    /// All its memory; `null` where it does not say.
    pub total_bytes: Option<Bytes>,
    /// What nobody uses; of a GPU what this process can have, its context included; `null` where it does not say.
    pub free_bytes: Option<Bytes>,
    /// Of all, what a budget does not bound: on the processor, where a control group limits it, all beside this process's
    /// heap.
    #[serde(skip)]
    pub beside_bytes: Bytes,
    /// The most that one buffer may take, where the device limits that.
    #[serde(skip)]
    pub largest_buffer_bytes: Option<Bytes>,
    /// Compute capability and address, kind of adapter, or number of cores.
    pub detail: String,
    /// What its kernels are compiled for and by: compute capability, versions of driver and compiler.
    #[serde(skip)]
    pub toolchain: String,
    /// Why it cannot be used; `null` where it can.
    #[schemars(with = "Option<String>")]
    pub problem: Option<Unavailable>,
}

impl DeviceInfo {
    /// What one of so many processes of this machine can have of it: a share of the processor's memory, and a GPU whole.
    #[must_use]
    pub fn shared_by(self, processes: usize) -> Self {
        let share = |bytes: Option<Bytes>| match self.device {
            DeviceId::Cpu => bytes.map(|bytes| Bytes(bytes.0 / processes as u64)),
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => bytes,
        };
        Self {
            total_bytes: share(self.total_bytes),
            free_bytes: share(self.free_bytes),
            beside_bytes: share(Some(self.beside_bytes)).unwrap_or_default(),
            ..self
        }
    }

    /// What this process can have, in bytes: on a GPU what nobody else holds, which no other program gives back; on the
    /// processor all that a budget can bound.
    #[must_use]
    pub fn available_bytes(&self) -> Option<Bytes> {
        match self.device {
            DeviceId::Cuda(_) => self.free_bytes,
            DeviceId::Cpu | DeviceId::Wgpu(_) => {
                self.total_bytes.map(|bytes| bytes - self.beside_bytes)
            }
        }
    }
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Error)]
#[serde(transparent)]
#[error("{reason}")]
pub struct Unavailable {
    reason: String,
    #[serde(skip)]
    obstacle: Obstacle,
}

/// What stands in the way of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// There is no such device here, and none was expected.
    Absence,
    /// Something that a user can mend.
    Setup,
    /// Its memory is taken.
    Memory,
    /// The device or its driver fails.
    Fault,
}

impl Unavailable {
    /// Something that a user can mend.
    pub(super) fn setup(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            obstacle: Obstacle::Setup,
        }
    }

    /// The backend is not part of this build.
    pub(super) fn not_built_in(feature: &str) -> Self {
        Self {
            obstacle: Obstacle::Absence,
            ..Self::setup(format!("not built in: build with `--features {feature}`"))
        }
    }

    /// There are fewer devices of the kind.
    pub(super) fn no_such_number(device: DeviceId, count: usize) -> Self {
        let hidden = match (device, std::env::var("CUDA_VISIBLE_DEVICES")) {
            (DeviceId::Cuda(_), Ok(value)) => format!(" (CUDA_VISIBLE_DEVICES is `{value}`)"),
            _ => String::new(),
        };
        Self::setup(format!(
            "there is no {device}: this machine has {count} of that kind{hidden}, numbered from 0"
        ))
    }

    /// What kind of obstacle it is.
    #[must_use]
    pub fn obstacle(&self) -> Obstacle {
        self.obstacle
    }
}

#[cfg(feature = "cuda")]
impl From<rekindle_cuda::CudaError> for Unavailable {
    fn from(error: rekindle_cuda::CudaError) -> Self {
        use rekindle_cuda::CudaError;
        Self {
            obstacle: match &error {
                error if error.is_absence() => Obstacle::Absence,
                CudaError::NoMemory(_) => Obstacle::Memory,
                CudaError::Driver { .. } => Obstacle::Fault,
                _ => Obstacle::Setup,
            },
            ..Self::setup(error.to_string())
        }
    }
}
