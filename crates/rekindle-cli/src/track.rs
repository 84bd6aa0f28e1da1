//! `train --track`: what came and what went, as JSON lines and as text beside them.
//!
//! Both files are made before anything is trained, so that a folder which refuses them stops the command early, and are
//! written step by step.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rekindle_plan::Bytes;
use rekindle_train::tracker::{Blocks, TRACK_FORMAT, TrackedMoment};

use crate::failure::Failure;

/// The two files.
pub struct TrackFiles {
    lines: (PathBuf, File),
    text: (PathBuf, File),
    /// The first thing that went wrong.
    failed: Option<Failure>,
}

impl TrackFiles {
    /// Makes `path` for JSON lines, and a file of the same name that ends in `.txt` for people.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let text = path.with_extension("txt");
        if text == path {
            return Err(Failure::with_help(
                crate::exit::USAGE,
                format!(
                    "--track {}: JSON lines cannot go into a .txt file",
                    path.display()
                ),
                "the text for people goes there; name a file that ends in .jsonl",
            ));
        }
        let create = |path: &Path| -> Result<(PathBuf, File), Failure> {
            let file = File::create(path).map_err(|error| Failure::file(path, &error))?;
            Ok((path.to_owned(), file))
        };
        let mut files = Self {
            lines: create(path)?,
            text: create(&text)?,
            failed: None,
        };
        let header = serde_json::json!({"format": TRACK_FORMAT}).to_string();
        files.write(&format!("{header}\n"), HEADER);
        match files.failed.take() {
            Some(failure) => Err(failure),
            None => Ok(files),
        }
    }

    /// Adds one step's moments.
    pub fn step(&mut self, moments: &[TrackedMoment]) {
        let mut lines = String::new();
        let mut text = String::new();
        for moment in moments {
            match serde_json::to_string(moment) {
                Ok(line) => lines += &format!("{line}\n"),
                Err(error) => self.failed = Some(Failure::other(error)),
            }
        }
        if let Some(first) = moments.first() {
            let _ = writeln!(text, "\nstep {}", first.step);
        }
        for moment in moments {
            text += &self::text(moment);
        }
        self.write(&lines, &text);
    }

    /// Says where the files are, or what went wrong.
    pub fn finish(self) -> Result<(), Failure> {
        match self.failed {
            Some(failure) => Err(failure),
            None => {
                note!(
                    "allocations and frees of the first steps: {}, and as text {}",
                    self.lines.0.display(),
                    self.text.0.display()
                );
                Ok(())
            }
        }
    }

    fn write(&mut self, lines: &str, text: &str) {
        if self.failed.is_some() {
            return;
        }
        let write = |(path, file): &mut (PathBuf, File), text: &str| {
            let written: io::Result<()> = file.write_all(text.as_bytes());
            written.map_err(|error| Failure::file(path, &error))
        };
        self.failed = write(&mut self.lines, lines)
            .and_then(|()| write(&mut self.text, text))
            .err();
    }
}

const HEADER: &str = "\
What came and stayed (+) and what went (-) in each moment of a step, and what is
in use after it. A block tells its size alone: the shape beside it is that of a
tensor which is as large. A gradient is as large as what it is the gradient of,
and a buffer that is used again in place neither comes nor goes.
";

/// One moment, for people.
fn text(moment: &TrackedMoment) -> String {
    let title = match &moment.layer {
        Some(layer) => format!("{} ({layer})", moment.moment),
        None => moment.moment.clone(),
    };
    let mut text = format!(
        "  {title:<52} in use {:>12}\n",
        moment.in_use_bytes.to_string()
    );
    for (sign, blocks) in [('+', &moment.appeared), ('-', &moment.went)] {
        for blocks in blocks {
            let _ = writeln!(text, "    {sign} {}", line(blocks));
        }
    }
    if moment.others_bytes != 0 {
        let sign = if moment.others_bytes > 0 { '+' } else { '-' };
        let bytes = Bytes(moment.others_bytes.unsigned_abs());
        let _ = writeln!(text, "    {sign} {bytes} in small blocks");
    }
    text
}

fn line(blocks: &Blocks) -> String {
    let count = match blocks.count {
        Some(count) => format!("{count} x"),
        None => "blocks,".into(),
    };
    let size = match blocks.block_bytes {
        Some(each) => each.to_string(),
        None => format!("{} in all", blocks.bytes),
    };
    let like = match (&blocks.shape, &blocks.like) {
        (Some(shape), Some(like)) => format!("  {shape:?}, like {like}"),
        _ => String::new(),
    };
    format!("{count:>5} {size:>10}{like}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_reads_well() {
        let blocks = |count, each: u64, shape: Option<Vec<usize>>| Blocks {
            count: Some(count),
            block_bytes: Some(Bytes(each)),
            bytes: Bytes(count * each),
            like: shape.as_ref().map(|_| "the output of residual 5".into()),
            shape,
        };
        let moment = TrackedMoment {
            step: 1,
            moment: "forward_tracked 4".into(),
            stage: Some(4),
            layer: Some("residual 5".into()),
            appeared: vec![
                blocks(5, 262_144, Some(vec![512, 128])),
                blocks(1, 3000, None),
            ],
            went: vec![blocks(1, 65_536, None)],
            others_bytes: -700,
            in_use_bytes: Bytes(20 << 20),
        };
        let expected = "  forward_tracked 4 (residual 5)                       in use     20.0 MiB
    +   5 x  256.0 KiB  [512, 128], like the output of residual 5
    +   1 x    2.9 KiB
    -   1 x   64.0 KiB
    - 700 B in small blocks
";
        assert_eq!(text(&moment), expected);
        assert!(expected.lines().all(|line| line.len() <= 80));
    }
}
