//! `train --track`: allocations and frees, as JSON lines and as text.
//!
//! Both files are created before the training, so that an unwritable folder stops the command early, and are written
//! step by step.

use std::{
    fmt::Write as _,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use rekindle_plan::Bytes;
use rekindle_train::tracker::{Blocks, TRACK_FORMAT, TrackedMoment};

use crate::{failure::Failure, input};

/// The two files.
pub struct TrackFiles {
    /// Of JSON lines, and of text.
    files: [(PathBuf, File); 2],
    /// The first thing that went wrong.
    failed: Option<Failure>,
}

impl TrackFiles {
    /// Creates `path` for JSON lines, and a text file of the same name that ends in `.txt`.
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
            files: [create(path)?, create(&text)?],
            failed: None,
        };
        let header = serde_json::json!({"format": TRACK_FORMAT}).to_string();
        files.write([&format!("{header}\n"), HEADER]);
        files.failed.take().map_or(Ok(files), Err)
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
        self.write([&lines, &text]);
    }

    /// Prints the paths of the files, or returns the first error.
    pub fn finish(self) -> Result<(), Failure> {
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let [lines, text] = self.files.each_ref().map(|(path, _)| path.display());
        note!(
            "wrote {lines} (allocations and frees of the first steps) and {text} (the same as text)"
        );
        Ok(())
    }

    fn write(&mut self, texts: [&str; 2]) {
        for ((path, file), text) in self.files.iter_mut().zip(texts) {
            if let (None, Err(error)) = (&self.failed, file.write_all(text.as_bytes())) {
                self.failed = Some(Failure::file(path, &error));
            }
        }
    }
}

/// What the numbers mean.
pub const HEADER: &str = "\
Memory that each action of a step allocates (+) and frees (-), and the memory in
use after it. The size of a block is measured; the shape beside it is that of a
tensor of the same size. A gradient has the size of its tensor. A buffer that is
reused in place is neither allocated nor freed.
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

/// The moments in a file of JSON lines.
pub fn read(path: &Path) -> Result<Vec<TrackedMoment>, Failure> {
    let text = input::text(path)?;
    let moments = text.lines().skip(1).map(serde_json::from_str);
    moments
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Blocks of one size, in a line.
pub fn line(blocks: &Blocks) -> String {
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
