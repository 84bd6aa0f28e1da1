//! `rekindle plan --explain`: where a plan's peak is, and of what.

use std::fmt::Write;

use rekindle::record::Offload;
use rekindle_train::session::Planned;

use crate::{summary, table::several};

/// Writes the parts of the peak, what goes to the host, and how often stages run.
pub(super) fn explain(plan: &Planned, text: &mut String) {
    let (place, parts) = plan.at_peak;
    let _ = writeln!(
        text,
        "\nThe peak of {} comes at action {} of {}, `{}`:",
        plan.peak,
        place + 1,
        plan.actions.len(),
        plan.actions[place]
    );
    let parts = [
        ("parameters, data, optimizer state", parts.fixed),
        ("kept activations", parts.activations),
        ("live segment", parts.graphs),
        ("gradients of activations", parts.gradients),
        ("gradients of parameters", parts.parameter_gradients),
        ("temporaries of the action", parts.temporary),
    ];
    pairs(
        text,
        parts.into_iter().filter(|(_, bytes)| !bytes.is_zero()),
    );
    if let Some(offload) = &plan.offload {
        host_memory(plan, offload, text);
    }
    let mut times: Vec<(usize, usize)> = Vec::new();
    for count in &plan.forwards {
        match times.iter_mut().find(|(times, _)| times == count) {
            Some((_, stages)) => *stages += 1,
            None => times.push((*count, 1)),
        }
    }
    times.sort_unstable();
    let times: Vec<String> = times
        .iter()
        .map(|(times, stages)| format!("{} {times}x", several(*stages, "stage")))
        .collect();
    let _ = writeln!(text, "\nForwards: {}.", times.join(", "));
}

/// Writes what is offloaded, and the plan without offloading.
fn host_memory(plan: &Planned, offload: &Offload, text: &mut String) {
    let _ = writeln!(text, "\nHost memory: {}.", summary::link(&offload.link));
    let Some(on_device) = offload.on_device.filter(|_| offload.tensors > 0) else {
        let _ = writeln!(text, "  no tensor is moved there");
        return;
    };
    let values = [
        ("tensors moved there", offload.tensors.to_string()),
        (
            "freed on the device, at most",
            offload.host_peak_bytes.to_string(),
        ),
        (
            "copied to the host and back",
            format!("{} and {}", offload.to_host_bytes, offload.to_device_bytes),
        ),
        ("time of copying in a step", offload.transfer_s.to_string()),
        (
            "with them: peak, step",
            format!("{}, {}", plan.peak, plan.step),
        ),
        (
            "without: peak, step",
            match on_device.time {
                Some(time) => format!("{}, {time}", on_device.peak),
                None => format!("no plan fits; the smallest budget is {}", on_device.peak),
            },
        ),
    ];
    pairs(text, values);
}

/// Names and values, a line each.
fn pairs<T: ToString>(text: &mut String, pairs: impl IntoIterator<Item = (&'static str, T)>) {
    for (name, value) in pairs {
        let _ = writeln!(text, "  {name:<34} {:>12}", value.to_string());
    }
}
