//! What this machine can run on.
//!
//! burn panics on the device's own thread when a driver is missing, so a device is asked here, by libraries that
//! answer with errors, before burn touches it.

use rekindle_plan::Bytes;
use serde::Serialize;
use sysinfo::System;
use thiserror::Error;

use super::{DeviceId, control_group};

/// A device that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Which one.
    pub device: DeviceId,
    /// What its maker calls it.
    pub name: String,
    /// All its memory, where it says so.
    pub total_bytes: Option<Bytes>,
    /// Memory that is not taken, where it says so.
    pub free_bytes: Option<Bytes>,
    /// Driver, or number of cores.
    pub detail: String,
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// Its backend is not part of this build.
    #[error("not built in: build with `--features {feature}`")]
    NotBuiltIn {
        /// The cargo feature.
        feature: &'static str,
    },
    /// There is no NVIDIA driver that answers.
    #[error("no NVIDIA driver answers ({reason})")]
    NoDriver {
        /// What the driver's library said.
        reason: String,
    },
    /// CUDA kernels cannot be compiled.
    #[error(
        "the CUDA headers are missing, which kernels are compiled with: install the CUDA toolkit's headers and NVRTC, \
         and set CUDA_PATH to its folder"
    )]
    NoCudaHeaders,
    /// There is no adapter.
    #[error("wgpu finds no adapter: install a Vulkan driver (Mesa's software Vulkan will do)")]
    NoAdapter,
    /// There are fewer devices of the kind.
    #[error("there is no {device}: this machine has {count} of that kind, numbered from 0")]
    NoSuchNumber {
        /// The device asked for.
        device: DeviceId,
        /// How many there are.
        count: usize,
    },
}

/// Asks a device.
///
/// # Errors
///
/// Why it cannot be used.
pub fn probe(device: DeviceId) -> Result<DeviceInfo, Unavailable> {
    if !device.built_in() {
        return Err(Unavailable::NotBuiltIn {
            feature: device.feature(),
        });
    }
    let (of_kind, index) = match device {
        DeviceId::Cpu => (vec![processor()], 0),
        DeviceId::Cuda(index) => (nvidia_gpus()?, index),
        DeviceId::Wgpu(index) => (adapters()?, index),
    };
    let count = of_kind.len();
    of_kind
        .into_iter()
        .nth(index)
        .ok_or(Unavailable::NoSuchNumber { device, count })
}

/// All devices of the kind of `device`.
///
/// # Errors
///
/// Why there is none.
pub fn probe_kind(device: DeviceId) -> Result<Vec<DeviceInfo>, Unavailable> {
    if !device.built_in() {
        return Err(Unavailable::NotBuiltIn {
            feature: device.feature(),
        });
    }
    match device {
        DeviceId::Cpu => Ok(vec![processor()]),
        DeviceId::Cuda(_) => nvidia_gpus(),
        DeviceId::Wgpu(_) => adapters(),
    }
}

fn processor() -> DeviceInfo {
    let mut system = System::new();
    system.refresh_memory();
    system.refresh_cpu_all();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = system
        .cpus()
        .first()
        .map(|cpu| cpu.brand().trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let (total, free) = limited(&system);
    DeviceInfo {
        device: DeviceId::Cpu,
        name,
        total_bytes: Some(total),
        free_bytes: Some(free),
        detail: format!("{cores} cores"),
    }
}

/// Memory that this process can have: all, and what is free. Limits of its control groups and of its address space count as
/// the machine's.
fn limited(system: &System) -> (Bytes, Bytes) {
    let machine = (system.total_memory(), system.available_memory());
    let limits = [control_group::limit(), address_space()]
        .into_iter()
        .flatten();
    let (total, free) = limits.fold(machine, |all, limit| {
        (all.0.min(limit.0), all.1.min(limit.1))
    });
    (Bytes(total), Bytes(free))
}

/// The limit of the process's address space (`ulimit -v`) and what is left of it, where there is one.
fn address_space() -> Option<(u64, u64)> {
    // Only Linux has these files.
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    address_space_in(&limits, &status)
}

fn address_space_in(limits: &str, status: &str) -> Option<(u64, u64)> {
    let number = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let limit = number(limits, "Max address space")?;
    let taken = number(status, "VmSize:")? * 1024;
    Some((limit, limit.saturating_sub(taken)))
}

#[cfg(feature = "cuda")]
fn nvidia_gpus() -> Result<Vec<DeviceInfo>, Unavailable> {
    use nvml_wrapper::{Nvml, error::NvmlError};

    let read = || -> Result<Vec<DeviceInfo>, NvmlError> {
        let nvml = Nvml::init()?;
        let driver = nvml.sys_driver_version()?;
        (0..nvml.device_count()?)
            .map(|index| {
                let gpu = nvml.device_by_index(index)?;
                let memory = gpu.memory_info()?;
                Ok(DeviceInfo {
                    device: DeviceId::Cuda(index as usize),
                    name: gpu.name()?,
                    total_bytes: Some(Bytes(memory.total)),
                    free_bytes: Some(Bytes(memory.free)),
                    detail: format!("driver {driver}"),
                })
            })
            .collect()
    };
    match read() {
        Ok(gpus) if gpus.is_empty() => Err(Unavailable::NoDriver {
            reason: "it lists no GPU".into(),
        }),
        Ok(_) if !cuda_headers() => Err(Unavailable::NoCudaHeaders),
        Ok(gpus) => Ok(gpus),
        Err(error) => Err(Unavailable::NoDriver {
            reason: error.to_string(),
        }),
    }
}

/// Whether the headers are where cubecl will look for them.
#[cfg(feature = "cuda")]
fn cuda_headers() -> bool {
    use std::path::PathBuf;

    let toolkit = match std::env::var_os("CUDA_PATH") {
        Some(path) => PathBuf::from(path),
        None if cfg!(target_os = "linux") => PathBuf::from("/usr/local/cuda"),
        None => PathBuf::from("C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA"),
    };
    toolkit.join("include").is_dir() || (cfg!(windows) && toolkit.is_dir())
}

#[cfg(not(feature = "cuda"))]
fn nvidia_gpus() -> Result<Vec<DeviceInfo>, Unavailable> {
    Err(Unavailable::NotBuiltIn { feature: "cuda" })
}

#[cfg(feature = "wgpu")]
fn adapters() -> Result<Vec<DeviceInfo>, Unavailable> {
    let instance = wgpu::Instance::default();
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let found: Vec<DeviceInfo> = adapters
        .iter()
        .enumerate()
        .map(|(index, adapter)| {
            let info = adapter.get_info();
            DeviceInfo {
                device: DeviceId::Wgpu(index),
                name: info.name,
                total_bytes: None,
                free_bytes: None,
                detail: format!("{:?}, {:?}", info.backend, info.device_type),
            }
        })
        .collect();
    if found.is_empty() {
        return Err(Unavailable::NoAdapter);
    }
    Ok(found)
}

#[cfg(not(feature = "wgpu"))]
fn adapters() -> Result<Vec<DeviceInfo>, Unavailable> {
    Err(Unavailable::NotBuiltIn { feature: "wgpu" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_address_space_is_read() {
        let limits = |soft: &str| {
            format!(
                "Max resident set   unlimited   unlimited   bytes\nMax address space   {soft}   unlimited   bytes\n"
            )
        };
        let status = "VmPeak:\t   3000 kB\nVmSize:\t   2048 kB\n";
        assert_eq!(address_space_in(&limits("unlimited"), status), None);
        let limited = address_space_in(&limits("4194304"), status);
        assert_eq!(limited, Some((4 << 20, 2 << 20)));
        // More than the limit, which was set later.
        assert_eq!(address_space_in(&limits("1024"), status), Some((1024, 0)));
    }
}
