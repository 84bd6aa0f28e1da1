//! Which device a command runs on: as asked for, and as found.

use std::{fmt, str::FromStr};

use rekindle_train::{
    device::{DeviceId, DeviceInfo, Obstacle, probe},
    model::kernels::Kernels,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{compiling, exit, failure::Failure, terminal::typed};

/// A device as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first NVIDIA GPU that answers, else the processor.
    #[default]
    Auto,
    /// This one.
    One(DeviceId),
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{text}`: expected auto, cpu, cuda, cuda:N, wgpu or wgpu:N")]
pub struct DeviceParseError {
    text: String,
}

impl FromStr for DeviceChoice {
    type Err = DeviceParseError;

    fn from_str(text: &str) -> Result<Self, DeviceParseError> {
        let unknown = || DeviceParseError { text: text.into() };
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (kind, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::One(DeviceId::Cpu)),
            ("cuda", index) => Ok(Self::One(DeviceId::Cuda(index.unwrap_or(0)))),
            ("wgpu", index) => Ok(Self::One(DeviceId::Wgpu(index.unwrap_or(0)))),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::One(device) => device.fmt(f),
        }
    }
}

impl Serialize for DeviceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        typed::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for DeviceChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        typed::deserialize(deserializer)
    }
}

impl DeviceChoice {
    /// Finds the device, without letting burn touch one that does not answer.
    pub fn resolve(self) -> Result<DeviceInfo, Failure> {
        let found = match self {
            Self::One(device) => probe(device),
            Self::Auto => probe(DeviceId::Cuda(0)).or_else(|error| {
                if error.obstacle() != Obstacle::Absence {
                    note!("the processor computes, for cuda:0 cannot be used: {error}");
                }
                probe(DeviceId::Cpu)
            }),
        };
        let device = found.map_err(|error| {
            let code = match error.obstacle() {
                Obstacle::Absence | Obstacle::Setup => exit::USAGE,
                Obstacle::Memory => exit::OUT_OF_MEMORY,
                Obstacle::Fault => exit::OTHER,
            };
            Failure::coded(code, format_args!("{self} cannot be used: {error}"))
        })?;
        compiling::prepare(&device);
        Ok(device)
    }
}

/// Who computes on a device.
pub fn kernels(device: DeviceId) -> Kernels {
    match device {
        DeviceId::Cpu => Kernels::host(),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => Kernels::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_written() {
        for (text, expected) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::One(DeviceId::Cpu)),
            ("cuda", DeviceChoice::One(DeviceId::Cuda(0))),
            ("cuda:3", DeviceChoice::One(DeviceId::Cuda(3))),
            ("wgpu:1", DeviceChoice::One(DeviceId::Wgpu(1))),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for text in ["gpu", "cuda:", "cuda:x", "cpu:0", "auto:1", ""] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }
}
