//! The style of pictures: sizes, fonts, colours.
//!
//! Hues are those of Okabe and Ito (2008), which can be distinguished with any common colour blindness; stacked parts,
//! and consecutive passes, also differ in lightness (so backward passes are darker than their purple). Colours are for
//! light paper; on a dark screen [`STYLE_SHEET`] inverts their lightness.

use plotters::style::{Color, FontDesc, IntoFont, RGBColor, TextStyle};

/// A colour by its hexadecimal digits.
pub const fn colour(hexadecimal: u32) -> RGBColor {
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

/// The plain run's marks are [`TEXT`]; these are those of segments and of plans.
pub const SEGMENTS: RGBColor = colour(0xD55E00);
pub const PLANS: RGBColor = colour(0x0072B2);

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

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Relative luminance, WCAG 2.
    pub fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
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
}
