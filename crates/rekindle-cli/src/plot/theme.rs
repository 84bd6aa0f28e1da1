//! How pictures look.
//!
//! Hues are those of Okabe and Ito (2008), which people with any common colour blindness tell apart; parts that are
//! stacked, and passes that follow each other, differ in lightness too (so backwards are darker than their purple). Every [`Ink`] has a colour for light and one for dark paper. Paint with
//! [`Ink::light`] only: [`style_sheet`] replaces it on dark screens, by its value, so no two inks may share one.

use std::fmt::Write;

use plotters::style::{Color, FontDesc, IntoFont, RGBColor, TextStyle};

/// One colour of the theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ink {
    light: u32,
    dark: u32,
}

const fn ink(light: u32, dark: u32) -> Ink {
    Ink { light, dark }
}

/// Behind everything.
pub const PAPER: Ink = ink(0xFFFFFF, 0x15181C);
/// Titles, labels, and what was measured.
pub const TEXT: Ink = ink(0x1A1C1E, 0xECEEF0);
/// Ticks and remarks.
pub const SOFT: Ink = ink(0x5B626A, 0xA7AFB8);
/// Lines of the grid.
pub const GRID: Ink = ink(0xE2E5E8, 0x31373E);

/// Parameters, the optimizer's state, data, the runtime.
pub const FIXED: Ink = ink(0xB9BEC5, 0x59616A);
/// Activations that are kept alone.
pub const BOUNDARIES: Ink = ink(0x0072B2, 0x1C82C0);
/// What is recorded for a backward.
pub const LIVE_SEGMENT: Ink = ink(0x56B4E9, 0x6EC1F0);
/// Gradients of activations.
pub const GRADIENTS: Ink = ink(0xE69F00, 0xEAA61A);
/// Gradients of parameters.
pub const PARAMETER_GRADIENTS: Ink = ink(0xF8D894, 0xF6DDA6);
/// What an action takes and gives back itself.
pub const TEMPORARY: Ink = ink(0xD3EBF9, 0xC9E6F8);

/// Stages that run for the first time.
pub const FORWARD: Ink = ink(0x009E73, 0x12AD82);
/// Stages that run again.
pub const RECOMPUTE: Ink = ink(0xD55E00, 0xE06A10);
/// The loss.
pub const LOSS: Ink = ink(0xF0E442, 0xF1E655);
/// Backwards.
pub const BACKWARD: Ink = ink(0x994F7F, 0xAE5D92);
/// The update.
pub const OPTIMIZER: Ink = ink(0x3F454C, 0xC3C9CF);
/// Copies to the host.
pub const OFFLOAD: Ink = ink(0x004D80, 0x0F5F96);
/// Copies from the host.
pub const FETCH: Ink = ink(0x9AD2F2, 0x93CDEE);

/// One for each run on one axis, one after the other.
pub const RUNS: [Ink; 6] = [
    BOUNDARIES, RECOMPUTE, OPTIMIZER, FORWARD, BACKWARD, GRADIENTS,
];

const ALL: [Ink; 17] = [
    PAPER,
    TEXT,
    SOFT,
    GRID,
    FIXED,
    BOUNDARIES,
    LIVE_SEGMENT,
    GRADIENTS,
    PARAMETER_GRADIENTS,
    TEMPORARY,
    FORWARD,
    RECOMPUTE,
    LOSS,
    BACKWARD,
    OPTIMIZER,
    OFFLOAD,
    FETCH,
];

impl Ink {
    /// The colour to paint with.
    pub fn light(self) -> RGBColor {
        let [_, red, green, blue] = self.light.to_be_bytes();
        RGBColor(red, green, blue)
    }

    /// The colour on light paper, as style sheets write it.
    pub fn light_hex(self) -> String {
        format!("#{:06X}", self.light)
    }

    /// The colour on dark paper, as style sheets write it.
    pub fn dark_hex(self) -> String {
        format!("#{:06X}", self.dark)
    }
}

/// Where a picture is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A screen or a sheet.
    Wide,
    /// A telephone, or a column.
    Narrow,
}

impl Size {
    /// Both.
    pub const ALL: [Size; 2] = [Size::Wide, Size::Narrow];

    /// Pixels from side to side.
    pub fn width(self) -> u32 {
        match self {
            Size::Wide => 960,
            Size::Narrow => 440,
        }
    }
}

/// Height of a line of text in pixels.
pub const LINE: u32 = 18;
/// Pixels of letters.
pub const LETTERS: f64 = 12.0;
/// Pixels of letters in titles.
pub const TITLE_LETTERS: f64 = 15.0;

/// The font; plotters counts sizes so that letters come out 1.24 times smaller.
pub fn font(pixels: f64) -> FontDesc<'static> {
    ("sans-serif", pixels * 1.24).into_font()
}

/// Text in one ink.
pub fn text(ink: Ink) -> TextStyle<'static> {
    font(LETTERS).color(&ink.light().to_rgba())
}

/// Turns the pictures of this class dark on dark screens. Paper stays light.
pub fn style_sheet() -> String {
    let mut css = String::from("@media screen and (prefers-color-scheme:dark){");
    for ink in ALL {
        let (light, dark) = (ink.light_hex(), ink.dark_hex());
        let _ = write!(
            css,
            ".rekindle [fill=\"{light}\"]{{fill:{dark}}}.rekindle [stroke=\"{light}\"]{{stroke:{dark}}}"
        );
    }
    css.push('}');
    css
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_ink_can_be_told_from_the_others_by_its_value() {
        let values: HashSet<u32> = ALL.iter().map(|ink| ink.light).collect();
        assert_eq!(values.len(), ALL.len());
    }

    /// Relative luminance, WCAG 2.
    fn luminance(colour: u32) -> f64 {
        let channel = |shift: u32| {
            let value = f64::from((colour >> shift) & 0xFF) / 255.0;
            match value <= 0.040_45 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * channel(16) + 0.7152 * channel(8) + 0.0722 * channel(0)
    }

    #[test]
    fn text_is_legible_on_both_papers() {
        let contrast = |a: u32, b: u32| {
            let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
            a.max(b) / a.min(b)
        };
        for ink in [TEXT, SOFT] {
            assert!(contrast(ink.light, PAPER.light) >= 4.5);
            assert!(contrast(ink.dark, PAPER.dark) >= 4.5);
        }
    }

    #[test]
    fn neighbours_differ_in_lightness() {
        let neighbours = [
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
        ];
        for [a, b] in neighbours {
            for paper in [|ink: Ink| ink.light, |ink: Ink| ink.dark] {
                let difference = (luminance(paper(a)) - luminance(paper(b))).abs();
                assert!(difference > 0.05, "{a:?}, {b:?}: {difference}");
            }
        }
    }
}
