//! Rekindle builds from the package registry alone: nothing in its graph downloads while it builds.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// Crates that fetch over a network. None may serve a build script.
const CLIENTS: [&str; 9] = [
    "attohttpc",
    "curl",
    "hyper",
    "isahc",
    "minreq",
    "reqwest",
    "surf",
    "ureq",
    "xz2",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(["--features", "cuda,wgpu,flex"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

/// The name in a package's id, and the ids that its build script needs.
#[test]
fn no_build_script_needs_a_network_client() {
    let metadata = metadata();
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let name_of = |id: &Value| {
        let packages = metadata["packages"].as_array().expect("packages");
        let package = packages.iter().find(|package| package["id"] == *id);
        package.expect("resolved")["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    // All that build scripts need, and what that needs.
    let mut open: Vec<&Value> = nodes
        .iter()
        .flat_map(|node| node["deps"].as_array().expect("dependencies"))
        .filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array().expect("kinds");
            kinds.iter().any(|kind| kind["kind"] == "build")
        })
        .map(|dependency| &dependency["pkg"])
        .collect();
    assert!(!open.is_empty(), "some crate has a build script");
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.as_str().expect("an id")) {
            continue;
        }
        let name = name_of(id);
        assert!(
            !CLIENTS.contains(&name.as_str()),
            "a build script needs {name}"
        );
        let node = nodes
            .iter()
            .find(|node| node["id"] == *id)
            .expect("resolved");
        let needs = node["deps"].as_array().expect("dependencies").iter();
        open.extend(
            needs
                .filter(|dependency| {
                    let kinds = dependency["dep_kinds"].as_array().expect("kinds");
                    kinds.iter().any(|kind| kind["kind"] != "dev")
                })
                .map(|dependency| &dependency["pkg"]),
        );
    }
}

/// cubecl's own crate of this name downloads LLVM.
#[test]
fn the_llvm_compiler_is_the_stand_in() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let mut llvm = packages
        .iter()
        .filter(|package| package["name"] == "cubecl-llvm");
    let ours = llvm.next().expect("part of the CUDA backend");
    assert!(ours["source"].is_null(), "{}", ours["source"]);
    assert!(llvm.next().is_none());
    let tracel = |package: &&Value| {
        let name = package["name"].as_str().unwrap_or_default();
        name.starts_with("tracel-llvm") || name.starts_with("llvm-sys")
    };
    assert!(!packages.iter().any(|package| tracel(&package)));
}
