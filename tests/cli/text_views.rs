//! What the commands show to people: in 80 columns, without escape codes in a pipe, and in words that snapshots hold.

use std::{fs, path::Path, process::Output};

use assert_cmd::Command;
use tempfile::TempDir;

/// Five equal stages, and one that is twice as large; no times or sizes of any machine.
const CHAIN: &str = r#"{"format": "rekindle-chain/1", "input_bytes": 4194304, "fixed_bytes": 8388608,
 "stages": [
  {"name": "conv2d 0", "forward_s": 0.002, "backward_s": 0.004, "output_bytes": 8388608, "saved_bytes": 16777216,
   "forward_temp_bytes": 1048576, "backward_temp_bytes": 2097152, "param_bytes": 1048576, "grad_bytes": 1048576},
  {"name": "residual 1", "forward_s": 0.004, "backward_s": 0.008, "output_bytes": 4194304, "saved_bytes": 25165824,
   "forward_temp_bytes": 1048576, "backward_temp_bytes": 2097152, "param_bytes": 1048576, "grad_bytes": 1048576},
  {"name": "residual 2", "forward_s": 0.004, "backward_s": 0.008, "output_bytes": 4194304, "saved_bytes": 25165824,
   "forward_temp_bytes": 1048576, "backward_temp_bytes": 2097152, "param_bytes": 1048576, "grad_bytes": 1048576},
  {"name": "residual 3", "forward_s": 0.004, "backward_s": 0.008, "output_bytes": 4194304, "saved_bytes": 25165824,
   "forward_temp_bytes": 1048576, "backward_temp_bytes": 2097152, "param_bytes": 1048576, "grad_bytes": 1048576},
  {"name": "residual 4", "forward_s": 0.004, "backward_s": 0.008, "output_bytes": 4194304, "saved_bytes": 25165824,
   "forward_temp_bytes": 1048576, "backward_temp_bytes": 2097152, "param_bytes": 1048576, "grad_bytes": 1048576},
  {"name": "flatten + linear 5", "forward_s": 0.001, "backward_s": 0.002, "output_bytes": 1024, "saved_bytes": 1024,
   "forward_temp_bytes": 0, "backward_temp_bytes": 1048576, "param_bytes": 2097152, "grad_bytes": 2097152}],
 "loss": {"forward_s": 0.0001, "backward_s": 0.0002, "forward_temp_bytes": 2048, "backward_temp_bytes": 2048},
 "optimizer": {"step_s": 0.003, "temp_bytes": 2097152, "state_bytes": 14680064}}"#;

/// Runs a command as in a pipe; `COLUMNS` is what a shell says of its terminal.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::cargo_bin("rekindle")
        .expect("built")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("REKINDLE_CACHE", folder.join("cache"))
        .env("COLUMNS", "80")
        // What kernels hold for each thread is counted.
        .env("RAYON_NUM_THREADS", "2")
        .env_remove("NO_COLOR")
        .args(arguments)
        .output()
        .expect("started")
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

fn chain_file(folder: &TempDir) -> String {
    let path = folder.path().join("chain.json");
    fs::write(&path, CHAIN).expect("written");
    path.to_str().expect("a path of text").to_owned()
}

/// A word with a nine for each row of digits, and MiB for KiB.
fn nines(word: &str) -> String {
    let word = word.replace("KiB", "MiB");
    let mut kept: Vec<char> = word
        .replace(|c: char| c.is_ascii_digit(), "9")
        .chars()
        .collect();
    kept.dedup_by(|next, last| *next == '9' && *last == '9');
    kept.into_iter().collect()
}

/// The words of the text, with nines in the lines that `varies` tells of: what kernels and the process itself hold differs
/// from one machine and one process to the next, and so does all that a budget leaves beside them, the moment of the peak, at
/// which a part may take nothing, and widths of columns.
fn masked(text: &str, varies: impl Fn(&str) -> bool) -> String {
    let lines = text.lines().map(|line| {
        let shown = |word: &str| match varies(line) {
            true => nines(word),
            false => word.to_owned(),
        };
        let words: Vec<String> = line.split_whitespace().map(shown).collect();
        words.join(" ").replace(" 9 B ", " 9.9 MiB ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Commands are left whole: they are copied.
fn assert_fits_80_columns(text: &str) {
    let told = text.lines().filter(|line| !line.starts_with("  rekindle "));
    for line in told {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_plan_explained() {
    let folder = TempDir::new().expect("a folder");
    let chain = chain_file(&folder);
    let arguments = ["plan", "--chain", &chain, "--budget", "80MiB", "--explain"];
    let text = text(folder.path(), &arguments);
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn a_frontier() {
    let folder = TempDir::new().expect("a folder");
    let chain = chain_file(&folder);
    let arguments = ["plan", "--chain", &chain, "--frontier"];
    let text = text(folder.path(), &arguments);
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn an_estimate() {
    let folder = TempDir::new().expect("a folder");
    let arguments = ["estimate", "configs/deep-linear.toml", "--device", "cpu"];
    let text = text(folder.path(), &arguments);
    assert_fits_80_columns(&text);
    // The parameters are the same everywhere.
    let varies = |line: &str| !line.contains("parameters in");
    insta::assert_snapshot!(masked(&text, varies));
}

#[test]
fn the_largest_sizes() {
    let folder = TempDir::new().expect("a folder");
    let max = ["max", "--device", "cpu"];
    // Few layers: a search that takes too long says so.
    let batch = [
        "configs/deep-linear.toml",
        "--depth",
        "2",
        "--vary",
        "batch",
        "--budget",
        "40MiB",
    ];
    let depth = [
        "configs/mlp-5000.toml",
        "--vary",
        "depth",
        "--budget",
        "1GiB",
    ];
    // A budget holds a few more or fewer samples, but not another of the layers of 5000.
    type Varies = fn(&str) -> bool;
    let samples: Varies = |_| true;
    let sizes: Varies = |line| line.contains(" MiB");
    for (name, question, varies) in [("batch", &batch[..], samples), ("depth", &depth, sizes)] {
        let text = text(folder.path(), &[&max[..], question].concat());
        assert_fits_80_columns(&text);
        insta::assert_snapshot!(format!("the_largest_{name}"), masked(&text, varies));
    }
}

#[test]
fn a_pipe_gets_no_escape_codes() {
    let folder = TempDir::new().expect("a folder");
    let small = "configs/parity/mlp.toml";
    for arguments in [
        &["train", small, "--device", "cpu", "--steps", "4"][..],
        &["train", "nowhere.toml"],
    ] {
        let output = run(folder.path(), arguments);
        for written in [&output.stdout, &output.stderr] {
            assert!(
                !written.contains(&0x1b),
                "{arguments:?}: {}",
                String::from_utf8_lossy(written)
            );
        }
    }
}
