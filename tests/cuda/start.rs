//! CUDA without a GPU: kernels that are compiled, kept and refused, on a stand-in for NVIDIA's driver.

#![cfg(all(feature = "cuda", unix))]

use std::{
    fs::{self, File},
    io::BufReader,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use serde_json::Value;

use crate::standin::{Standin, done, messages, spawned, until};

/// The sources of the kernels that were compiled since the last call.
fn compiled(standin: &Standin) -> Vec<String> {
    let log = fs::read_to_string(standin.path("log")).unwrap_or_default();
    let _ = fs::remove_file(standin.path("log"));
    // The device's probe may compile one of its own.
    let lines = log.lines().filter(|line| line.contains("] nvrtc "));
    let lines = lines.filter(|line| !line.contains(" trial"));
    let source = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    lines.filter_map(source).collect()
}

/// Starts again where starts have compiled `known`: nothing of that is compiled again. Which of its inputs an operation
/// overwrites differs now and then from start to start, so that a kernel may be new.
fn starts_with_what_is_kept(standin: &Standin, arguments: &[&str], known: &mut Vec<String>) {
    let said = done(standin.train(arguments, &[]));
    let new = compiled(standin);
    let again = new.iter().filter(|one| known.contains(one)).count();
    assert!(again == 0 && new.len() <= 2, "{again} of {new:?}: {said}");
    assert_eq!(said.contains("compiling"), !new.is_empty(), "{said}");
    known.extend(new);
}

/// Where cubecl keeps kernels, for each GPU.
fn databases(standin: &Standin) -> Vec<PathBuf> {
    let folders = fs::read_dir(standin.path("kept/kernels")).expect("kept");
    let folders = folders.flatten();
    folders
        .map(|folder| folder.path().join("kernels.db"))
        .collect()
}

#[test]
fn what_is_compiled_is_kept() {
    kernels_are_kept_beside(&[("STUB_NVML_DRIVER", "999.1")]);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn other_gpus_have_kernels_of_their_own() {
    kernels_are_kept_beside(&[("STUB_CUDA_NAME", "Another GPU"), ("STUB_CUDA_CC", "80")]);
}

/// Another driver, another GPU, or another one of the same name takes nothing over.
fn kernels_are_kept_beside(others: &[(&str, &str)]) {
    let Some(standin) = Standin::new() else {
        return;
    };
    let said = done(standin.train(&[], &[]));
    let mut known = compiled(&standin);
    assert!(
        !known.is_empty() && said.contains("compiling kernels"),
        "{said}"
    );
    assert!(said.contains("cached in"), "{said}");
    starts_with_what_is_kept(&standin, &[], &mut known);

    for &setting in others {
        done(standin.train(&[], &[setting]));
        assert!(!compiled(&standin).is_empty(), "{setting:?}");
    }
    assert_eq!(databases(&standin).len(), 1 + others.len());
    // The first one's are still there.
    starts_with_what_is_kept(&standin, &[], &mut known);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn warnings_of_libraries_are_printed_and_the_rest_of_their_log_if_asked_for() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let said = done(standin.train(&[], &[]));
    assert!(!said.contains("[WARN") && !said.contains("[INFO"), "{said}");
    let said = done(standin.train(&[], &[("RUST_LOG", "cubecl=info")]));
    assert!(said.contains("[INFO cubecl"), "{said}");

    // cubecl ignores a config that it cannot read, with a warning.
    fs::write(standin.path("cubecl.toml"), "compilation = 3\n").expect("written");
    let said = done(standin.train(&[], &[]));
    assert!(said.contains("[WARN cubecl"), "{said}");
    let said = done(standin.train(&["--quiet"], &[]));
    assert!(!said.contains("[WARN"), "{said}");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn two_starts_at_once_share_an_empty_cache() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let both = [(); 2].map(|()| spawned(&mut standin.train(&[], &[])));
    for child in both {
        let ended = child.wait_with_output().expect("ended");
        assert_eq!(ended.status.code(), Some(0), "{}", messages(&ended));
    }
    let both = compiled(&standin).len();
    // What one of them could not keep while the other wrote is compiled again when it is chosen.
    let mut again = 0;
    for _ in 0..2 {
        done(standin.train(&[], &[]));
        again += compiled(&standin).len();
    }
    println!("{both} kernels compiled by both, {again} by the next starts");
    assert!(10 * again < both, "{again} of {both}");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_damaged_or_unwritable_cache_costs_a_compilation() {
    let Some(standin) = Standin::new() else {
        return;
    };
    done(standin.train(&[], &[]));
    let first = compiled(&standin).len();
    let [database] = &databases(&standin)[..] else {
        panic!("one GPU");
    };
    let whole = fs::read(database).expect("kept");
    let wal = database.with_extension("db-wal");
    let cut = |path: &Path| {
        if let Ok(file) = File::options().write(true).open(path) {
            let length = file.metadata().expect("a file").len();
            file.set_len(length / 2).expect("cut");
        }
    };
    let flip = |path: &Path| {
        if let Ok(mut bytes) = fs::read(path) {
            for place in (bytes.len() / 3..bytes.len()).step_by(1000) {
                bytes[place] ^= 0x55;
            }
            fs::write(path, bytes).expect("written");
        }
    };
    let damages: [&dyn Fn(); 3] = [
        &|| fs::write(database, vec![0x55; whole.len()]).expect("written"),
        &|| [database, &wal].into_iter().for_each(|path| cut(path)),
        &|| [database, &wal].into_iter().for_each(|path| flip(path)),
    ];
    // What is tuned anew may choose another kernel, so that one more or less is compiled.
    let compiles_anew = || {
        let again = compiled(&standin);
        assert!(again.len().abs_diff(first) <= first / 10, "{again:?}");
        again
    };
    for damage in damages {
        damage();
        done(standin.train(&[], &[]));
        starts_with_what_is_kept(&standin, &[], &mut compiles_anew());
    }

    // No folder can be made in a file.
    let file = standin.path("file");
    fs::write(&file, "").expect("written");
    let refused = file.to_str().expect("text");
    let said = done(standin.train(&[], &[("REKINDLE_CACHE", refused)]));
    assert!(said.contains("compiled kernels cannot be cached"), "{said}");
    compiles_anew();
    // And the database may be what cannot be written (not for root, whom nothing is refused).
    let mode = |mode| fs::set_permissions(database, fs::Permissions::from_mode(mode));
    mode(0o400).expect("changed");
    done(standin.train(&[], &[]));
    mode(0o600).expect("changed");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_signal_ends_a_compilation_at_once() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // A compiler that takes long for all but the kernel that a device is tried with.
    let slow = standin.path("slow");
    let script = "#!/bin/sh\nfor source; do :; done\n\
                  grep -q 'void trial' \"$source\" && exec g++ -std=c++20 -O1 -w -march=native \"$@\"\nexec sleep 20\n";
    fs::write(&slow, script).expect("written");
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o700)).expect("changed");
    let compiler = slow.to_str().expect("text").to_owned();
    let settings = [
        ("STUB_NVRTC", "cpu"),
        ("STUB_CUDA_CC", "61"),
        ("STUB_CXX", &compiler),
    ];
    let mut command = standin.train(&["-o", "run"], &settings);
    let mut child = spawned(&mut command);
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    until(&mut said, "compiling kernels");
    // The stand-in waits for its compiler by `system`, which ignores SIGINT meanwhile.
    signal(&child, "-TERM");
    // The compiler that sleeps holds the pipe: it has no end.
    let rest = until(&mut said, "interrupted");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{rest}");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_run_that_is_killed_keeps_its_kernels() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let mut child = spawned(&mut standin.train(&["--steps", "1000000"], &[]));
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    until(&mut said, "step 1/");
    signal(&child, "-KILL");
    child.wait().expect("ended");
    let mut known = compiled(&standin);
    assert!(!known.is_empty());
    // The second step compiles kernels of its own.
    starts_with_what_is_kept(&standin, &["--steps", "1"], &mut known);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_kernel_that_does_not_compile_is_told_in_the_compilers_words() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // A compiler that refuses all but the kernel that a device is tried with.
    let refusing = standin.path("refusing");
    let script = "#!/bin/sh\nfor source; do :; done\n\
                  grep -q 'void trial' \"$source\" && exec g++ -std=c++20 -O1 -w -march=native \"$@\"\n\
                  echo 'error: no such kernel' >&2\nexit 1\n";
    fs::write(&refusing, script).expect("written");
    fs::set_permissions(&refusing, fs::Permissions::from_mode(0o700)).expect("changed");
    let settings = [
        ("STUB_NVRTC", "cpu"),
        ("STUB_CUDA_CC", "61"),
        ("STUB_CXX", refusing.to_str().expect("text")),
    ];
    // Its values are drawn on the device and read, so that it fails before the first step.
    let ended = standin.train(&[], &settings).output().expect("started");
    let said = messages(&ended);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let words = "the device failed: a kernel does not compile: error: no such kernel";
    assert!(said.contains(words), "{said}");
    assert!(
        !said.contains("bug") && !said.contains("__global__"),
        "{said}"
    );
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(status.expect("kill").success());
}

#[test]
fn a_gpu_is_shown_with_what_it_is_used_by_or_why_it_is_not() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let devices = |settings: &[(&str, &str)]| {
        let listed = standin.rekindle(&["devices"], settings).output();
        let listed = listed.expect("started");
        assert_eq!(listed.status.code(), Some(0), "{}", messages(&listed));
        String::from_utf8(listed.stdout).expect("text")
    };
    let all = devices(&[]);
    for words in [
        "cuda:0",
        "H100",
        "compute 9.0",
        "PCI 0000:10:00.0",
        "580.159.04",
        "nvrtc",
        "headers",
        "free",
    ] {
        assert!(all.contains(words), "{words}: {all}");
    }

    // CUDA's order decides the numbers; memory is that of the GPU at the address.
    let two = ("STUB_CUDA_DEVICES", "2");
    let addresses = |order: &str| {
        let all = devices(&[two, ("CUDA_DEVICE_ORDER", order)]);
        ["cuda:0", "cuda:1"].map(|number| {
            let line = all.lines().find(|line| line.contains(number));
            let (_, address) = line.expect("a GPU").split_once("PCI ").expect("an address");
            address[..12].to_owned()
        })
    };
    let by_address = ["0000:10:00.0", "0000:11:00.0"].map(str::to_owned);
    assert_eq!(addresses("PCI_BUS_ID"), by_address);
    let [first, second] = by_address;
    assert_eq!(addresses("FASTEST_FIRST"), [second, first]);

    // PyTorch's wheels bring the runtime's headers, without those of tensor cores and barriers.
    let include = all.lines().find_map(|line| {
        let (_, headers) = line.split_once("headers: ")?;
        headers.split_once(", ")
    });
    let (_, include) = include.expect("a folder");
    let part = standin.path("part");
    fs::create_dir_all(part.join("include")).expect("made");
    for header in fs::read_dir(include).expect("headers").flatten() {
        let name = header.file_name();
        if name != "crt" && name != "cccl" {
            symlink(header.path(), part.join("include").join(name)).expect("linked");
        }
    }
    let lacking = devices(&[("CUDA_PATH", part.to_str().expect("text"))]);
    let lacking = lacking.split_whitespace().collect::<Vec<_>>().join(" ");
    for package in [
        "cuda-crt-13",
        "cuda-cccl-13",
        "nvidia-cuda-crt",
        "nvidia-cuda-cccl",
    ] {
        assert!(lacking.contains(package), "{package}: {lacking}");
    }

    // Without headers no GPU can be used: the processor is, and one line says why.
    let missing = [("CUDA_PATH", "/nonexistent")];
    assert!(devices(&missing).contains("headers"));
    let auto = ["train", "run.toml", "--batch", "64"];
    let said = done(standin.rekindle(&auto, &missing));
    assert!(said.contains("headers") && said.contains("cpu"), "{said}");
}

#[test]
fn what_trains_nothing_opens_no_gpu_and_compiles_nothing() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let profile = ["profile", "run.toml", "--device", "cpu", "-o", "chain.json"];
    done(standin.rekindle(&profile, &[]));
    let estimate = ["estimate", "run.toml", "--json"];
    let on_gpu = ["--device", "cuda"];
    let plan = ["plan", "--chain", "chain.json", "--json"];
    let plan = [&plan[..], &["--budget", "50%-of-device"]].concat();
    let memory = [("STUB_CUDA_TOTAL", "512M"), ("STUB_CUDA_OTHERS", "112M")];
    // What others leave of the GPU's memory.
    let limit = serde_json::json!({"of": "cuda:0", "bytes": 400 << 20});
    for (arguments, place, expected) in [
        (&estimate[..], "/limit", &limit),
        (&[&estimate[..], &on_gpu].concat(), "/limit", &limit),
        (
            &[&plan[..], &on_gpu].concat(),
            "/budget_bytes",
            &(200 << 20).into(),
        ),
    ] {
        let _ = fs::remove_file(standin.path("log"));
        let output = standin.rekindle(arguments, &memory).output();
        let output = output.expect("started");
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer.pointer(place), Some(expected), "{arguments:?}");
        let log = fs::read_to_string(standin.path("log")).expect("a log");
        assert!(log.contains("cuInit"), "{log}");
        for opening in ["cuDevicePrimaryCtxRetain", "cuCtxCreate", "] nvrtc "] {
            assert!(!log.contains(opening), "{arguments:?}: {log}");
        }
    }
}
