//! A picture: title, a pair of axes, what is drawn between them, a legend on the right, and what the pointer shows.
//!
//! Hues are those of Okabe and Ito (2008), which can be distinguished with any common colour blindness. Colours are for
//! light paper; on a dark screen [`STYLE_SHEET`] inverts their lightness.

use maud::{Markup, PreEscaped, html};
use rekindle_plan::{Bytes, Seconds};

use crate::terminal;

/// Behind everything.
pub const PAPER: &str = "#FFFFFF";
/// Titles, labels, and what was measured.
pub const TEXT: &str = "#1A1C1E";
/// Ticks and remarks.
pub const SOFT: &str = "#5B626A";
/// Lines of the grid.
const GRID: &str = "#E2E5E8";

/// Darkens pictures of this class on dark screens; hues stay.
const STYLE_SHEET: &str = "@media screen and (prefers-color-scheme:dark)\
    {.rekindle{filter:invert(.91) hue-rotate(180deg)}}";

// In pixels: the whole picture, the plot between its axes, and a line of the legend.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = LEFT + PLOT as f64;
const BOTTOM: f64 = 410.0;
const LINE: f64 = 18.0;
/// Width of a plot.
pub const PLOT: usize = 620;

/// A value of the horizontal axis and one of the vertical axis.
pub type Place = (f64, f64);

/// A picture.
pub struct Picture {
    title: String,
    x: Axis,
    y: Axis,
    shapes: Vec<Markup>,
    legend: Vec<(Markup, String)>,
}

impl Picture {
    /// An empty one; its title is one line.
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self {
            title: terminal::shown(title),
            x,
            y,
            shapes: Vec::new(),
            legend: Vec::new(),
        }
    }

    /// A place in pixels.
    fn at(&self, (x, y): Place) -> (f64, f64) {
        let right = LEFT + self.x.share(x) * (RIGHT - LEFT);
        (
            pixel(right),
            pixel(BOTTOM - self.y.share(y) * (BOTTOM - TOP)),
        )
    }

    fn points(&self, corners: &[Place]) -> String {
        let pixels = corners.iter().map(|&corner| self.at(corner));
        let points = pixels.map(|(x, y)| format!("{x},{y}"));
        points.collect::<Vec<_>>().join(" ")
    }

    /// Fills an area.
    pub fn area(&mut self, corners: &[Place], colour: &str) {
        let points = self.points(corners);
        self.shapes
            .push(html! { polygon points=(points) fill=(colour) {} });
    }

    /// Draws a line so many pixels wide, which is in the legend if it has a name.
    pub fn line(&mut self, corners: &[Place], colour: &str, width: u32, name: Option<&str>) {
        let line = |points: &str| {
            html! { polyline points=(points) fill="none" stroke=(colour) stroke-width=(width) {} }
        };
        self.shapes.push(line(&self.points(corners)));
        if let Some(name) = name {
            self.entry(name, line("0,0 22,0"));
        }
    }

    /// Draws a line of dashes, which is in the legend.
    pub fn dashes(&mut self, corners: &[Place], colour: &str, name: &str) {
        let line = |points: &str| {
            html! { polyline points=(points) fill="none" stroke=(colour) stroke-dasharray="7 5" {} }
        };
        self.shapes.push(line(&self.points(corners)));
        self.entry(name, line("0,0 22,0"));
    }

    /// Draws a dot with a ring around it, and what the pointer shows over it.
    pub fn dot(&mut self, place: Place, colours: [&str; 2], hint: &str) {
        let (x, y) = self.at(place);
        let dot = dot(colours, hint);
        self.shapes
            .push(html! { g transform={ "translate(" (x) " " (y) ")" } { (dot) } });
    }

    /// Writes a text above a place: from there to the right, or up to there.
    pub fn label(&mut self, place: Place, to_the_right: bool, text: &str) {
        let (x, y) = self.at(place);
        let (anchor, gap) = match to_the_right {
            true => ("start", "5"),
            false => ("end", "-5"),
        };
        self.shapes
            .push(html! { text x=(x) y=(y) dx=(gap) dy="-5" text-anchor=(anchor) { (text) } });
    }

    fn entry(&mut self, text: &str, mark: Markup) {
        if self.legend.iter().all(|(_, known)| known != text) {
            self.legend.push((mark, text.to_owned()));
        }
    }

    /// Adds an area's colour to the legend, unless it is there.
    pub fn area_entry(&mut self, text: &str, colour: &str) {
        self.entry(
            text,
            html! { rect y="-5" width="12" height="11" fill=(colour) {} },
        );
    }

    /// Adds a dot with a ring to the legend, unless it is there.
    pub fn dot_entry(&mut self, text: &str, colours: [&str; 2]) {
        let mark = html! { g transform="translate(5 0)" { (dot(colours, "")) } };
        self.entry(text, mark);
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let picture = html! {
            svg class="rekindle" role="img" aria-label=(self.title) xmlns="http://www.w3.org/2000/svg"
                width=(WIDTH) height=(HEIGHT) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } fill=(TEXT)
                font-family="sans-serif" font-size="12" font-variant-numeric="tabular-nums"
            {
                style { (PreEscaped(STYLE_SHEET)) }
                rect width=(WIDTH) height=(HEIGHT) fill=(PAPER) {}
                text x="14" y="28" font-size="15" { (self.title) }
                @for (share, label) in self.y.ticks(7) {
                    @let y = pixel(BOTTOM - share * (BOTTOM - TOP));
                    line x1=(LEFT) x2=(RIGHT) y1=(y) y2=(y) stroke=(GRID) {}
                    text x=(LEFT) y=(y) dx="-8" dy="4" text-anchor="end" fill=(SOFT) { (label) }
                }
                @for (share, label) in self.x.ticks(8) {
                    @let x = pixel(LEFT + share * (RIGHT - LEFT));
                    text x=(x) y=(BOTTOM) dy="18" text-anchor="middle" fill=(SOFT) { (label) }
                }
                polyline points={ (LEFT) "," (TOP) " " (LEFT) "," (BOTTOM) " " (RIGHT) "," (BOTTOM) }
                    fill="none" stroke=(SOFT) {}
                text x=((LEFT + RIGHT) / 2.0) y=(BOTTOM) dy="40" text-anchor="middle" { (self.x.title) }
                text transform={ "translate(26 " ((TOP + BOTTOM) / 2.0) ") rotate(-90)" } text-anchor="middle" {
                    (self.y.title)
                }
                @for shape in &self.shapes { (shape) }
                @for (row, (mark, text)) in self.legend.iter().enumerate() {
                    g transform={ "translate(" (RIGHT + 16.0) " " (TOP + LINE * (row as f64 + 0.5)) ")" } {
                        (mark)
                        text x="28" dy="4" { (text) }
                    }
                }
            }
        };
        picture.into_string()
    }
}

/// A number of pixels with one digit after the point.
fn pixel(value: f64) -> f64 {
    (10.0 * value).round() / 10.0
}

/// A dot of one colour with a ring of another.
fn dot([inner, ring]: [&str; 2], hint: &str) -> Markup {
    html! {
        circle r="4" fill=(inner) stroke=(ring) stroke-width="2" {
            @if !hint.is_empty() { title { (terminal::shown(hint)) } }
        }
    }
}

/// An axis, which begins at zero.
pub struct Axis {
    /// The value at its end.
    end: f64,
    /// The unit of its labels: one that makes the largest value a handy number.
    unit: f64,
    /// What it shows, with the unit's name.
    title: String,
}

impl Axis {
    /// Bytes up to `room` times `most`.
    pub fn of_bytes(what: &str, most: Bytes, room: f64) -> Self {
        let units = [("GiB", 3), ("MiB", 2), ("KiB", 1), ("B", 0)];
        let units = units.map(|(name, power)| (name, 1024_f64.powi(power)));
        Self::new(what, most.0 as f64, room, units)
    }

    /// Seconds up to `room` times `most`.
    pub fn of_seconds(what: &str, most: Seconds, room: f64) -> Self {
        let units = [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)];
        Self::new(what, most.0, room, units)
    }

    /// The unit is the largest that goes into `most` twice or more.
    fn new<const N: usize>(what: &str, most: f64, room: f64, units: [(&str, f64); N]) -> Self {
        let fitting = units.into_iter().find(|(_, size)| most >= 2.0 * size);
        let (name, unit) = fitting.unwrap_or(units[N - 1]);
        Self {
            end: if most > 0.0 { room * most } else { unit },
            unit,
            title: format!("{what} ({name})"),
        }
    }

    /// Where a value stands, as a share of the axis.
    fn share(&self, value: f64) -> f64 {
        value / self.end
    }

    /// The tick at zero and at most so many more, at round numbers: each as a share of the axis, with its label.
    fn ticks(&self, most: u32) -> Vec<(f64, String)> {
        let end = self.end / self.unit;
        let least = end / f64::from(most);
        let power = 10_f64.powf(least.log10().floor());
        let mut steps = [1.0, 2.0, 5.0, 10.0_f64]
            .map(|factor| factor * power)
            .into_iter();
        let step = steps.find(|step| *step >= least).unwrap_or(least);
        let tick = |number: u32| {
            let value = f64::from(number) * step;
            (value / end, label(value))
        };
        (0..=most)
            .map(tick)
            .filter(|(share, _)| *share <= 1.0)
            .collect()
    }
}

/// A tick's label, without trailing zeros.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_of_a_handy_unit() {
        let labels = |axis: Axis| {
            let labels: Vec<_> = axis.ticks(8).into_iter().map(|(_, label)| label).collect();
            (axis.title, labels.join(" "))
        };
        let bytes = |most: u64| labels(Axis::of_bytes("peak", Bytes(most), 1.0));
        assert_eq!(
            bytes(40 << 20),
            ("peak (MiB)".into(), "0 5 10 15 20 25 30 35 40".into())
        );
        assert_eq!(
            bytes(1 << 30),
            ("peak (MiB)".into(), "0 200 400 600 800 1000".into())
        );
        assert_eq!(bytes(0).0, "peak (B)");
        let quarter = labels(Axis::of_seconds("step", Seconds(0.25), 1.15));
        assert_eq!(quarter, ("step (ms)".into(), "0 50 100 150 200 250".into()));
    }

    #[test]
    fn names_are_escaped() {
        let axis = || Axis::of_bytes("</text><script>", Bytes(1), 1.0);
        let mut picture = Picture::new("<a> & \"b\"\u{7}", axis(), axis());
        picture.dot((0.0, 0.0), [TEXT, PAPER], "</title><script>\u{7}");
        let svg = picture.svg();
        assert!(svg.contains("aria-label=\"&lt;a&gt; &amp; &quot;b&quot;"));
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;"));
        assert!(!svg.contains("<script") && !svg.contains('\u{7}'));
    }
}
