//! Finds the devices of this machine.
//!
//! burn panics on the device's own thread if a driver is missing. So devices are probed here first, with libraries that
//! return errors.

use rekindle::meter::{HostMeter, Meter};
use rekindle_plan::Bytes;
use sysinfo::System;

use super::{DeviceId, DeviceInfo, Unavailable, control_group};

/// Probes a device. A GPU is opened, and a kernel compiled for it.
///
/// # Errors
///
/// The reason why it cannot be used.
pub fn probe(device: DeviceId) -> Result<DeviceInfo, Unavailable> {
    #[cfg(feature = "cuda")]
    if let DeviceId::Cuda(number) = device {
        return super::nvidia::opened(number);
    }
    listed(device)
}

/// The device as this machine lists it: nothing is opened or compiled, so it may still turn out not to work.
///
/// # Errors
///
/// The reason why it cannot be used.
pub fn listed(device: DeviceId) -> Result<DeviceInfo, Unavailable> {
    #[cfg(feature = "cuda")]
    if let DeviceId::Cuda(number) = device {
        return super::nvidia::listed(number);
    }
    let number = match device {
        DeviceId::Cpu => 0,
        DeviceId::Cuda(number) | DeviceId::Wgpu(number) => number,
    };
    let all = probe_kind(device)?;
    let count = all.len();
    let found = all.into_iter().nth(number);
    found.ok_or_else(|| Unavailable::no_such_number(device, count))
}

/// The number of devices of the same kind as `device`, none of which is opened.
///
/// # Errors
///
/// The reason why there is none.
pub fn count(device: DeviceId) -> Result<usize, Unavailable> {
    #[cfg(feature = "cuda")]
    if let DeviceId::Cuda(_) = device {
        return Ok(rekindle_cuda::gpus()?.len());
    }
    Ok(probe_kind(device)?.len())
}

/// All devices of the same kind as `device`; unusable ones have a [problem](DeviceInfo::problem).
///
/// # Errors
///
/// The reason why there is none.
pub fn probe_kind(device: DeviceId) -> Result<Vec<DeviceInfo>, Unavailable> {
    match device {
        DeviceId::Cpu if cfg!(feature = "flex") => Ok(vec![processor()]),
        #[cfg(feature = "cuda")]
        DeviceId::Cuda(_) => super::nvidia::all(),
        #[cfg(feature = "wgpu")]
        DeviceId::Wgpu(_) => adapters(),
        _ => Err(Unavailable::not_built_in(device.feature())),
    }
}

fn processor() -> DeviceInfo {
    let mut system = System::new();
    system.refresh_cpu_all();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = system
        .cpus()
        .first()
        .map(|cpu| cpu.brand().trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let (total, free) = memory();
    let beside = total - room_of_group();
    DeviceInfo {
        device: DeviceId::Cpu,
        name,
        total_bytes: Some(total),
        free_bytes: Some(free.min(total - beside)),
        beside_bytes: beside,
        detail: format!("{cores} cores"),
        ..DeviceInfo::default()
    }
}

/// Total and free memory for this process, within the limits of its control groups and its address space.
pub(crate) fn memory() -> (Bytes, Bytes) {
    let mut system = System::new();
    system.refresh_memory();
    let machine = (system.total_memory(), system.available_memory());
    let limits = [control_group::limit(), address_space()]
        .into_iter()
        .flatten();
    let (total, free) = limits.fold(machine, |all, limit| {
        (all.0.min(limit.0), all.1.min(limit.1))
    });
    (Bytes(total), Bytes(free))
}

/// What control groups leave to the heap of this process: their limits count all else that runs there, the program itself
/// and the system's tables, too.
fn room_of_group() -> Bytes {
    /// What comes later: stacks, tables of pages, gaps between small blocks.
    const LATER: Bytes = Bytes(4 << 20);
    let Some((_, left)) = control_group::limit() else {
        return Bytes::MAX;
    };
    let heap = HostMeter::new().map(|meter| meter.read().in_use_bytes);
    Bytes(left) + heap.unwrap_or_default() - LATER
}

/// The remaining address space of the process, if it is limited (`ulimit -v`).
#[must_use]
pub fn address_space_left() -> Option<Bytes> {
    address_space().map(|(_, left)| Bytes(left))
}

/// The limit of the process's address space and the remaining bytes, if there is a limit.
fn address_space() -> Option<(u64, u64)> {
    // Only Linux has these files.
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    address_space_in(&limits, &status)
}

/// Memory that this process has in RAM, as the system counts it.
pub(crate) fn resident() -> Option<Bytes> {
    status("VmRSS:")
}

/// The most memory that this process has had in RAM.
pub(crate) fn resident_peak() -> Option<Bytes> {
    status("VmHWM:")
}

fn status(name: &str) -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(Bytes(number(&status, name)? * 1024))
}

/// The first number after a name that begins a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn address_space_in(limits: &str, status: &str) -> Option<(u64, u64)> {
    let limit = number(limits, "Max address space")?;
    let taken = number(status, "VmSize:")? * 1024;
    Some((limit, limit.saturating_sub(taken)))
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
            let limits = adapter.limits();
            let largest = limits
                .max_storage_buffer_binding_size
                .min(limits.max_buffer_size);
            DeviceInfo {
                device: DeviceId::Wgpu(index),
                name: info.name,
                // cubecl bounds its pages by the same value.
                largest_buffer_bytes: Some(Bytes(largest)),
                detail: format!("{:?}, {:?}", info.backend, info.device_type),
                toolchain: format!("{} {}", info.driver, info.driver_info),
                ..DeviceInfo::default()
            }
        })
        .collect();
    if found.is_empty() {
        return Err(Unavailable::setup(
            "wgpu finds no adapter: install a Vulkan driver (Mesa's software Vulkan will do)",
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn processes_share_the_processors_memory_alone() {
        let all = probe(DeviceId::Cpu).expect("a processor");
        let (total, free) = (all.total_bytes, all.free_bytes);
        let third = all.clone().shared_by(3);
        let divided = |bytes: Option<Bytes>| bytes.map(|bytes| Bytes(bytes.0 / 3));
        assert_eq!(
            (third.total_bytes, third.free_bytes),
            (divided(total), divided(free))
        );
        let gpu = DeviceInfo {
            device: DeviceId::Cuda(0),
            ..all
        };
        assert_eq!(gpu.clone().shared_by(3), gpu);
    }

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
