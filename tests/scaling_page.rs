//! The figures of `docs/scaling.md` are what its commands print: `REKINDLE_WRITE_DOCS=1` writes them all, and one command runs
//! in each test.

use std::{env, fs, path::Path};

use assert_cmd::Command;
use serde_json::Value;

/// Samples of each rank.
const SAMPLES: usize = 64;
const CONFIGS: [&str; 2] = ["gpt-vocabulary", "vgg16"];
const RANKS: [usize; 3] = [8, 64, 1024];
/// Links by name, as typed, and the most ranks that have them.
const LINKS: [(&str, &str, usize); 3] = [
    ("Ethernet, 25 Gb/s, 30 µs", "25Gb/s,30us", 1024),
    ("InfiniBand, 200 Gb/s, 2 µs", "200Gb/s,2us", 1024),
    ("NVLink class, 450 GB/s, 2 µs", "450GB/s,2us", 8),
];

/// The command that runs in each test.
const TESTED: (&str, usize) = ("vgg16", 64);

#[test]
fn figures_are_those_of_the_commands() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let path = root.join("docs/scaling.md");
    let page = fs::read_to_string(&path).expect("the page");
    if env::var_os("REKINDLE_WRITE_DOCS").is_none() {
        let (config, ranks) = TESTED;
        for row in rows(root, config, ranks) {
            assert!(page.contains(&row), "{row}");
        }
        return;
    }
    let (before, rest) = page.split_once("<!-- figures -->\n").expect("marked");
    let (_, after) = rest.split_once("<!-- end of figures -->").expect("marked");
    let commands = CONFIGS
        .iter()
        .flat_map(|config| RANKS.map(|ranks| (config, ranks)));
    let rows = commands.flat_map(|(config, ranks)| rows(root, config, ranks));
    let table = format!(
        "\n| config | ranks | link | computes | exchange adds | efficiency |\n\
         | :-- | --: | :-- | --: | --: | --: |\n{}\n",
        rows.collect::<String>()
    );
    let page = format!("{before}<!-- figures -->\n{table}<!-- end of figures -->{after}");
    fs::write(&path, page).expect("written");
}

/// What a command prints, as rows of the table.
fn rows(root: &Path, config: &str, ranks: usize) -> Vec<String> {
    let links = LINKS.iter().filter(|(.., most)| ranks <= *most);
    let links: Vec<_> = links.collect();
    let file = format!("configs/{config}.toml");
    let (batch, count) = ((SAMPLES * ranks).to_string(), ranks.to_string());
    let mut arguments = vec!["estimate", &file, "--batch", &batch, "--ranks", &count];
    arguments.extend(["--flops", "100T", "--loss-chunks", "whole"]);
    arguments.extend(["--device", "cpu", "--json"]);
    for (_, typed, _) in &links {
        arguments.extend(["--link", typed]);
    }
    let output = Command::cargo_bin("rekindle")
        .expect("built")
        .current_dir(root)
        .args(&arguments)
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let estimate: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let found = &estimate["ranks"][0];
    assert_eq!(found["batch"], SAMPLES);
    let found = found["links"].as_array().expect("links");
    assert_eq!(found.len(), links.len());
    let rows = links.into_iter().zip(found);
    rows.map(|((name, ..), link)| row(config, ranks, name, link))
        .collect()
}

fn row(config: &str, ranks: usize, link: &str, found: &Value) -> String {
    let number = |key: &str| found[key].as_f64().expect("a number");
    let ms = |key: &str| number(key) * 1e3;
    format!(
        "| `{config}` | {ranks} | {link} | {:.0} ms | {:.1} ms | {:.0}% |\n",
        ms("computing_s"),
        ms("exchange_s"),
        100.0 * number("efficiency")
    )
}
