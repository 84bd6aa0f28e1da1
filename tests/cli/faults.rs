//! Runs that are killed, whose files cannot be written, and folders that two runs want; and that each fault has its test.
#![cfg(unix)]

#[cfg(target_os = "linux")]
use std::process::Command;
use std::{
    fs,
    path::Path,
    process::{Child, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    history::losses,
    shell,
    support::{document, folder, messages, program, rekindle},
};

const MLP: &str = include_str!("../../configs/parity/mlp.toml");

const KILLS: u64 = 10;

/// Of the moments.
const SEED: u64 = 17;

const CONFIG: &str = r#"
[data]
synthetic = { shape = [8], target = { classes = 3 }, samples = 64 }

[model]
layers = [{ linear = { out = 16 } }, "tanh", { dropout = { p = 0.1 } }, { linear = { out = 3 } }]

[train]
steps = 3000
batch = 8
optimizer = "adam"
learning_rate = 1e-2
schedule = "warmup-cosine"
warmup_steps = 10
final_rate = 1e-3
eval_every = 100

[run]
segments = 2
device = "cpu"
snapshot_every = 1
"#;

/// Numbers from 0 to 1: splitmix64.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Starts the run, or goes on with it: both have the config's name, since a killed run may not have kept it.
fn start(folder: &Path) -> Child {
    let begun = folder.join("killed/history.csv").exists();
    let named = if begun { "--resume" } else { "-o" };
    program(folder, &["train", "run.toml", named, "killed"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started")
}

/// Whether a file is there that is not whole yet.
fn is_writing(run: &Path) -> bool {
    let Ok(entries) = fs::read_dir(run) else {
        return false;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .into_iter()
        .any(|name| name.to_string_lossy().starts_with(".rekindle-"))
}

#[test]
fn a_run_that_is_killed_ten_times_ends_with_the_same_weights() {
    let folder = folder(CONFIG);
    let run = folder.path().join("killed");
    // Where a process dies: while it starts, in a step, or (every other time) while a snapshot is written.
    let mut moments = Moments(SEED);
    let began = Instant::now();
    let (mut alive, mut half_written) = (0, 0);
    for kill in 0..KILLS {
        let mut child = start(folder.path());
        if kill % 2 == 0 {
            while !is_writing(&run) && child.try_wait().expect("a child").is_none() {
                sleep(Duration::from_micros(100));
            }
            sleep(Duration::from_secs_f64(0.002 * moments.next()));
        } else {
            sleep(Duration::from_secs_f64(1.2 * moments.next()));
        }
        alive += usize::from(child.try_wait().expect("a child").is_none());
        // Where it is alive: SIGKILL.
        child.kill().expect("killed");
        child.wait().expect("ended");
        half_written += usize::from(is_writing(&run));
    }
    println!(
        "seed {SEED}: {alive} of {KILLS} kills, {half_written} with half a file, {} steps, {:?}",
        losses(&run).len(),
        began.elapsed()
    );
    assert!(alive >= 8 && half_written > 0, "{alive} {half_written}");

    let rarely = CONFIG.replace("snapshot_every = 1", "snapshot_every = 5000");
    fs::write(folder.path().join("run.toml"), rarely).expect("written");
    let train = |how: &str, name: &str| {
        let output = rekindle(folder.path(), &["train", "run.toml", how, name]);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    };
    train("--resume", "killed");
    train("-o", "whole");
    let written = |name: &str| fs::read(folder.path().join(name)).expect("written");
    assert!(written("killed/weights.safetensors") == written("whole/weights.safetensors"));
    assert_eq!(losses(&run), losses(&folder.path().join("whole")));
    assert_eq!(
        written("killed/evaluations.csv"),
        written("whole/evaluations.csv")
    );
    assert!(!is_writing(&run), "what kills left is tidied up");
}

/// Runs the program where no file may grow beyond so many blocks of 512 bytes, as where a disk is full.
fn where_files_end(blocks: u32, folder: &Path, arguments: &[&str]) -> Output {
    let setup = format!("trap '' XFSZ; ulimit -f {blocks}");
    let output = shell::after(&setup, folder, arguments).output();
    output.expect("started")
}

#[test]
fn a_run_whose_disk_is_full_goes_on_and_says_so() {
    let config = format!(
        "{}\n[run]\nsnapshot_every = 1\n",
        MLP.replace("steps = 3", "steps = 200")
    );
    let folder = folder(&config);
    let train = ["train", "run.toml", "--device", "cpu"];
    let new = [&train[..], &["-o", "run"]].concat();
    // Snapshots take 200 kB, 100 lines of the history more than 4 kB.
    let output = where_files_end(8, folder.path(), &new);
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for once in [
        "warning: run/snapshot-1: cannot be written: ",
        "warning: run/history.csv: cannot be written: ",
    ] {
        assert_eq!(said.matches(once).count(), 1, "{once}: {said}");
    }
    assert!(
        said.contains("the run ended, but not all of its folder is written: the snapshot"),
        "{said}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("in 200 steps"), "{text}");
    let short = losses(&folder.path().join("run")).len();
    assert!((20..150).contains(&short), "{short}");

    // There is room again.
    let resume = [&train[..], &["--resume", "run"]].concat();
    let output = rekindle(folder.path(), &resume);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert!(
        messages(&output).contains("starts again"),
        "{}",
        messages(&output)
    );
    let output = rekindle(folder.path(), &[&train[..], &["-o", "whole"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let [run, whole] = ["run", "whole"].map(|name| folder.path().join(name));
    assert_eq!(losses(&run), losses(&whole));
    let weights = |run: &Path| fs::read(run.join("weights.safetensors")).expect("weights");
    assert!(weights(&run) == weights(&whole));
}

/// A disk of so many KiB at `disk` in the folder, for a shell script. `None` where the system does not let us have one.
#[cfg(target_os = "linux")]
fn on_a_small_disk(kib: u64, folder: &Path, script: &str) -> Option<Output> {
    let mount = format!("mkdir -p disk && mount -t tmpfs -o size={kib}k none disk");
    let unshared = |script: &str| {
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(assert_cmd::cargo::cargo_bin("rekindle"))
            .env("REKINDLE_CACHE", "")
            .current_dir(folder)
            .output()
    };
    let allowed = unshared(&mount).is_ok_and(|output| output.status.success());
    if !allowed {
        println!("skipped: no file system can be mounted here");
        return None;
    }
    Some(unshared(&format!("{mount} && {script}")).expect("started"))
}

/// Two snapshots fit, and beside them neither a third nor the weights.
#[test]
#[cfg(target_os = "linux")]
fn old_snapshots_make_room_on_a_full_disk() {
    let config = format!(
        "{}\n[run]\nsnapshot_every = 1\n",
        MLP.replace("steps = 3", "steps = 20")
    );
    let folder = folder(&config);
    let whole = rekindle(folder.path(), &["train", "run.toml", "-o", "whole"]);
    assert_eq!(whole.status.code(), Some(0), "{}", messages(&whole));
    let bytes = |name: &str| {
        fs::metadata(folder.path().join(name))
            .expect("a file")
            .len()
    };
    let snapshot = bytes("whole/snapshot-20");
    let [record, weights] =
        ["run.json", "weights.safetensors"].map(|name| bytes(&format!("whole/{name}")));
    // Small files take a page each.
    let disk = 2 * snapshot + 2 * record + (12 << 10);
    assert!(disk < 2 * snapshot + record + weights, "{record} {weights}");
    let script = "\"$0\" train run.toml -o disk/run && cp -r disk/run kept";
    let Some(output) = on_a_small_disk(disk / 1024, folder.path(), script) else {
        return;
    };
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let once = "warning: the disk is full: removed the snapshot of step ";
    assert_eq!(said.matches(once).count(), 1, "{said}");
    assert!(!said.contains("cannot be written"), "{said}");
    let kept = |name: &str| fs::read(folder.path().join("kept").join(name)).ok();
    assert!(kept("snapshot-20").is_some() && kept("snapshot-19").is_none());
    let weights = fs::read(folder.path().join("whole/weights.safetensors")).expect("weights");
    assert!(kept("weights.safetensors") == Some(weights));
}

#[test]
fn a_second_process_is_told_who_trains_in_the_folder() {
    let folder = folder(MLP);
    let endless = [
        "train",
        "run.toml",
        "--steps",
        "100000000",
        "--device",
        "cpu",
        "-o",
        "run",
    ];
    let mut first = program(folder.path(), &endless)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    while losses_so_far(&folder.path().join("run")) < 2 {
        sleep(Duration::from_millis(5));
    }
    for arguments in [
        &["train", "run.toml", "-o", "run"][..],
        &["train", "run.toml", "--resume", "run"],
    ] {
        let refused = rekindle(folder.path(), arguments);
        let said = messages(&refused);
        assert_eq!(refused.status.code(), Some(5), "{said}");
        let holder = format!("is in use by process {} on ", first.id());
        assert!(
            said.contains(&holder) && said.contains("--steps 100000000"),
            "{said}"
        );
    }
    first.kill().expect("killed");
    first.wait().expect("ended");
    let on = [
        "train", "run.toml", "--resume", "run", "--steps", "3", "--json",
    ];
    assert_eq!(document(&rekindle(folder.path(), &on))["steps"], 3);
}

fn losses_so_far(run: &Path) -> usize {
    fs::read_to_string(run.join("history.csv")).map_or(0, |history| history.lines().count())
}

#[test]
fn a_run_starts_from_weights_and_goes_on_from_them() {
    let folder = folder(MLP);
    let train = |arguments: &[&str]| {
        let output = rekindle(folder.path(), &[&["train"], arguments].concat());
        (output.status.code(), messages(&output))
    };
    let trained = |arguments: &[&str]| assert_eq!(train(arguments).0, Some(0), "{arguments:?}");
    trained(&["run.toml", "-o", "first"]);
    trained(&[
        "run.toml",
        "--weights",
        "first/weights.safetensors",
        "-o",
        "second",
        "--steps",
        "1",
    ]);
    trained(&["--resume", "second", "--steps", "3"]);
    trained(&[
        "run.toml",
        "--weights",
        "first/weights.safetensors",
        "-o",
        "third",
    ]);
    let losses = |run: &str| losses(&folder.path().join(run));
    assert_eq!(losses("second"), losses("third"));
    assert_ne!(losses("first"), losses("third"));

    let missing = train(&["run.toml", "--weights", "no.safetensors"]);
    assert_eq!(missing.0, Some(5), "{}", missing.1);
    fs::write(folder.path().join("no.safetensors"), "no weights").expect("written");
    let wrong = train(&["run.toml", "--weights", "no.safetensors"]);
    assert_eq!(wrong.0, Some(2), "{}", wrong.1);
}

/// In place of the files that a run leaves: pipes that nobody writes to, a link, and a file of a tebibyte.
#[cfg(target_os = "linux")]
#[test]
fn a_strangers_folder_hangs_nothing_and_has_nothing_else_written() {
    let cosine = "schedule = \"warmup-cosine\"\nwarmup_steps = 10\nfinal_rate = 1e-3\n";
    let folder = folder(&CONFIG.replace(cosine, ""));
    let (run, precious) = (folder.path().join("run"), folder.path().join("precious"));
    let done = |arguments: &[&str]| {
        let output = rekindle(folder.path(), arguments);
        (output.status.code(), messages(&output))
    };
    let trained = done(&["train", "run.toml", "-o", "run", "--steps", "5"]);
    assert_eq!(trained.0, Some(0), "{}", trained.1);
    fs::write(&precious, "precious").expect("written");
    std::os::unix::fs::symlink(&precious, run.join("report.html")).expect("a link");
    let reported = done(&["report", "run"]);
    assert_eq!(reported.0, Some(0), "{}", reported.1);
    assert_eq!(fs::read_to_string(&precious).expect("text"), "precious");
    let replaces = done(&["report", "run", "-o", "run/run.json"]);
    assert_eq!(replaces.0, Some(2), "{}", replaces.1);

    let report = &["report", "run"][..];
    let resume = &["train", "--resume", "run", "--steps", "6"][..];
    for (name, arguments) in [
        ("run.json", report),
        ("sweep.json", report),
        ("command.json", resume),
        ("config.toml", resume),
        ("history.csv", resume),
        ("lock", resume),
    ] {
        let (path, kept) = (run.join(name), folder.path().join("kept"));
        let there = fs::rename(&path, &kept).is_ok();
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("started").success());
        let (code, said) = done(arguments);
        assert_eq!(code, Some(5), "{name}: {said}");
        assert!(said.contains("it is not a regular file"), "{said}");
        fs::remove_file(&path).expect("removed");
        if there {
            fs::rename(&kept, &path).expect("moved back");
        }
    }
    let record = fs::File::options().write(true).open(run.join("run.json"));
    record.expect("there").set_len(1 << 40).expect("a hole");
    let (code, said) = done(report);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("it has 1099511627776 bytes"), "{said}");
}

/// All sources below a folder, with what they are called from the repository's top.
fn sources(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("text");
            into.push((path.display().to_string(), text));
        }
    }
}

#[test]
fn every_test_that_the_table_of_faults_names_is_there() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut files = Vec::new();
    for folder in ["tests", "crates"] {
        sources(&Path::new(top).join(folder), &mut files);
    }
    let table = fs::read_to_string(Path::new(top).join("docs/faults.md")).expect("a page");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|row| row.matches(" | ").count() == 3).skip(1);
    let (mut named, mut row_count) = (0, 0);
    for row in rows {
        row_count += 1;
        let tests = row.rsplit(" | ").next().expect("a column");
        // `FILE`: `TEST`, `TEST`; `FILE`: all
        for part in tests.split(';') {
            let mut names = part.split('`').skip(1).step_by(2);
            let Some(file) = names.next() else {
                assert!(part.starts_with("the same test"), "{row}");
                continue;
            };
            let place = format!("/{}", file.replace("::", "/"));
            let of_file = files.iter().filter(|(path, _)| {
                path.contains(&format!("{place}.rs")) || path.contains(&format!("{place}/"))
            });
            let tests = of_file.flat_map(|(_, text)| text.split("#[test]").skip(1));
            let tests = tests.filter_map(|text| text.split_once("fn ")?.1.split_once('('));
            let tests: Vec<&str> = tests.map(|(name, _)| name).collect();
            assert!(!tests.is_empty(), "`{file}` has no tests: {row}");
            for name in names {
                let is_it = |test: &&str| match name.strip_suffix("..") {
                    Some(start) => test.starts_with(start),
                    None => *test == name,
                };
                assert!(tests.iter().any(is_it), "`{file}`: `{name}`");
                named += 1;
            }
        }
    }
    assert!(row_count > 40 && named > row_count, "{row_count} {named}");
}
