//! The program on a stand-in for NVIDIA's driver that counts and caps memory, and compiles nothing unless it is asked to.
//! `CUDA_STANDIN` names its folder, with `run.sh` in it; elsewhere its tests are skipped.

use std::{
    env, fs,
    io::BufRead,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

/// What `run.toml` says: no product of matrices, for which cubecl tries tens of kernels where a cache is empty.
const CONFIG: &str = r#"
[data]
synthetic = { shape = [64], target = { values = 64 }, samples = 16384 }

[model]
layers = [{ repeat = { times = 6, layers = ["layer_norm", "gelu"] } }]

[train]
steps = 2
batch = 8192
eval_split = 0.0
optimizer = "adam"
learning_rate = 0.001
"#;

/// A folder to run in, with the stand-in.
pub struct Standin {
    script: PathBuf,
    folder: TempDir,
}

impl Standin {
    /// Nothing where there is no stand-in.
    pub fn new() -> Option<Self> {
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

    /// A file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program on the stand-in, with kernels kept in `kept`.
    pub fn rekindle(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        let program = assert_cmd::cargo::cargo_bin("rekindle");
        self.command(&program, arguments, settings)
    }

    /// As [`rekindle`](Self::rekindle), of another program that starts it.
    pub fn command(
        &self,
        program: &Path,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Command {
        let mut command = Command::new(&self.script);
        command
            .arg(program)
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

    /// `rekindle train run.toml` on the stand-in.
    pub fn train(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        let train = ["train", "run.toml", "--device", "cuda"];
        self.rekindle(&[&train, arguments].concat(), settings)
    }
}

/// Starts a command whose output is read while it runs.
pub fn spawned(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Reads lines to the first that says `words`.
pub fn until(said: &mut impl BufRead, words: &str) -> String {
    let mut all = String::new();
    loop {
        let before = all.len();
        assert_ne!(said.read_line(&mut all).expect("text"), 0, "ended: {all}");
        if all[before..].contains(words) {
            return all;
        }
    }
}

/// Runs a command to its end, which must be a good one. What it said, in one line.
#[track_caller]
pub fn done(mut command: Command) -> String {
    let output = command.output().expect("started");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    said
}

/// What a command said, in one line.
pub fn messages(output: &Output) -> String {
    one_line(&String::from_utf8_lossy(&output.stderr))
}

/// Messages without their line breaks, and without what marks that a paragraph goes on.
pub fn one_line(said: &str) -> String {
    let words = said.split_whitespace().filter(|word| *word != "|");
    words.collect::<Vec<_>>().join(" ")
}
