//! What messages tell to type: it is typed here, and works.

use std::path::Path;

use crate::support::{folder, messages, rekindle};

const CONFIG: &str = r#"[data]
synthetic = { shape = [64], target = { values = 4 }, samples = 256 }

[model]
layers = [
  { linear = { out = 64 } },
  { repeat = { times = 6, layers = [{ linear = { out = 64 } }, "gelu"] } },
  { linear = { out = 4 } },
]

[train]
steps = 2
batch = 128
eval_split = 0

[run]
device = "cpu"
"#;

/// The arguments that a message names last: a whole command, or options in place of those that were typed.
fn named(typed: &[&str], message: &str) -> Vec<String> {
    let message = message.replace('|', " ");
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let quoted = message.split('`').skip(1).step_by(2);
    let commands = quoted.filter(|part| part.starts_with("rekindle ") || part.starts_with("--"));
    let command = commands.last();
    let command = command.unwrap_or_else(|| panic!("no command in {message}"));
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    if let Some(command) = command.strip_prefix("rekindle ") {
        return words(&command.replace("CONFIG", "run.toml"));
    }
    let options = words(command);
    let mut all = Vec::new();
    let mut before = typed.iter();
    while let Some(word) = before.next() {
        match options.iter().any(|option| option == word) {
            true => drop(before.next()),
            false => all.push((*word).to_owned()),
        }
    }
    all.extend(options);
    all
}

fn run(folder: &Path, arguments: &[&str], code: i32) -> String {
    let output = rekindle(folder, arguments);
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    format!("{said}\n{}", String::from_utf8_lossy(&output.stdout))
}

#[test]
fn commands_that_messages_name_work_when_typed() {
    let folder = folder(CONFIG);
    let folder = folder.path();
    run(folder, &["train", "run.toml", "-o", "done"], 0);
    std::fs::create_dir(folder.join("empty")).expect("made");
    for (typed, code) in [
        (&["train", "run.toml", "--budget", "1kB"][..], 3),
        (&["plan", "run.toml", "--budget", "1kB"], 3),
        (&["estimate", "run.toml", "--budget", "1kB"], 3),
        (
            &["plan", "run.toml", "--planner", "none", "--budget", "1kB"],
            3,
        ),
        (
            &[
                "train",
                "run.toml",
                "--on-nonfinite",
                "skip",
                "--update",
                "in-backward",
            ],
            2,
        ),
        (&["runs", "empty"], 2),
        // Nothing was recomputed.
        (&["train", "run.toml"], 0),
    ] {
        let said = run(folder, typed, code);
        if code == 3 && typed[0] != "estimate" {
            // Measured steps know where they need it.
            let words: Vec<&str> = said.split_whitespace().collect();
            assert!(words.join(" ").contains("It is held "), "{said}");
        }
        let named = named(typed, &said);
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        run(folder, &named, 0);
    }
}

/// The first line of each error is a sentence of at most 100 characters, but for names of files.
#[test]
fn errors_are_short() {
    let folder = folder(CONFIG);
    for typed in [
        &["train", "run.toml", "--segments", "999"][..],
        &[
            "train",
            "run.toml",
            "--update",
            "in-backward",
            "--on-nonfinite",
            "skip",
        ],
        &["train", "--resume", "nowhere"],
        &["report", "."],
        &["runs", "nowhere"],
        &["sweep", "run.toml", "--segments", "99"],
        &["plan", "run.toml", "--ranks", "2"],
    ] {
        let output = rekindle(folder.path(), &[typed, &["--json"]].concat());
        let error: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one document");
        assert_eq!(error["format"], "rekindle-error/1", "{typed:?}");
        for key in ["error", "help"] {
            let length = error[key].as_str().unwrap_or_default().chars().count();
            assert!(length <= 100, "{typed:?}: {length} characters: {error}");
        }
    }
}
