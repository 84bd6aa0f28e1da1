//! A picture: title, a pair of axes, what is drawn between them, a legend below, and what the pointer shows.
//!
//! Hues are those of Okabe and Ito (2008), which can be distinguished with any common colour blindness. Colours are written
//! as on light paper; on a dark screen each becomes what [`ON_DARK`] says. A picture is as narrow as its letters are readable
//! on a telephone.

use maud::{Markup, PreEscaped, html};

use crate::terminal;

/// Behind everything.
pub const PAPER: &str = "#FFFFFF";
/// Titles, labels, and what was measured.
pub const TEXT: &str = "#1A1C1E";
/// Ticks and remarks.
pub const SOFT: &str = "#5B626A";
/// Lines of the grid.
const GRID: &str = "#E2E5E8";

/// Every colour of a picture, and what it is on a dark screen.
pub const ON_DARK: [(&str, &str); 17] = [
    (PAPER, "#15181C"),
    (TEXT, "#ECEEF0"),
    (SOFT, "#A7AFB8"),
    (GRID, "#2B3138"),
    ("#B9BEC5", "#555D66"),
    ("#0072B2", "#3A96D0"),
    ("#56B4E9", "#A4DBFA"),
    ("#E69F00", "#E69F00"),
    ("#F8D894", "#8F6C17"),
    ("#D3EBF9", "#24516E"),
    ("#009E73", "#19B58A"),
    ("#D55E00", "#F0803C"),
    ("#F0E442", "#F0E442"),
    ("#994F7F", "#CC79A7"),
    ("#3F454C", "#C9CED4"),
    ("#004D80", "#5A8FD6"),
    ("#9AD2F2", "#C9E9FB"),
];

// In pixels: the whole picture, the plot between its axes, the legend with its lines and columns, and a letter.
const WIDTH: f64 = 600.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 64.0;
const RIGHT: f64 = LEFT + PLOT as f64;
const BOTTOM: f64 = 380.0;
const LEGEND: f64 = BOTTOM + 68.0;
const LINE: f64 = 22.0;
const COLUMN: f64 = 290.0;
const LETTER: f64 = 8.0;
/// Width of a plot.
pub const PLOT: usize = 518;

/// A value of the horizontal axis and one of the vertical axis.
pub type Place = (f64, f64);

/// How a line is drawn: its width in pixels, and the lengths of its dashes.
pub type Stroke = (u32, Option<&'static str>);
pub const THIN: Stroke = (1, None);
pub const BOLD: Stroke = (2, None);
pub const DASHES: Stroke = (1, Some("7 5"));

/// A picture.
pub struct Picture {
    title: String,
    x: Axis,
    y: Axis,
    shapes: Vec<Markup>,
    /// Left, top, right and bottom of dots and labels, in pixels.
    taken: Vec<[f64; 4]>,
    /// Marks and texts, two in a row.
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
            taken: Vec::new(),
            legend: Vec::new(),
        }
    }

    /// A place in pixels.
    fn at(&self, (x, y): Place) -> (f64, f64) {
        let x = LEFT + self.x.share(x) * (RIGHT - LEFT);
        let y = BOTTOM - self.y.share(y) * (BOTTOM - TOP);
        (pixel(x), pixel(y))
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

    /// Draws a line, which is in the legend if it has a name.
    pub fn line(&mut self, way: &[Place], colour: &str, stroke: Stroke, name: Option<&str>) {
        let (width, dashes) = stroke;
        let line = |points: &str| {
            html! {
                polyline points=(points) fill="none" stroke=(colour) stroke-width=(width) stroke-dasharray=[dashes] {}
            }
        };
        self.shapes.push(line(&self.points(way)));
        if let Some(name) = name {
            self.entry(name, line("0,0 22,0"));
        }
    }

    /// Draws a dot with a ring around it, and what the pointer shows over it.
    pub fn dot(&mut self, place: Place, colours: [&str; 2], hint: &str) {
        let (x, y) = self.at(place);
        self.taken.push([x - 6.0, y - 6.0, x + 6.0, y + 6.0]);
        self.shapes.push(dot((x, y), colours, hint));
    }

    /// Writes a text beside a place, where it covers no dot and no other label; where there is no room, none.
    pub fn label(&mut self, place: Place, text: &str) {
        let (x, y) = self.at(place);
        let width = LETTER * text.chars().count() as f64;
        let lefts = [x + 8.0, x - width - 8.0, x - width / 2.0];
        let beside = |bottom| lefts.map(|left| [left, bottom - 15.0, left + width, bottom]);
        let mut places = [y - 6.5, y + 22.0].into_iter().flat_map(beside);
        let free = |&[left, top, right, bottom]: &[f64; 4]| {
            let apart = |a: &[f64; 4]| a[2] < left || right < a[0] || a[3] < top || bottom < a[1];
            left > LEFT && right < RIGHT && bottom < BOTTOM && self.taken.iter().all(apart)
        };
        if let Some(place) = places.find(free) {
            let [left, _, _, bottom] = place.map(pixel);
            self.taken.push(place);
            // Paper around the letters, so that they are read over lines.
            self.shapes.push(html! {
                text x=(left) y=(bottom - 3.0) stroke=(PAPER) stroke-width="4" paint-order="stroke" { (text) }
            });
        }
    }

    fn entry(&mut self, text: &str, mark: Markup) {
        if self.legend.iter().all(|(_, known)| known != text) {
            self.legend.push((mark, text.to_owned()));
        }
    }

    /// Adds a row to the legend, which says what the entries below it are.
    pub fn caption(&mut self, text: &str) {
        let entries = self.legend.len().next_multiple_of(2);
        self.legend.resize(entries, Default::default());
        let row = [(html! {}, text.to_owned()), Default::default()];
        self.legend.extend(row);
    }

    /// Adds an area's colour to the legend, unless it is there.
    pub fn area_entry(&mut self, text: &str, colour: &str) {
        let mark = html! { rect y="-6" width="13" height="13" fill=(colour) {} };
        self.entry(text, mark);
    }

    /// Adds a dot with a ring to the legend, unless it is there.
    pub fn dot_entry(&mut self, text: &str, colours: [&str; 2]) {
        self.entry(text, dot((6.0, 0.0), colours, ""));
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let letters = 17_f64.min(2.0 * (WIDTH - 28.0) / self.title.chars().count() as f64);
        let height = LEGEND + LINE * self.legend.len().div_ceil(2) as f64;
        let picture = html! {
            svg role="img" aria-label=(self.title) xmlns="http://www.w3.org/2000/svg"
                width=(WIDTH) height=(height) viewBox={ "0 0 " (WIDTH) " " (height) } fill=(TEXT)
                font-family="Arial,Helvetica,sans-serif" font-size="15" font-variant-numeric="tabular-nums"
            {
                style { (PreEscaped(on_dark())) }
                rect width=(WIDTH) height=(height) fill=(PAPER) {}
                text x="14" y="26" font-size=(letters) { (self.title) }
                text x="14" y="51" fill=(SOFT) { (self.y.title) }
                @for (share, label) in self.y.ticks() {
                    @let y = pixel(BOTTOM - share * (BOTTOM - TOP));
                    line x1=(LEFT) x2=(RIGHT) y1=(y) y2=(y) stroke=(GRID) {}
                    text x=(LEFT) y=(y) dx="-8" dy="5" text-anchor="end" fill=(SOFT) { (label) }
                }
                @for (share, label) in self.x.ticks() {
                    @let x = pixel(LEFT + share * (RIGHT - LEFT));
                    text x=(x) y=(BOTTOM) dy="20" text-anchor="middle" fill=(SOFT) { (label) }
                }
                polyline points={ (LEFT) "," (TOP) " " (LEFT) "," (BOTTOM) " " (RIGHT) "," (BOTTOM) }
                    fill="none" stroke=(SOFT) {}
                text x=((LEFT + RIGHT) / 2.0) y=(BOTTOM) dy="42" text-anchor="middle" fill=(SOFT) { (self.x.title) }
                @for shape in &self.shapes { (shape) }
                @for (place, (mark, text)) in self.legend.iter().enumerate().filter(|(_, (_, text))| !text.is_empty()) {
                    @let (x, y) = (14.0 + COLUMN * (place % 2) as f64, LEGEND + LINE * (place / 2) as f64);
                    g transform={ "translate(" (x) " " (y) ")" } {
                        (mark)
                        text x=[(!mark.0.is_empty()).then_some(28)] dy="5" { (text) }
                    }
                }
            }
        };
        picture.into_string()
    }
}

/// Replaces each colour on a dark screen.
fn on_dark() -> String {
    let rule = |(light, dark)| {
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    let rules = ON_DARK.map(rule).concat();
    format!("@media screen and (prefers-color-scheme:dark){{{rules}}}")
}

/// A number of pixels with one digit after the point.
fn pixel(value: f64) -> f64 {
    (10.0 * value).round() / 10.0
}

/// A dot of one colour with a ring of another.
fn dot((x, y): (f64, f64), [inner, ring]: [&str; 2], hint: &str) -> Markup {
    html! {
        circle cx=(x) cy=(y) r="5" fill=(inner) stroke=(ring) stroke-width="2" {
            @if !hint.is_empty() { title { (terminal::shown(hint)) } }
        }
    }
}

/// Units of memory and of time.
pub const BYTES: [(&str, f64); 4] = [
    ("GiB", MIB * 1024.0),
    ("MiB", MIB),
    ("KiB", 1024.0),
    ("B", 1.0),
];
pub const SECONDS: [(&str, f64); 4] = [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)];
const MIB: f64 = 1_048_576.0;

/// An axis.
pub struct Axis {
    /// The values at its ends.
    ends: [f64; 2],
    /// The unit of its labels: one that makes the largest value a handy number.
    unit: f64,
    /// What it shows, with the unit's name.
    title: String,
}

impl Axis {
    /// With the largest unit that goes into the end twice or more.
    pub fn new(what: &str, [start, end]: [f64; 2], units: [(&str, f64); 4]) -> Self {
        let fitting = units.into_iter().find(|(_, size)| end >= 2.0 * size);
        let (name, unit) = fitting.unwrap_or(units[3]);
        Self {
            ends: [start, if end > start { end } else { start + unit }],
            unit,
            title: format!("{what} ({name})"),
        }
    }

    /// Where a value stands, as a share of the axis.
    fn share(&self, value: f64) -> f64 {
        let [start, end] = self.ends;
        (value - start) / (end - start)
    }

    /// Four to ten ticks, at round numbers: each as a share of the axis, with its label.
    fn ticks(&self) -> Vec<(f64, String)> {
        let [start, end] = self.ends.map(|value| value / self.unit);
        let least = (end - start) / 7.0;
        let power = 10_f64.powf(least.log10().floor());
        let steps = [0.5, 1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let wide = steps.iter().skip(1).position(|step| *step >= least);
        let wide = wide.unwrap_or_default();
        // A step of 5 can be 2.5 times as long as one of 2, and then leave three.
        let ticks = self.every(steps[wide + 1]);
        match ticks.len() {
            4.. => ticks,
            _ => self.every(steps[wide]),
        }
    }

    /// A tick at each multiple of a step, ten at most.
    fn every(&self, step: f64) -> Vec<(f64, String)> {
        // As many as tell two ticks apart.
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let first = (self.ends[0] / self.unit / step).ceil();
        let values = (0..10).map(|number| (first + f64::from(number)) * step);
        let tick = |value| (self.share(value * self.unit), format!("{value:.digits$}"));
        let ticks = values.map(tick);
        ticks.filter(|(share, _)| *share <= 1.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_of_a_handy_unit() {
        let labels = |axis: &Axis| {
            let labels = axis.ticks().into_iter().map(|(_, label)| label);
            labels.collect::<Vec<_>>().join(" ")
        };
        let bytes = |ends: [f64; 2]| {
            let axis = Axis::new("peak", ends.map(|mib| mib * MIB), BYTES);
            (labels(&axis), axis.title)
        };
        let peak = |unit: &str, labels: &str| (labels.to_owned(), format!("peak ({unit})"));
        assert_eq!(bytes([0.0, 35.0]), peak("MiB", "0 5 10 15 20 25 30 35"));
        assert_eq!(bytes([0.0, 1024.0]), peak("MiB", "0 200 400 600 800 1000"));
        assert_eq!(bytes([30.2, 31.0]), peak("MiB", "30.2 30.4 30.6 30.8 31.0"));
        assert_eq!(bytes([0.0, 0.0]).1, "peak (B)");
        let quarter = Axis::new("step", [0.0, 0.28], SECONDS);
        assert_eq!(labels(&quarter), "0 50 100 150 200 250");
        // Of multiples of 5 there are but three.
        assert_eq!(bytes([8.0, 23.0]), peak("MiB", "8 10 12 14 16 18 20 22"));
        for start in 1..60 {
            for length in 1..200 {
                let ends = [start, start + length].map(f64::from);
                let ticks = Axis::new("peak", ends.map(|mib| mib * MIB), BYTES).ticks();
                assert!((4..=10).contains(&ticks.len()), "{ends:?}: {ticks:?}");
                assert!(
                    ticks.last().is_some_and(|(share, _)| *share > 0.7),
                    "{ends:?}"
                );
            }
        }
    }

    #[test]
    fn names_are_escaped() {
        let axis = || Axis::new("</text><script>", [0.0, 1.0], BYTES);
        let mut picture = Picture::new("<a> & \"b\"\u{7}", axis(), axis());
        picture.dot((0.0, 0.0), [TEXT, PAPER], "</title><script>\u{7}");
        let svg = picture.svg();
        assert!(svg.contains("aria-label=\"&lt;a&gt; &amp; &quot;b&quot;"));
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;"));
        assert!(!svg.contains("<script") && !svg.contains('\u{7}'));
    }
}
