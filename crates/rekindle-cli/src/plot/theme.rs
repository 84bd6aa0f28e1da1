//! The style of pictures: sizes, fonts, colours.
//!
//! Hues are those of Okabe and Ito (2008), which can be distinguished with any common colour blindness; stacked parts,
//! and consecutive passes, also differ in lightness (so backward passes are darker than their purple). Colours are for
//! light paper; on a dark screen [`STYLE_SHEET`] inverts their lightness.

use plotters::style::{Color, FontDesc, IntoFont, RGBColor, TextStyle};

const fn colour(hexadecimal: u32) -> RGBColor {
    let [_, red, green, blue] = hexadecimal.to_be_bytes();
    RGBColor(red, green, blue)
}

/// Behind everything.
pub const PAPER: RGBColor = colour(0xFFFFFF);
/// Titles, labels, and what was measured.
pub const TEXT: RGBColor = colour(0x1A1C1E);
/// Ticks and remarks.
pub const SOFT: RGBColor = colour(0x5B626A);
/// Lines of the grid.
pub const GRID: RGBColor = colour(0xE2E5E8);

/// Parameters, the optimizer's state, data, the runtime.
pub const FIXED: RGBColor = colour(0xB9BEC5);
/// Activations that are kept alone.
pub const BOUNDARIES: RGBColor = colour(0x0072B2);
/// What is recorded for a backward pass.
pub const LIVE_SEGMENT: RGBColor = colour(0x56B4E9);
/// Gradients of activations.
pub const GRADIENTS: RGBColor = colour(0xE69F00);
/// Gradients of parameters.
pub const PARAMETER_GRADIENTS: RGBColor = colour(0xF8D894);
/// Memory that an action allocates and frees itself.
pub const TEMPORARY: RGBColor = colour(0xD3EBF9);

/// Stages that run for the first time.
pub const FORWARD: RGBColor = colour(0x009E73);
/// Stages that run again.
pub const RECOMPUTE: RGBColor = colour(0xD55E00);
/// The loss.
pub const LOSS: RGBColor = colour(0xF0E442);
/// Backward passes.
pub const BACKWARD: RGBColor = colour(0x994F7F);
/// The update.
pub const OPTIMIZER: RGBColor = colour(0x3F454C);
/// Copies to the host.
pub const OFFLOAD: RGBColor = colour(0x004D80);
/// Copies from the host.
pub const FETCH: RGBColor = colour(0x9AD2F2);

/// Colours of runs on one pair of axes, in turn.
pub const RUNS: [RGBColor; 6] = [
    BOUNDARIES, RECOMPUTE, OPTIMIZER, FORWARD, BACKWARD, GRADIENTS,
];

/// Width of a picture in pixels.
pub const WIDTH: u32 = 960;
/// Width of a plot inside its axes; the legend stands at its right.
pub const PLOT: u32 = 620;
/// Height of a plot.
pub const HEIGHT: u32 = 360;
/// Pixels around a picture.
pub const MARGIN: u32 = 14;
/// Height of a line of text.
pub const LINE: u32 = 18;

const LETTERS: f64 = 12.0;
/// Width of a letter as a part of its height; the usual fonts are narrower on average.
const LETTER_WIDTH: f64 = 0.56;

/// Darkens pictures of this class on dark screens; hues stay.
pub const STYLE_SHEET: &str = "<style>@media screen and (prefers-color-scheme:dark)\
    {.rekindle{filter:invert(.91) hue-rotate(180deg)}}</style>";

/// A font of letters so many pixels high; plotters divides its sizes by 1.24.
fn font(pixels: f64) -> FontDesc<'static> {
    ("sans-serif", pixels * 1.24).into_font()
}

/// A picture's title.
pub fn title() -> TextStyle<'static> {
    font(1.25 * LETTERS).color(&TEXT)
}

/// Text of one colour.
pub fn text(colour: RGBColor) -> TextStyle<'static> {
    font(LETTERS).color(&colour.to_rgba())
}

/// Pixels that a text takes at most.
pub fn width_of(text: &str) -> u32 {
    (text.chars().count() as f64 * LETTERS * LETTER_WIDTH).ceil() as u32
}

/// The number of letters that fit in so many pixels.
pub fn letters_in(pixels: u32) -> usize {
    (f64::from(pixels) / (LETTERS * LETTER_WIDTH)) as usize
}

/// The text, or its end behind an ellipsis where it has more letters: paths differ at their ends.
pub fn fitted(text: &str, letters: usize) -> String {
    match text.chars().count() {
        length if length <= letters => text.to_owned(),
        length => {
            let end = text.chars().skip(length + 1 - letters.max(1));
            std::iter::once('…').chain(end).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_keep_their_end() {
        assert_eq!(fitted("a/b.toml", 10), "a/b.toml");
        assert_eq!(fitted("configs/deep-linear.toml", 10), "…near.toml");
    }

    /// Relative luminance, WCAG 2.
    fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
        let channel = |value: u8| match f64::from(value) / 255.0 {
            value if value <= 0.040_45 => value / 12.92,
            value => ((value + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue)
    }

    #[test]
    fn text_is_legible() {
        for ink in [TEXT, SOFT] {
            let contrast = (luminance(PAPER) + 0.05) / (luminance(ink) + 0.05);
            assert!(contrast >= 4.5, "{contrast}");
        }
    }

    #[test]
    fn neighbours_differ_in_lightness() {
        for [a, b] in [
            [FIXED, BOUNDARIES],
            [BOUNDARIES, LIVE_SEGMENT],
            [GRADIENTS, PARAMETER_GRADIENTS],
            [FORWARD, LOSS],
            [FORWARD, BACKWARD],
            [BACKWARD, RECOMPUTE],
            [BACKWARD, OPTIMIZER],
            [FORWARD, OFFLOAD],
            [BACKWARD, FETCH],
            [OFFLOAD, FETCH],
        ] {
            let difference = (luminance(a) - luminance(b)).abs();
            assert!(difference > 0.05, "{a:?}, {b:?}: {difference}");
        }
    }
}
