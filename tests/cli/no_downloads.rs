//! Rekindle builds from the package registry alone: no crate in its graph can download anything.

use std::process::Command;

/// Crates that fetch over a network, and LLVM's, which do so while they build.
const REFUSED: [&str; 12] = [
    "attohttpc",
    "curl",
    "hyper",
    "isahc",
    "llvm-sys",
    "minreq",
    "reqwest",
    "surf",
    "tracel-llvm",
    "tracel-llvm-bundler",
    "tracel-mlir-rs",
    "ureq",
];

#[test]
fn no_crate_in_the_graph_downloads() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline"])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let tree = String::from_utf8(output.stdout).expect("names are UTF-8");
    // A line is "name version (source) (*)".
    let crates = || tree.lines().filter_map(|line| line.split_once(' '));
    let found: Vec<&str> = crates()
        .map(|(name, _)| name)
        .filter(|name| REFUSED.contains(name))
        .collect();
    assert!(found.is_empty(), "{found:?}");
    // The CUDA backend names cubecl's crate of this name; the registry's would download.
    let llvm = crates().find(|(name, _)| *name == "cubecl-llvm");
    let (_, source) = llvm.expect("CUDA is built in by default");
    assert!(source.contains("crates/cubecl-llvm"), "{source}");
}
