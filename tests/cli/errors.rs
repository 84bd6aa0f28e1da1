//! What the binary says and how it exits where a config, an argument or a data file is wrong.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A small config that is right: each test breaks one thing.
const CONFIG: &str = r#"[data]
synthetic = { shape = [1, 8, 8], target = { classes = 3 }, samples = 64 }

[model]
layers = [
  { conv2d = { out = 2, kernel = 3 } },
  "relu",
  "flatten",
  { linear = { out = 3 } },
]

[train]
steps = 2
batch = 4
"#;

struct Refusal {
    code: Option<i32>,
    message: String,
}

/// Runs a command that must fail, in a folder of its own.
fn refused(folder: &Path, arguments: &[&str]) -> Refusal {
    let output = Command::cargo_bin("rekindle")
        .expect("built")
        .env("REKINDLE_CACHE", "")
        .current_dir(folder)
        .args(arguments)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("started");
    let message = String::from_utf8(output.stderr).expect("text");
    assert!(
        !output.status.success(),
        "{arguments:?} went well: {message}"
    );
    assert_eq!(output.stdout, b"", "nothing goes to standard output");
    assert!(!message.contains("bug"), "{message}");
    Refusal {
        code: output.status.code(),
        message,
    }
}

/// Writes a config and trains with it.
fn train(config: &str, arguments: &[&str]) -> Refusal {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), config).expect("written");
    let all = [&["train", "run.toml", "--device", "cpu"], arguments].concat();
    refused(folder.path(), &all)
}

fn broken(from: &str, to: &str) -> Refusal {
    assert!(CONFIG.contains(from), "{from}");
    train(&CONFIG.replacen(from, to, 1), &[])
}

fn assert_says(refusal: &Refusal, code: i32, words: &[&str]) {
    assert_eq!(refusal.code, Some(code), "{}", refusal.message);
    // Reports are wrapped: look at the words, not at the lines.
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = flat(&refusal.message);
    for word in words {
        assert!(
            message.contains(&flat(word)),
            "{word:?} in {}",
            refusal.message
        );
    }
}

#[test]
fn an_unknown_key_is_shown_with_its_line() {
    let refusal = broken("batch = 4", "bacth = 4");
    assert_says(
        &refusal,
        2,
        &[
            "unknown key `bacth`",
            "run.toml:14:1",
            "14 | bacth = 4",
            "did you mean `batch`?",
        ],
    );
    assert!(
        refusal.message.is_ascii(),
        "no line drawing in a pipe: {}",
        refusal.message
    );
}

#[test]
fn a_wrong_type_an_unknown_layer_and_broken_toml_are_shown_with_their_line() {
    assert_says(
        &broken("steps = 2", "steps = \"two\""),
        2,
        &[
            "invalid type: string \"two\", expected a whole number",
            "run.toml:13:9",
        ],
    );
    assert_says(
        &broken("\"relu\"", "\"rleu\""),
        2,
        &[
            "unknown name `rleu`",
            "run.toml:7:3",
            "did you mean `relu`?",
        ],
    );
    assert_says(
        &broken("[train]", "[train"),
        2,
        &["unclosed table", "run.toml:12:7"],
    );
}

/// What a command that must fail writes to standard output under `--json`.
fn error_document(code: i32, arguments: &[&str], config: &str) -> Value {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), config).expect("written");
    let output = Command::cargo_bin("rekindle")
        .expect("built")
        .env("REKINDLE_CACHE", "")
        .current_dir(folder.path())
        .args(arguments)
        .arg("--json")
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert_ne!(output.stderr, b"", "people are told as well");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

#[test]
fn under_json_an_error_is_a_document() {
    let misspelt = CONFIG.replace("batch = 4", "bacth = 4");
    assert_eq!(
        error_document(2, &["estimate", "run.toml"], &misspelt),
        json!({
            "format": "rekindle-error/1",
            "error": "unknown key `bacth`",
            "exit_code": 2,
            "help": "did you mean `batch`?",
            "place": { "file": "run.toml", "line": 14, "column": 1 },
        })
    );
    let missing = error_document(5, &["estimate", "other.toml"], CONFIG);
    assert_eq!(missing["exit_code"], 5);
    let message = missing["error"].as_str().expect("a message");
    assert!(message.contains("other.toml"), "{message}");
    assert_eq!(missing["place"], Value::Null);

    let usage = error_document(2, &["estimate", "run.toml", "--bugdet", "1GiB"], CONFIG);
    assert_eq!(usage["error"], "unexpected argument '--bugdet' found");
    let help = usage["help"].as_str().expect("help");
    assert!(help.contains("--budget"), "{help}");

    // A document of another kind says it already: there is one only.
    let infeasible = error_document(
        3,
        &["plan", "run.toml", "--device", "cpu", "--budget", "1KiB"],
        CONFIG,
    );
    assert_eq!(infeasible["format"], "rekindle-infeasible/1");
}

#[test]
fn a_layer_that_cannot_take_its_input_is_shown_with_both_shapes() {
    assert_says(
        &broken("kernel = 3", "kernel = 9"),
        2,
        &[
            "layer 0 (conv2d) got [1, 8, 8]",
            "[9, 9] does not fit",
            "run.toml:6:3",
        ],
    );
    assert_says(
        &broken("out = 3 }", "out = 2 }"),
        2,
        &["the model gives [2]", "3 classes", "run.toml:9:3"],
    );
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for (line, words) in [
        ("steps = 0", "`steps` must be at least 1"),
        (
            "learning_rate = nan",
            "`learning_rate` must be a number above 0",
        ),
        (
            "learning_rate = -0.1",
            "`learning_rate` must be a number above 0",
        ),
        ("betas = [0.9, 2]", "`betas` must be at least 0 and below 1"),
    ] {
        assert_says(&broken("steps = 2", line), 2, &[words, "run.toml:13:"]);
    }
    assert_says(
        &broken("steps = 2", "eval_split = 1.0"),
        2,
        &[
            "`eval_split` must be at least 0 and below 1",
            "run.toml:13:14",
        ],
    );
    let few = CONFIG
        .replace("samples = 64", "samples = 3")
        .replace("batch = 4", "batch = 4\neval_split = 0");
    assert_says(
        &train(&few, &[]),
        2,
        &["a batch of 4 samples is larger than the data set, which has 3"],
    );
}

#[test]
fn bad_arguments_exit_like_bad_usage() {
    for (arguments, words) in [
        (&["--budget", "512"][..], "has no unit"),
        (&["--budget", "0MiB"], "0"),
        (&["--budget", "-5MiB"], "-5MiB"),
        (
            &["--segments", "2", "--budget", "1GiB"],
            "cannot be used with",
        ),
        (&["--batch", "0"], "`batch` must be at least 1"),
        (&["--steps", "0"], "`steps` must be at least 1"),
        (&["--segments", "0"], "0 segments"),
        (&["--segments", "9"], "cannot cut 3 stages into 9 segments"),
        (&["--planner", "best"], "unknown planner `best`"),
        (&["--dtype", "fp16"], "expected f32, f16 or bf16"),
        (&["--data", "random"], "synthetic"),
        (&["--data-dir", "x"], "synthetic data has no files"),
        (&["--no-such-flag"], "unexpected argument"),
    ] {
        assert_says(&train(CONFIG, arguments), 2, &[words]);
    }
}

#[test]
fn devices_that_are_not_there_are_named() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), CONFIG).expect("written");
    let on = |device| refused(folder.path(), &["train", "run.toml", "--device", device]);
    assert_says(&on("tpu"), 2, &["unknown device `tpu`", "cuda"]);
    assert_says(&on("cuda:99"), 2, &["cuda:99 cannot be used"]);
    if !cfg!(feature = "wgpu") {
        assert_says(&on("wgpu"), 2, &["not built in", "--features wgpu"]);
    }
}

#[test]
fn missing_files_are_the_systems_fault() {
    let folder = TempDir::new().expect("a folder");
    assert_says(
        &refused(folder.path(), &["train", "nowhere.toml"]),
        5,
        &["nowhere.toml"],
    );

    let images = |kind: &str| {
        format!(
            "[data]\n{kind} = {{ folder = \"images\" }}\n\
             [model]\nlayers = [\"flatten\", {{ linear = {{ out = 10 }} }}]\n"
        )
    };
    assert_says(
        &train(&images("mnist"), &[]),
        5,
        &[
            "images: no such folder",
            "`folder` in [data]",
            "--data-dir",
            "--data synthetic",
        ],
    );
    assert_says(
        &train(&images("cifar10"), &["--data-dir", "elsewhere"]),
        5,
        &["elsewhere: no such folder", "cifar"],
    );
}

#[test]
fn wrong_files_are_the_contents_fault() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path();
    let write = |name: &str, bytes: &[u8]| fs::write(path.join(name), bytes).expect("written");
    write(
        "run.toml",
        b"[data]\nmnist = { folder = \".\" }\n\
          [model]\nlayers = [\"flatten\", { linear = { out = 10 } }]\n[train]\nbatch = 1\neval_split = 0\n",
    );
    let run = || refused(path, &["train", "run.toml", "--device", "cpu"]);

    write("train-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 3]);
    write(
        "train-images-idx3-ubyte",
        &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28, 7],
    );
    assert_says(
        &run(),
        2,
        &["holds 17 bytes where 800 are expected", "cut short"],
    );

    write(
        "train-images-idx3-ubyte",
        &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 7],
    );
    assert_says(
        &run(),
        2,
        &[
            "a sample of the data is [1, 1, 2], but the model takes [1, 28, 28]",
            "input = [1, 1, 2]",
        ],
    );

    write("train-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 99]);
    assert_says(&run(), 2, &["label 99 of sample 0"]);
}

#[test]
fn sizes_that_nothing_has_are_refused_before_anything_is_read() {
    assert_says(
        &broken("samples = 64", "samples = 9223372036854775807"),
        2,
        &[
            "the number of synthetic samples is 9223372036854775807",
            "from 1 to 2147483647",
        ],
    );
    let nested = "{ repeat = { times = 1000, layers = [{ repeat = { times = 1000, layers = [\"relu\"] } }] } },\n  \"relu\"";
    assert_says(
        &broken("\"relu\"", nested),
        2,
        &["a model has at most 20000 layers here", "run.toml:7:"],
    );
}

/// What is read and is no text is wrong; the system refused nothing.
#[test]
fn files_that_are_no_text_are_the_contents_fault() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), CONFIG).expect("written");
    fs::write(folder.path().join("bytes"), b"{\"format\": \"\xff\"}").expect("written");
    for arguments in [
        &["estimate", "bytes"][..],
        &["plan", "--chain", "bytes", "--budget", "1MiB"],
        &["train", "run.toml", "--device", "cpu", "--plan", "bytes"],
    ] {
        let refusal = refused(folder.path(), arguments);
        assert_says(
            &refusal,
            2,
            &["bytes is not UTF-8 text (byte 12)"].map(|words| {
                if arguments[0] == "estimate" {
                    "bytes is not UTF-8 text"
                } else {
                    words
                }
            }),
        );
    }
}

/// Names from files are text: they cannot clear the screen or name the window.
#[test]
fn control_characters_do_not_reach_the_terminal() {
    let folder = TempDir::new().expect("a folder");
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write(
        "chain.json",
        r#"{"format": "rekindle-chain/1", "input_bytes": 3, "stages": [{"name": "\u001b[2J", "forward_s": 7,
            "backward_s": 14, "output_bytes": 5, "saved_bytes": 11, "forward_temp_bytes": 2, "backward_temp_bytes": 3}],
            "loss": {"forward_s": 0, "backward_s": 0, "forward_temp_bytes": 0, "backward_temp_bytes": 1}}"#,
    );
    write(
        "key.toml",
        &CONFIG.replace("batch = 4", "\"\\u001b[2J\" = 4"),
    );
    write("raw.toml", &CONFIG.replace("batch = 4", "\u{1b}[2J = 4"));
    for (arguments, words) in [
        (
            &["plan", "--chain", "chain.json", "--budget", "1MiB"][..],
            "control character",
        ),
        (&["estimate", "key.toml"], "unknown key"),
        (&["estimate", "raw.toml"], "raw.toml:14:"),
        (&["estimate", "\u{1b}[2J.toml"], "No such file"),
    ] {
        let refusal = refused(folder.path(), arguments);
        assert!(refusal.message.contains(words), "{}", refusal.message);
        let commands = |character: char| character.is_control() && character != '\n';
        assert!(!refusal.message.contains(commands), "{:?}", refusal.message);
    }
}

/// The batch alone is a gibibyte.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_will_not_give_has_a_code_of_its_own() {
    let folder = TempDir::new().expect("a folder");
    let config = CONFIG
        .replace("shape = [1, 8, 8]", "shape = [1, 64, 64]")
        .replace("samples = 64", "samples = 65536")
        .replace("batch = 4", "batch = 65536\neval_split = 0");
    fs::write(folder.path().join("run.toml"), config).expect("written");
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 800000; exec \"$0\" train run.toml --device cpu --planner none",
        ])
        .arg(assert_cmd::cargo::cargo_bin("rekindle"))
        .env("REKINDLE_CACHE", "")
        .env("RAYON_NUM_THREADS", "2")
        .current_dir(folder.path())
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("memory"), "{said}");
}

/// From where the system can load the program at all: below, it ends the process with SIGSEGV.
#[cfg(target_os = "linux")]
#[test]
fn too_little_address_space_is_told() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), CONFIG).expect("written");
    let within = |kibibytes: u64, threads: &str, arguments: &str| {
        std::process::Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -v {kibibytes}; exec \"$0\" {arguments}"),
            ])
            .arg(assert_cmd::cargo::cargo_bin("rekindle"))
            .env("REKINDLE_CACHE", "")
            .env("RAYON_NUM_THREADS", threads)
            .env_remove("RUST_BACKTRACE")
            .current_dir(folder.path())
            .output()
            .expect("started")
    };
    let (mut fails, mut loads) = (0, 4 << 20);
    while loads - fails > 512 {
        let middle = u64::midpoint(fails, loads);
        match within(middle, "2", "--version").status.success() {
            true => loads = middle,
            false => fails = middle,
        }
    }
    for (threads, step) in [("2", 500), ("12", 2000)] {
        let mut told = 0;
        for more in 0.. {
            let kibibytes = loads + more * step;
            let output = within(kibibytes, threads, "train run.toml --device cpu");
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0) => break,
                // The loader's own word, in a shell's code, where a library does not fit.
                Some(127) => assert!(said.contains("shared"), "{said}"),
                Some(4) => {
                    assert!(said.contains("memory"), "{said}");
                    told += 1;
                }
                code => panic!("{code:?} within {kibibytes} KiB: {said}"),
            }
            assert!(!said.contains("bug"), "{said}");
        }
        assert!(told > 0, "loads within {loads} KiB, and runs");
    }
}

#[test]
fn a_text_shorter_than_its_window_is_named() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("a.txt"), "short").expect("written");
    fs::write(
        folder.path().join("run.toml"),
        "[data]\ntext = { files = [\"a.txt\"], window = 64 }\n\
         [model]\nlayers = [{ embedding = { dim = 4 } }, \"flatten\", { linear = { out = 256 } }]\n",
    )
    .expect("written");
    let refusal = refused(folder.path(), &["train", "run.toml", "--device", "cpu"]);
    assert_says(
        &refusal,
        2,
        &[
            "a window of 64 bytes",
            "a.txt, has 5 bytes",
            "smaller `window`",
        ],
    );
}

#[test]
fn estimate_counts_the_keras_model_exactly() {
    let output = Command::cargo_bin("rekindle")
        .expect("built")
        .env("REKINDLE_CACHE", "")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(["estimate", "configs/keras-conv.toml", "--json"])
        .output()
        .expect("started");
    let estimate: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(estimate["param_count"], 206_538_153u64);
}
