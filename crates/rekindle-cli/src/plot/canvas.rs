//! A picture from its first tag to its last.

use std::io;

use plotters::{
    backend::SVGBackend,
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea},
    element::{Rectangle, Text},
    style::{
        Color,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::theme::{self, Ink};

/// What is painted on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What painting gives.
pub type Drawn<T> = Result<T, DrawingAreaErrorKind<io::Error>>;

/// Width of a letter, as part of its height: fonts differ, and none of the usual ones is wider on average.
const LETTER_WIDTH: f64 = 0.56;

/// Paints a picture of so many pixels. `title` is for those who cannot see it.
pub fn picture(
    (width, height): (u32, u32),
    title: &str,
    paint: impl FnOnce(&Area<'_>) -> Drawn<()>,
) -> Drawn<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        // An element, so that the style sheet sees its colour.
        rectangle(&area, (0, 0), (width as i32, height as i32), theme::PAPER)?;
        paint(&area)?;
        area.present()?;
    }
    let title = escaped(title);
    let head = format!(
        "<svg class=\"rekindle\" role=\"img\" aria-label=\"{title}\" font-variant-numeric=\"tabular-nums\" "
    );
    let style = format!("><style>{}</style>", theme::style_sheet());
    Ok(svg
        .replacen("<svg ", &head, 1)
        .replacen('>', &style, 1)
        // plotters breaks lines around every text.
        .replace(">\n", ">"))
}

/// What a browser says of a block under the pointer.
pub struct Hint {
    /// The block's upper left corner.
    pub at: (i32, i32),
    /// Its width and height.
    pub size: (i32, i32),
    /// What it says.
    pub text: String,
}

/// The picture with hints on top of it: blocks that are not seen, each with a title.
pub fn with_hints(mut svg: String, hints: impl Iterator<Item = Hint>) -> String {
    let end = svg.rfind("</svg>").unwrap_or(svg.len());
    let mut blocks = String::new();
    for Hint { at, size, text } in hints {
        blocks.push_str(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" pointer-events=\"all\"><title>{}</title></rect>\n",
            at.0, at.1, size.0, size.1, escaped(&text),
        ));
    }
    svg.insert_str(end, &blocks);
    svg
}

/// A filled rectangle.
pub fn rectangle(area: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: Ink) -> Drawn<()> {
    area.draw(&Rectangle::new([from, to], ink.light().filled()))
}

/// Text whose left, centre or right end is at a point, level with it.
pub fn text(area: &Area<'_>, text: &str, at: (i32, i32), ink: Ink, end: HPos) -> Drawn<()> {
    let style = theme::text(ink).pos(Pos::new(end, VPos::Center));
    area.draw(&Text::new(printable(text), at, style))
}

/// A title, in one line from the left.
pub fn title(area: &Area<'_>, text: &str, at: (i32, i32)) -> Drawn<()> {
    let font = theme::font(theme::TITLE_LETTERS);
    let style = font.color(&theme::TEXT.light());
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(printable(text), at, style))
}

/// Pixels that a text takes, at most.
pub fn width_of(text: &str, letters: f64) -> u32 {
    (text.chars().count() as f64 * letters * LETTER_WIDTH).ceil() as u32
}

/// The text, or its end behind an ellipsis, where it is too long for so many pixels: paths differ at their ends.
pub fn fitted(text: &str, letters: f64, pixels: u32) -> String {
    let most = (f64::from(pixels) / (letters * LETTER_WIDTH)) as usize;
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let end = text
        .chars()
        .skip(length - most.saturating_sub(1).min(length));
    std::iter::once('…').chain(end).collect()
}

/// Lines of at most so many pixels, broken between words.
pub fn wrapped(text: &str, pixels: u32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width_of(&format!("{line} {word}"), theme::LETTERS) <= pixels => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// XML has no place for control characters, not even escaped.
fn printable(text: &str) -> String {
    let show = |letter: char| {
        if letter.is_control() {
            '\u{FFFD}'
        } else {
            letter
        }
    };
    text.chars().map(show).collect()
}

fn escaped(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let svg = picture((100, 50), "<a> & \"b\"", |area| {
            text(
                area,
                "</text><script>\u{7}",
                (0, 10),
                theme::TEXT,
                HPos::Left,
            )
        });
        let svg = svg.expect("painted");
        assert!(svg.contains("aria-label=\"&lt;a&gt; &amp; &quot;b&quot;\""));
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;\u{FFFD}"));
        assert!(!svg.contains("<script"));
    }

    #[test]
    fn long_paths_keep_their_end() {
        assert_eq!(fitted("a/b.toml", 10.0, 200), "a/b.toml");
        assert_eq!(fitted("configs/deep-linear.toml", 10.0, 60), "…near.toml");
    }
}
