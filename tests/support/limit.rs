//! Training in less memory than it has taken so far.

use std::{fs, process::Command};

/// Bytes of each of the activations of [`LARGE`], rounded up.
pub const ACTIVATION: u64 = 41_000_000;

/// A model whose activations are most of what a step takes.
pub const LARGE: &str = "
[data]
synthetic = { shape = [4], target = { classes = 8 }, samples = 80000 }
[model]
layers = [
    { linear = { out = 128 } }, 'relu', { linear = { out = 128 } }, 'relu',
    { linear = { out = 128 } }, 'relu', { linear = { out = 8 } },
]
[train]
batch = 80000
eval_split = 0
steps = 3
";

/// Limits the address space of a process to so many bytes less than the most that it has taken.
pub fn limit_below_peak(pid: &str, bytes: u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let peak = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let limit = peak.expect("a peak") * 1024 - bytes;
    let limited = Command::new("prlimit")
        .args(["--pid", pid, &format!("--as={limit}:")])
        .status();
    assert!(limited.expect("prlimit").success(), "{pid}");
}
