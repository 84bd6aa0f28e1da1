//! CUDA without a GPU: on a stand-in for NVIDIA's driver that counts and caps memory, and compiles nothing. `CUDA_STANDIN` names
//! its folder, with `run.sh` in it; elsewhere these tests are skipped.

#![cfg(all(feature = "cuda", unix))]

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

const CONFIG: &str = r#"
[data]
type = "synthetic"
shape = [64]
target = { type = "classes", classes = 4 }
samples = 16384
eval_split = 0.0

[model]
layers = [
  { repeat = 6, layers = [{ type = "linear", out = 64 }, { type = "gelu" }] },
  { type = "linear", out = 4 },
]

[train]
steps = 2
batch = 8192
optimizer = { type = "adam" }
learning_rate = 0.001
"#;

/// What the stand-in's GPU has, and what a context takes of it.
const TOTAL: u64 = 256 << 20;
const CONTEXT: u64 = 64 << 20;

/// The stand-in's table of what processes hold: their number, the size of a place, and the place of this process.
const PLACES: u64 = 256;
const PLACE: u64 = 72;
const OWN_PLACE: u64 = 200;

/// A folder to run in, with the stand-in, or nothing where there is none.
struct Standin {
    script: PathBuf,
    folder: TempDir,
}

impl Standin {
    fn new() -> Option<Self> {
        let Some(standin) = env::var_os("CUDA_STANDIN") else {
            println!("skipped: CUDA_STANDIN names no stand-in for CUDA's driver");
            return None;
        };
        let folder = TempDir::new().expect("a folder");
        fs::write(folder.path().join("run.toml"), CONFIG).expect("written");
        Some(Self {
            script: Path::new(&standin).join("run.sh"),
            folder,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `rekindle train run.toml` on the stand-in, with kernels kept in `kept`.
    fn train(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&self.script);
        command
            .arg(assert_cmd::cargo::cargo_bin("rekindle"))
            .args(["train", "run.toml", "--device", "cuda"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE")
            .env("STUB_NVRTC", "fake")
            .env("STUB_NVRTC_CACHE", self.path("nvrtc"))
            .env("XDG_CACHE_HOME", self.path("xdg"))
            .env("REKINDLE_CACHE", self.path("kept"))
            .env("STUB_CUDA_LOG", self.path("log"))
            .env("STUB_CUDA_STATE", self.path("state"))
            .envs(settings.iter().copied());
        command
    }

    /// Kernels that were compiled since the last call.
    fn compiled(&self) -> usize {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        // The device's probe may compile one of its own.
        let lines = log.lines().filter(|line| line.contains("] nvrtc "));
        lines.filter(|line| !line.contains(" trial")).count()
    }

    /// Holds all of the GPU's memory but this, as another process would.
    fn take_all_but(&self, leave: u64) {
        let state = File::options()
            .read(true)
            .write(true)
            .open(self.path("state"));
        let state = state.expect("a table");
        let number = |at: u64| {
            let mut bytes = [0; 8];
            state.read_exact_at(&mut bytes, at).expect("a place");
            u64::from_le_bytes(bytes)
        };
        let places = (0..PLACES).filter(|place| *place != OWN_PLACE);
        let used: u64 = places.map(|place| number(place * PLACE + 8)).sum();
        let write = |bytes: &[u8], at: u64| state.write_all_at(bytes, at).expect("written");
        let taken = TOTAL - leave - used;
        write(&taken.to_le_bytes(), OWN_PLACE * PLACE + 8);
        write(&std::process::id().to_le_bytes(), OWN_PLACE * PLACE);
    }

    /// Where cubecl keeps kernels.
    fn database(&self) -> PathBuf {
        let folders = fs::read_dir(self.path("kept/kernels")).expect("kept");
        let folder = folders.flatten().next().expect("one GPU");
        folder.path().join("kernels.db")
    }
}

fn output(mut command: Command) -> Output {
    command.output().expect("started")
}

/// What it said, in one line.
#[track_caller]
fn done(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(0), "{said}");
    said
}

#[test]
fn a_second_start_compiles_nothing() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let said = done(&output(standin.train(&[], &[])));
    let first = standin.compiled();
    assert!(first > 0 && said.contains("compiling kernels"), "{said}");
    assert!(said.contains("the next start finds them"), "{said}");
    let said = done(&output(standin.train(&[], &[])));
    assert_eq!(standin.compiled(), 0, "{said}");
    assert!(!said.contains("compiling"), "{said}");

    // Another driver, and another GPU: nothing is taken over.
    for setting in [
        ("STUB_NVML_DRIVER", "999.1"),
        ("STUB_CUDA_NAME", "Another GPU"),
    ] {
        done(&output(standin.train(&[], &[setting])));
        assert_eq!(standin.compiled(), first, "{setting:?}");
    }
    // The first one's are still there.
    done(&output(standin.train(&[], &[])));
    assert_eq!(standin.compiled(), 0);
}

#[test]
fn a_damaged_or_unwritable_cache_costs_a_compilation() {
    let Some(standin) = Standin::new() else {
        return;
    };
    done(&output(standin.train(&[], &[])));
    let first = standin.compiled();
    let database = standin.database();
    let whole = fs::read(&database).expect("kept");
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
        &|| fs::write(&database, vec![0x55; whole.len()]).expect("written"),
        &|| [&database, &wal].into_iter().for_each(|path| cut(path)),
        &|| [&database, &wal].into_iter().for_each(|path| flip(path)),
    ];
    for damage in damages {
        damage();
        done(&output(standin.train(&[], &[])));
        assert_eq!(standin.compiled(), first);
        done(&output(standin.train(&[], &[])));
        assert_eq!(standin.compiled(), 0);
    }

    // No folder can be made in a file.
    let file = standin.path("file");
    fs::write(&file, "").expect("written");
    let refused = file.to_str().expect("text");
    let said = done(&output(standin.train(&[], &[("REKINDLE_CACHE", refused)])));
    assert!(said.contains("compiled kernels cannot be kept"), "{said}");
    assert_eq!(standin.compiled(), first);
    // And the database may be what cannot be written (not for root, whom nothing is refused).
    let mode = |mode| fs::set_permissions(&database, fs::Permissions::from_mode(mode));
    mode(0o400).expect("changed");
    done(&output(standin.train(&[], &[])));
    mode(0o600).expect("changed");
}

#[test]
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

/// Parameters of 56 MiB in 14 layers, with Adam: more than what is copied in two batches would pin.
const LARGE: &str = r#"
[data]
type = "synthetic"
shape = [1024]
target = { type = "classes", classes = 4 }
samples = 64
eval_split = 0.0

[model]
layers = [
  { repeat = 14, layers = [{ type = "linear", out = 1024 }, { type = "gelu" }] },
  { type = "linear", out = 4 },
]

[train]
steps = 1
batch = 32
optimizer = { type = "adam" }
learning_rate = 0.001
"#;

#[test]
fn little_host_memory_is_pinned_while_a_model_is_made_kept_and_read_again() {
    let Some(standin) = Standin::new() else {
        return;
    };
    fs::write(standin.path("run.toml"), LARGE).expect("written");
    let summary = standin.path("summary");
    let settings = [("STUB_CUDA_SUMMARY", summary.to_str().expect("text"))];
    // What `docs/cuda.md` states: tensors of 32 MiB between two clean-ups in pages that are a quarter larger here, one more
    // tensor, and what holds the arguments of kernels.
    let most = (32 + 4) * 5 / 4 + 8;
    // The first makes the model and keeps it, with its optimizer's state; the second reads both.
    for arguments in [&["-o", "run"][..], &["--resume", "run", "--steps", "2"]] {
        let _ = fs::remove_file(&summary);
        done(&output(standin.train(arguments, &settings)));
        let said = fs::read_to_string(&summary).expect("a summary");
        let peaks = said.lines().filter_map(|line| {
            let peak = line.strip_prefix("pinned host bytes: peak ")?;
            peak.split(',').next()?.parse::<u64>().ok()
        });
        let peak = peaks.max().expect("a peak");
        println!("{arguments:?}: {peak} bytes pinned");
        assert!(peak > 8 << 20, "nothing was copied: {said}");
        assert!(peak <= most << 20, "{said}");
    }
}

#[test]
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
    let ended = output(standin.train(&[], &settings));
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let words = "the device failed: a kernel does not compile: error: no such kernel";
    assert!(said.contains(words), "{said}");
    assert!(
        !said.contains("bug") && !said.contains("__global__"),
        "{said}"
    );
}

#[test]
fn memory_that_another_process_takes_is_survived_or_told() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let total = TOTAL.to_string();
    let context = CONTEXT.to_string();
    let settings = [
        ("STUB_CUDA_TOTAL", &*total),
        ("STUB_CUDA_CONTEXT", &*context),
    ];
    let arguments = ["--budget", "120MiB", "--count", "reserved"];
    let run = |leave: u64| {
        let _ = fs::remove_file(standin.path("state"));
        let mut child = spawned(&mut standin.train(&arguments, &settings));
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        until(&mut said, "plan `");
        standin.take_all_but(leave);
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("text");
        let code = child.wait().expect("ended").code();
        (code, rest.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (code, said) = run(20 << 20);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the device could not allocate"), "{said}");
    assert!(said.contains("planned again within"), "{said}");
    let (code, said) = run(1 << 20);
    assert_eq!(code, Some(4), "{said}");
    let words = [
        "out of memory in step 1",
        "no smaller plan fits",
        "reserved with the driver's context",
        "free",
        "hold the most",
    ];
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

fn spawned(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Reads lines to the first that says `words`.
fn until(said: &mut impl BufRead, words: &str) -> String {
    let mut all = String::new();
    loop {
        let before = all.len();
        assert_ne!(said.read_line(&mut all).expect("text"), 0, "ended: {all}");
        if all[before..].contains(words) {
            return all;
        }
    }
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(status.expect("kill").success());
}
