//! The pages that people read: what they link to is there, and the commands and options that they name exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    picture,
    support::{messages, rekindle},
};

/// Options of other programs.
const OF_OTHERS: [&str; 3] = ["--features", "--mca", "--small"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each page: its path from the top folder, and its text.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(top().join("docs")).expect("a folder");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    let docs = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let first = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| top().join(name));
    let pages = docs.chain(first).map(|path| {
        let text = fs::read_to_string(&path).expect("a page");
        (path, text)
    });
    pages.collect()
}

/// A page without its blocks of code, and the blocks, each with its language.
fn parts(page: &str) -> (String, Vec<(&str, &str)>) {
    let mut prose = String::new();
    let mut blocks = Vec::new();
    for (place, part) in page.split("```").enumerate() {
        if place % 2 == 0 {
            prose += part;
        } else {
            blocks.push(part.split_once('\n').unwrap_or_default());
        }
    }
    (prose, blocks)
}

/// What stands between backticks.
fn spans(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2)
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let headings = parts(page).0;
    let headings = headings.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        text.chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn what_pages_link_to_is_there() {
    let mut links = 0;
    for (path, page) in pages() {
        let (prose, _) = parts(&page);
        for target in prose.split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            assert!(file.exists(), "{}: {target}", path.display());
            if !anchor.is_empty() {
                let of_file = anchors(&fs::read_to_string(&file).expect("a page"));
                let there = of_file.iter().any(|one| one == anchor);
                assert!(there, "{}: {target} of {of_file:?}", path.display());
            }
            links += 1;
        }
    }
    assert!(links > 100, "{links}");
}

#[test]
fn texts_of_pictures_on_pages_can_be_read() {
    let folder = fs::read_dir(top().join("docs/pictures")).expect("a folder");
    let pictures = folder.map(|entry| fs::read_to_string(entry.expect("an entry").path()));
    let pictures: Vec<String> = pictures.collect::<Result<_, _>>().expect("text");
    pictures.iter().for_each(|svg| picture::check(svg));
    assert!(pictures.len() > 6, "{}", pictures.len());
}

/// The arguments of a command that starts this program; `None` of another's.
fn arguments(command: &str) -> Option<Vec<&str>> {
    let mut words = command.split_whitespace();
    match words.next()? {
        "mpirun" => words.find(|word| word.ends_with("rekindle")).map(drop),
        "cargo" => command
            .starts_with("cargo run --release -- ")
            .then(|| words.find(|word| *word == "--"))
            .map(drop),
        first => (first.rsplit('/').next() == Some("rekindle")).then_some(()),
    }?;
    Some(words.take_while(|word| *word != "#").collect())
}

#[test]
fn commands_on_pages_parse() {
    let mut commands = 0;
    for (path, page) in pages() {
        let (prose, blocks) = parts(&page);
        let shell = blocks.iter().filter(|(of, _)| ["sh", "bash"].contains(of));
        let lines = shell.flat_map(|(_, block)| block.lines());
        for command in lines
            .chain(spans(&prose))
            .flat_map(|line| line.split("&& "))
        {
            let Some(mut arguments) = arguments(command).filter(|all| !all.is_empty()) else {
                continue;
            };
            // What a reader puts in.
            for word in &mut arguments {
                *word = match *word {
                    "SIZE" => "1GiB",
                    "SHELL" => "bash",
                    word => word,
                };
            }
            // All arguments are read before what this says.
            let output = rekindle(&top(), &[&arguments[..], &["--help"]].concat());
            let said = messages(&output);
            assert!(
                output.status.success(),
                "{}: {command}: {said}",
                path.display()
            );
            commands += 1;
        }
    }
    assert!(commands > 40, "{commands}");
}

#[test]
fn options_on_pages_exist() {
    let commands = "estimate train profile plan sweep max verify report runs devices init";
    let helps = commands.split(' ').map(|command| {
        let output = rekindle(&top(), &[command, "--help"]);
        String::from_utf8(output.stdout).expect("text")
    });
    let helps: String = helps.collect();
    let known: Vec<&str> = helps
        .split(|letter: char| !(letter.is_alphanumeric() || letter == '-'))
        .filter(|word| word.starts_with("--"))
        .collect();
    let mut options = 0;
    for (path, page) in pages() {
        for span in spans(&parts(&page).0).filter(|span| span.starts_with("--")) {
            let option = span.split_whitespace().next().unwrap_or_default();
            let exists = known.contains(&option) || OF_OTHERS.contains(&option);
            assert!(exists, "{}: `{span}`", path.display());
            options += 1;
        }
    }
    assert!(options > 30, "{options}");
}

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = rekindle(folder.path(), &["man", "share/man1"]);
    assert_eq!(said.status.code(), Some(0), "{}", messages(&said));
    let help = String::from_utf8(rekindle(folder.path(), &["--help"]).stdout).expect("text");
    let (_, commands) = help.split_once("Commands:\n").expect("commands");
    let commands = commands
        .lines()
        .map_while(|line| line.split_whitespace().next());
    let mut pages = 0;
    for command in commands.filter(|command| *command != "help") {
        let page = folder
            .path()
            .join(format!("share/man1/rekindle-{command}.1"));
        let page = fs::read_to_string(page).expect("a page");
        assert!(page.contains(".SH DESCRIPTION"), "{page}");
        pages += 1;
    }
    assert!(pages > 10, "{help}");
}
