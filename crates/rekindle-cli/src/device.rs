//! The device of a command: as requested, and as found.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use rekindle_train::device::{DeviceId, DeviceInfo, Obstacle, Unavailable, count, listed, probe};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::{compiling, exit, failure::Failure, launched::Local, table::several};

/// A requested device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first NVIDIA GPU that answers, else the CPU.
    #[default]
    Auto,
    /// This one.
    One(DeviceId),
}

/// Whether plans may move tensors to host memory.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadChoice {
    /// On GPUs, where a plan is faster so or nothing else fits.
    #[default]
    Auto,
    /// Tensors stay on the device.
    Never,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown =
            || format!("unknown device `{text}`: expected auto, cpu, cuda, cuda:N, wgpu or wgpu:N");
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
        serializer.collect_str(self)
    }
}

impl DeviceChoice {
    /// The choice for one of a machine's ranks: each has its own GPU, and opens no other.
    pub fn of_rank(self, local: Local) -> Result<Self, Failure> {
        let kind = match self {
            _ if local.ranks == 1 => return Ok(self),
            Self::Auto if listed(DeviceId::Cuda(0)).is_ok() => DeviceId::Cuda(0),
            Self::Auto | Self::One(DeviceId::Cpu) => return Ok(self),
            Self::One(device) => device,
        };
        // If there are no devices of this kind, opening one reports the reason.
        count(kind).map_or(Ok(self), |count| numbered(kind, count, local))
    }

    /// Finds the device, without burn accessing one that does not answer.
    pub fn resolve(self) -> Result<DeviceInfo, Failure> {
        let device = self.found(probe)?;
        compiling::prepare(&device);
        Ok(device)
    }

    /// Finds the device for a command that runs nothing on it, so that it is not opened.
    pub fn listed(self) -> Result<DeviceInfo, Failure> {
        self.found(listed)
    }

    fn found(
        self,
        find: fn(DeviceId) -> Result<DeviceInfo, Unavailable>,
    ) -> Result<DeviceInfo, Failure> {
        let found = match self {
            Self::One(device) => find(device),
            Self::Auto => find(DeviceId::Cuda(0)).or_else(|error| {
                if error.obstacle() != Obstacle::Absence {
                    note!("using the CPU, because cuda:0 cannot be used: {error}");
                }
                find(DeviceId::Cpu)
            }),
        };
        found.map_err(|error| {
            let code = match error.obstacle() {
                Obstacle::Absence | Obstacle::Setup => exit::USAGE,
                Obstacle::Memory => exit::OUT_OF_MEMORY,
                Obstacle::Fault => exit::OTHER,
            };
            Failure::coded(code, format_args!("{self} cannot be used: {error}"))
        })
    }
}

/// The device of one of a machine's ranks, which has so many of its kind.
fn numbered(kind: DeviceId, count: usize, local: Local) -> Result<DeviceChoice, Failure> {
    let Local { rank, ranks } = local;
    let device = match kind {
        DeviceId::Cuda(0) => DeviceId::Cuda(rank),
        DeviceId::Wgpu(0) => DeviceId::Wgpu(rank),
        one => {
            return Err(Failure::usage(format!(
                "{one} is one device, but this machine has {ranks} ranks: `--device {}` gives each of them one of its own",
                one.feature()
            )));
        }
    };
    match ranks <= count {
        true => Ok(DeviceChoice::One(device)),
        false => Err(Failure::usage(format!(
            "this machine has {ranks} ranks, but only {} of the kind `{}`: start one rank for each device, or `--device \
             cpu`",
            several(count, "device"),
            kind.feature()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_have_a_gpu_each() {
        let local = |rank, ranks| Local { rank, ranks };
        let said = |kind, count| numbered(kind, count, local(1, 2)).map_err(|one| one.message);
        assert_eq!(
            said(DeviceId::Cuda(0), 2),
            Ok(DeviceChoice::One(DeviceId::Cuda(1)))
        );
        let few = said(DeviceId::Cuda(0), 1).expect_err("one GPU for two ranks");
        assert!(
            few.contains("2 ranks, but only 1 device of the kind `cuda`"),
            "{few}"
        );
        let one = said(DeviceId::Cuda(1), 2).expect_err("the same GPU for both");
        assert!(one.contains("`--device cuda`"), "{one}");
        let alone = DeviceChoice::One(DeviceId::Cuda(1)).of_rank(local(0, 1));
        assert_eq!(alone.ok(), Some(DeviceChoice::One(DeviceId::Cuda(1))));
    }

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
