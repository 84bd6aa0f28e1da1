//! A complete picture: title, a pair of axes, a legend on the right, notes below.

use std::{io, marker::PhantomData, ops::Range};

use maud::html;
use plotters::{
    backend::SVGBackend,
    chart::{ChartBuilder, ChartContext, SeriesLabelPosition},
    coord::{cartesian::Cartesian2d, types::RangedCoordf64},
    drawing::{DrawingAreaErrorKind, IntoDrawingArea},
    element::{DashedPathElement, IntoDynElement, PathElement, Rectangle, Text},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};

use rekindle_plan::Seconds;

use super::{
    axis::{Unit, tick},
    theme,
};
use crate::terminal;

/// The result of drawing.
pub type Drawn<T> = Result<T, DrawingAreaErrorKind<io::Error>>;
/// A pair of axes.
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A plot that series are drawn in, and its legend.
pub struct Plot<'a, 'b> {
    /// The axes.
    pub chart: Chart<'a, 'b>,
    /// plotters draws a legend inside its axes: so the legend has a separate, invisible pair of axes.
    legend: Chart<'a, 'b>,
    backend: PhantomData<&'a SVGBackend<'b>>,
}

impl<'a, 'b> Plot<'a, 'b> {
    /// Adds an entry to the legend.
    pub fn entry<T>(
        &mut self,
        text: impl Into<String>,
        mark: impl Fn((i32, i32)) -> T + 'a,
    ) -> Drawn<()>
    where
        T: IntoDynElement<'a, SVGBackend<'b>, (i32, i32)>,
    {
        let nothing = std::iter::empty::<PathElement<(f64, f64)>>();
        self.legend.draw_series(nothing)?.label(text).legend(mark);
        Ok(())
    }
}

/// Pixels left of a plot and below it, for its axes.
const LEFT: u32 = 66;
const BELOW: u32 = 46;
/// Pixels between a plot and its legend.
const GAP: u32 = 16;

/// What one axis shows.
pub struct Axis {
    /// The range; an empty range is widened.
    pub range: Range<f64>,
    /// Its title, unit included.
    pub title: String,
}

impl Axis {
    /// From the start of a step so far, in this unit.
    pub fn time(unit: Unit, longest: Seconds) -> Self {
        Self {
            range: 0.0..unit.seconds(longest),
            title: format!("time since the step began ({})", unit.name),
        }
    }

    fn widened(&self) -> Range<f64> {
        let Range { start, end } = self.range;
        start..if end > start { end } else { start + 1.0 }
    }
}

/// A picture without its series.
pub struct Picture {
    /// In one line.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Sentences below the plot.
    pub notes: Vec<String>,
}

/// The text that a browser shows for a block under the pointer.
pub struct Hint {
    /// Two opposite corners of the block, in the axes' units.
    pub corners: [(f64, f64); 2],
    /// What is shown.
    pub text: String,
}

impl Picture {
    /// Paints it with the series that `draw` draws, each with its label, under the hints that it gives.
    pub fn paint(&self, draw: impl FnOnce(&mut Plot<'_, '_>) -> Drawn<Vec<Hint>>) -> Drawn<String> {
        let pixels = theme::WIDTH - 2 * theme::MARGIN;
        let notes: Vec<_> = self
            .notes
            .iter()
            .flat_map(|note| textwrap::wrap(note, theme::letters_in(pixels)))
            .map(|line| terminal::shown(&line))
            .collect();
        let head = theme::MARGIN + 2 * theme::LINE;
        let foot = head + theme::HEIGHT + BELOW + GAP / 2;
        let height = foot + notes.len() as u32 * theme::LINE + theme::MARGIN;
        let title = terminal::shown(&theme::fitted(
            &self.title,
            theme::letters_in(pixels) * 3 / 4,
        ));

        let mut svg = String::new();
        let mut blocks = String::new();
        {
            let area =
                SVGBackend::with_string(&mut svg, (theme::WIDTH, height)).into_drawing_area();
            area.fill(&theme::PAPER)?;
            let left = theme::MARGIN as i32;
            let middle = Pos::new(HPos::Left, VPos::Center);
            let at = (left, (theme::MARGIN + theme::LINE / 2) as i32);
            area.draw(&Text::new(title.as_str(), at, theme::title().pos(middle)))?;
            for (line, note) in (0..).zip(&notes) {
                let at = (left, (foot + line * theme::LINE + theme::LINE / 2) as i32);
                area.draw(&Text::new(
                    note.as_str(),
                    at,
                    theme::text(theme::SOFT).pos(middle),
                ))?;
            }
            let right = theme::MARGIN + LEFT + theme::PLOT + GAP;
            let (_, beside) = area.split_horizontally(right);
            let legend = ChartBuilder::on(&beside)
                .margin_top(head)
                .build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
            let mut chart = ChartBuilder::on(&area)
                .margin_top(head)
                .margin_left(theme::MARGIN)
                .margin_right(pixels + theme::MARGIN - LEFT - theme::PLOT)
                .margin_bottom(height - foot + GAP / 2)
                .x_label_area_size(BELOW)
                .y_label_area_size(LEFT)
                .build_cartesian_2d(self.x.widened(), self.y.widened())?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .max_light_lines(1)
                .bold_line_style(theme::GRID)
                .light_line_style(theme::PAPER.mix(0.0))
                .axis_style(theme::SOFT)
                .label_style(theme::text(theme::SOFT))
                .axis_desc_style(theme::text(theme::TEXT))
                .x_labels(8)
                .y_labels(7)
                .x_label_formatter(&|value| tick(*value))
                .y_label_formatter(&|value| tick(*value))
                .x_desc(&self.x.title)
                .y_desc(&self.y.title)
                .draw()?;
            let mut plot = Plot {
                chart,
                legend,
                backend: PhantomData,
            };
            for Hint { corners, text } in draw(&mut plot)? {
                let corners = corners.map(|corner| plot.chart.backend_coord(&corner));
                let [(x, bottom), (right, y)] = corners;
                let (width, height, text) = (right - x, bottom - y, terminal::shown(&text));
                let block = html! {
                    rect x=(x) y=(y) width=(width) height=(height) fill="none" pointer-events="all" { title { (text) } }
                };
                blocks += &block.into_string();
            }
            plot.legend
                .configure_series_labels()
                .position(SeriesLabelPosition::Coordinate(0, 0))
                .margin(0)
                .legend_area_size(theme::LINE + 10)
                .label_font(theme::text(theme::TEXT))
                .draw()?;
            area.present()?;
        }
        let name = html! { (title) }.into_string();
        let head = format!(
            "<svg class=\"rekindle\" role=\"img\" aria-label=\"{name}\" font-variant-numeric=\"tabular-nums\" "
        );
        Ok(svg
            .replacen("<svg ", &head, 1)
            .replacen('>', &format!(">{}", theme::STYLE_SHEET), 1)
            // plotters breaks lines around every text.
            .replace(">\n", ">")
            .replace("</svg>", &format!("{blocks}</svg>")))
    }
}

/// An entry of a legend that stands for an area.
pub fn area(colour: RGBColor) -> impl Fn((i32, i32)) -> Rectangle<(i32, i32)> {
    move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 6)], colour.filled())
}

/// An entry of a legend that stands for a line so many pixels wide.
pub fn line(colour: RGBColor, width: u32) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(width))
}

/// The same for a line of dashes.
pub fn dashes(
    colour: RGBColor,
) -> impl Fn((i32, i32)) -> DashedPathElement<std::array::IntoIter<(i32, i32), 2>, i32> {
    move |(x, y)| DashedPathElement::new([(x, y), (x + 22, y)], 7, 5, colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let axis = || Axis {
            range: 0.0..1.0,
            title: "</text><script>".into(),
        };
        let picture = Picture {
            title: "<a> & \"b\"".into(),
            x: axis(),
            y: axis(),
            notes: vec!["</text><script>\u{7}".into()],
        };
        let hint = Hint {
            corners: [(0.0, 0.0), (1.0, 1.0)],
            text: "</title><script>".into(),
        };
        let svg = picture.paint(|_| Ok(vec![hint])).expect("painted");
        assert!(svg.contains("aria-label=\"&lt;a&gt; &amp; &quot;b&quot;\""));
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;</title></rect>"));
        assert!(!svg.contains("<script") && !svg.contains('\u{7}'));
    }
}
