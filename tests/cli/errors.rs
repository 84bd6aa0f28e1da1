//! What the binary says and how it exits where a config, an argument or a data file is wrong. What is wrong in a config is listed
//! in the unit tests of `config`.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{document, folder, rekindle};

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

/// What a command that must fail says.
fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Runs a command that must fail.
fn refused(folder: &Path, arguments: &[&str]) -> Output {
    let output = rekindle(folder, arguments);
    let said = said(&output);
    assert!(!output.status.success(), "{arguments:?} went well: {said}");
    assert_eq!(output.stdout, b"", "nothing goes to standard output");
    assert!(!said.contains("bug"), "{said}");
    output
}

/// Writes a config and trains with it.
fn train(config: &str, arguments: &[&str]) -> Output {
    let all = [&["train", "run.toml", "--device", "cpu"], arguments].concat();
    refused(folder(config).path(), &all)
}

fn broken(from: &str, to: &str) -> Output {
    assert!(CONFIG.contains(from), "{from}");
    train(&CONFIG.replacen(from, to, 1), &[])
}

fn assert_says(refusal: &Output, code: i32, words: &[&str]) {
    let said = said(refusal);
    assert_eq!(refusal.status.code(), Some(code), "{said}");
    // Reports are wrapped: look at the words, not at the lines.
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(flat(&said).contains(&flat(word)), "{word:?} in {said}");
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
    let said = said(&refusal);
    assert!(said.is_ascii(), "no line drawing in a pipe: {said}");
}

/// What a command that must fail writes to standard output under `--json`.
fn error_document(code: i32, arguments: &[&str], config: &str) -> Value {
    let folder = folder(config);
    let output = rekindle(folder.path(), &[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert_ne!(output.stderr, b"", "people are told as well");
    document(&output)
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
}

#[test]
fn bad_arguments_exit_like_bad_usage() {
    for (arguments, words) in [
        (&["--budget", "512"][..], "has no unit"),
        (
            &["--segments", "2", "--budget", "1GiB"],
            "cannot be used with",
        ),
        (&["--batch", "0"], "`batch` must be at least 1"),
        (&["--segments", "9"], "cannot cut 3 stages into 9 segments"),
        (&["--data", "random"], "synthetic"),
        (&["--data-dir", "x"], "synthetic data has no files"),
    ] {
        assert_says(&train(CONFIG, arguments), 2, &[words]);
    }
}

#[test]
fn devices_that_are_not_there_are_named() {
    let folder = folder(CONFIG);
    let on = |device| refused(folder.path(), &["train", "run.toml", "--device", device]);
    assert_says(&on("cuda:99"), 2, &["cuda:99 cannot be used"]);
    if !cfg!(feature = "wgpu") {
        assert_says(&on("wgpu"), 2, &["not built in", "--features wgpu"]);
    }
}

#[test]
fn missing_files_are_the_systems_fault() {
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
}

/// What is read and is no text is wrong; the system refused nothing.
#[test]
fn files_that_are_no_text_are_the_contents_fault() {
    let folder = folder(CONFIG);
    fs::write(folder.path().join("bytes"), b"{\"format\": \"\xff\"}").expect("written");
    for arguments in [
        &["estimate", "bytes"][..],
        &["plan", "--chain", "bytes", "--budget", "1MiB"],
        &["train", "run.toml", "--device", "cpu", "--plan", "bytes"],
    ] {
        let words = match arguments[0] {
            "estimate" => "bytes is not UTF-8 text",
            _ => "bytes is not UTF-8 text (byte 12)",
        };
        assert_says(&refused(folder.path(), arguments), 2, &[words]);
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
        &CONFIG.replace("batch = 4", "\"\\u001b[2J\\r\\u202e\" = 4"),
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
        let said = said(&refused(folder.path(), arguments));
        assert!(said.contains(words), "{said}");
        let commands = |character: char| {
            character.is_control() && character != '\n' || character == '\u{202e}'
        };
        assert!(!said.contains(commands), "{said:?}");
    }
}

#[test]
fn a_file_that_is_read_is_not_replaced() {
    let folder = folder(CONFIG);
    for arguments in [
        &["plan", "run.toml", "--segments", "2", "-o", "run.toml"][..],
        &["profile", "run.toml", "-o", "./run.toml"],
        &["train", "run.toml", "--track", "run.toml"],
    ] {
        let words = ["the command reads this file, and would replace it"];
        assert_says(&refused(folder.path(), arguments), 2, &words);
    }
    let config = fs::read_to_string(folder.path().join("run.toml"));
    assert_eq!(config.expect("text"), CONFIG);
}

/// The batch alone is a gibibyte.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_will_not_give_is_refused_before_it_is_asked_for() {
    let config = CONFIG
        .replace("shape = [1, 8, 8]", "shape = [1, 64, 64]")
        .replace("samples = 64", "samples = 65536")
        .replace("batch = 4", "batch = 65536\neval_split = 0");
    let folder = folder(&config);
    let train = ["train", "run.toml", "--device", "cpu", "--planner", "none"];
    let output = crate::shell::after("ulimit -v 800000", folder.path(), &train).output();
    let output = output.expect("started");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("does not fit"), "{said}");
    assert!(said.contains("try `--batch "), "{said}");
}

/// From where the system can load the program at all: below, it ends the process with SIGSEGV.
#[cfg(target_os = "linux")]
#[test]
fn too_little_address_space_is_told() {
    let folder = folder(CONFIG);
    let within = |kibibytes: u64, threads: &str, arguments: &[&str]| {
        let setup = format!("ulimit -v {kibibytes}");
        let mut command = crate::shell::after(&setup, folder.path(), arguments);
        command.env("RAYON_NUM_THREADS", threads);
        command.output().expect("started")
    };
    let (mut fails, mut loads) = (0, 4 << 20);
    while loads - fails > 512 {
        let middle = u64::midpoint(fails, loads);
        match within(middle, "2", &["--version"]).status.success() {
            true => loads = middle,
            false => fails = middle,
        }
    }
    for (threads, step) in [("2", 1000), ("12", 4000)] {
        let mut told = 0;
        for more in 0.. {
            let kibibytes = loads + more * step;
            let train = ["train", "run.toml", "--device", "cpu"];
            let output = within(kibibytes, threads, &train);
            let said = said(&output);
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

/// A limit of the first thread's stack is none of the command's.
#[cfg(target_os = "linux")]
#[test]
fn a_small_stack_is_enough() {
    let folder = folder(CONFIG);
    let train = ["train", "run.toml", "--device", "cpu", "--segments", "2"];
    let limited = crate::shell::after("ulimit -s 64", folder.path(), &train).output();
    let output = limited.expect("started");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn a_text_shorter_than_its_window_is_named() {
    let config = "[data]\ntext = { files = [\"a.txt\"], window = 64 }\n\
         [model]\nlayers = [{ embedding = { dim = 4 } }, \"flatten\", { linear = { out = 256 } }]\n";
    let folder = folder(config);
    fs::write(folder.path().join("a.txt"), "short").expect("written");
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
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let estimate = ["estimate", "configs/keras-conv.toml", "--json"];
    let estimate = document(&rekindle(project, &estimate));
    assert_eq!(estimate["param_count"], 206_538_153u64);
}
