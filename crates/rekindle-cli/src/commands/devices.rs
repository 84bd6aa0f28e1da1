//! `rekindle devices`: what this machine can run on.

use rekindle_train::device::{DeviceId, DeviceInfo, cuda_parts, probe_kind};
use serde_json::{Value, json};

use crate::{args::DevicesArgs, failure::Outcome, output, table, terminal};

/// Format tag of the document that `--json` writes.
const FORMAT: &str = "rekindle-devices/1";

/// Lists devices; for what is missing, why.
pub fn run(args: &DevicesArgs) -> Outcome {
    let kinds = [DeviceId::Cpu, DeviceId::Cuda(0), DeviceId::Wgpu(0)];
    let found: Vec<_> = kinds.iter().map(|&kind| (kind, probe_kind(kind))).collect();
    if args.json {
        let devices: Vec<Value> = found
            .iter()
            .flat_map(|(_, devices)| devices.iter().flatten())
            .map(|info| {
                json!({
                    "device": info.device.to_string(),
                    "name": info.name,
                    "total_bytes": info.total_bytes,
                    "free_bytes": info.free_bytes,
                    "detail": info.detail,
                    "problem": info.problem.as_ref().map(ToString::to_string),
                })
            })
            .collect();
        let missing: Vec<Value> = found
            .iter()
            .filter_map(|(kind, devices)| {
                let reason = devices.as_ref().err()?;
                Some(json!({ "kind": kind.feature(), "reason": reason.to_string() }))
            })
            .collect();
        let cuda: serde_json::Map<_, _> = cuda_parts()
            .into_iter()
            .map(|(part, found)| (part.to_owned(), found.ok().into()))
            .collect();
        return output::json(&json!({
            "format": FORMAT,
            "devices": devices,
            "unavailable": missing,
            "cuda": cuda,
        }));
    }
    let mut table = table::table(["device", "name", "memory", "free", ""], 2..4);
    for info in found
        .iter()
        .flat_map(|(_, devices)| devices.iter().flatten())
    {
        table.add_row(row(info));
    }
    let mut text = format!("{table}\n");
    let mut say = |line: &str| {
        text.push_str(&terminal::wrapped(line, "  "));
        text.push('\n');
    };
    for info in found
        .iter()
        .flat_map(|(_, devices)| devices.iter().flatten())
    {
        if let Some(problem) = &info.problem {
            say(&format!("{} cannot be used: {problem}", info.device));
        }
    }
    let has_gpus = found[1].1.is_ok();
    for (part, of) in cuda_parts().into_iter().filter(|_| has_gpus) {
        let of = of.unwrap_or_else(|reason| reason);
        say(&format!("cuda's {part}: {of}"));
    }
    for (kind, devices) in &found {
        if let Err(reason) = devices {
            let name = kind.to_string();
            let name = name.split(':').next().unwrap_or_default();
            say(&format!("{name}: {reason}"));
        }
    }
    output::text(&text)
}

fn row(info: &DeviceInfo) -> [String; 5] {
    let bytes =
        |bytes: Option<rekindle_plan::Bytes>| bytes.map_or("-".into(), |bytes| bytes.to_string());
    [
        info.device.to_string(),
        info.name.clone(),
        bytes(info.total_bytes),
        bytes(info.free_bytes),
        info.detail.clone(),
    ]
}
