//! `rekindle devices`: lists this machine's devices.

use rekindle_train::device::{DeviceId, DeviceInfo, Unavailable, cuda_parts, probe_kind};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    args::DevicesArgs,
    failure::Outcome,
    output,
    table::{self, Cell},
    terminal,
};

/// Format tag of [`DeviceList`].
pub const DEVICES_FORMAT: &str = "rekindle-devices/1";

/// What `devices --json` writes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeviceList {
    format: &'static str,
    /// The devices that answer.
    devices: Vec<DeviceInfo>,
    /// Kinds of devices that do not answer.
    unavailable: Vec<Missing>,
    /// The parts of CUDA.
    cuda: Cuda,
}

/// A kind of device that does not answer.
#[derive(Debug, Serialize, JsonSchema)]
struct Missing {
    /// The kind, by the cargo feature that builds it in.
    kind: &'static str,
    /// Why it does not answer.
    #[schemars(with = "String")]
    reason: Unavailable,
}

/// What CUDA is made of, as it was found.
#[derive(Debug, Serialize, JsonSchema)]
struct Cuda {
    /// Release of NVIDIA's driver and the newest CUDA that it knows; `null` where there is none.
    driver: Option<String>,
    /// Version and file of the compiler of kernels; `null` where there is none.
    nvrtc: Option<String>,
    /// Version and folder of the headers that kernels need; `null` where there are none.
    headers: Option<String>,
}

/// Lists available devices, and why the others are unavailable.
pub fn run(args: &DevicesArgs) -> Outcome {
    let (mut devices, mut unavailable) = (Vec::new(), Vec::new());
    for kind in [DeviceId::Cpu, DeviceId::Cuda(0), DeviceId::Wgpu(0)] {
        match probe_kind(kind) {
            Ok(found) => devices.extend(found),
            Err(reason) => unavailable.push(Missing {
                kind: kind.feature(),
                reason,
            }),
        }
    }
    if args.answer.json {
        let [driver, nvrtc, headers] = cuda_parts().map(|(_, found)| found.ok());
        return output::json(&DeviceList {
            format: DEVICES_FORMAT,
            devices,
            unavailable,
            cuda: Cuda {
                driver,
                nvrtc,
                headers,
            },
        });
    }
    let mut table = table::table("device|name|memory|free|", 2..4);
    for info in &devices {
        table.add_row([
            Cell::from(info.device),
            Cell::from(&info.name),
            Cell::bytes(info.total_bytes),
            Cell::bytes(info.free_bytes),
            Cell::from(&info.detail),
        ]);
    }
    let mut text = format!("{table}\n");
    let mut say = |line: String| text += &format!("{}\n", terminal::wrapped(&line, "  "));
    for info in &devices {
        if let Some(problem) = &info.problem {
            say(format!("{} cannot be used: {problem}", info.device));
        }
    }
    let is_gpu = |info: &DeviceInfo| matches!(info.device, DeviceId::Cuda(_));
    if devices.iter().any(is_gpu) {
        for (part, of) in cuda_parts() {
            say(format!("cuda's {part}: {}", of.unwrap_or_else(|why| why)));
        }
    }
    for Missing { kind, reason } in &unavailable {
        say(format!("{kind}: {reason}"));
    }
    output::text(&text)
}
