//! A complete picture: title, a pair of axes, a legend on the right, and what the pointer shows.

use std::{io, marker::PhantomData};

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

use super::{
    axis::{Axis, tick},
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

    /// What the pointer shows over a block with these opposite corners, in the axes' units, and so many pixels more.
    pub fn hint(&self, corners: [(f64, f64); 2], more: i32, text: String) -> Hint {
        let [(x, bottom), (right, y)] = corners.map(|corner| self.chart.backend_coord(&corner));
        let (x, y) = (x - more, y - more);
        Hint {
            corner: (x, y),
            size: (right + more - x, bottom + more - y),
            text,
        }
    }
}

/// A block of pixels, and the text that a browser shows over it.
pub struct Hint {
    corner: (i32, i32),
    size: (i32, i32),
    text: String,
}

/// Pixels left of a plot and below it, for its axes.
const LEFT: u32 = 66;
const BELOW: u32 = 46;
/// Pixels between a plot and its legend.
const GAP: u32 = 16;

/// A picture without its series.
pub struct Picture {
    /// In one line.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
}

impl Picture {
    /// Paints it with the series that `draw` draws, each with its label, under the hints that it gives.
    pub fn paint(&self, draw: impl FnOnce(&mut Plot<'_, '_>) -> Drawn<Vec<Hint>>) -> Drawn<String> {
        let head = theme::MARGIN + 2 * theme::LINE;
        let height = head + theme::HEIGHT + BELOW + theme::MARGIN;
        let title = terminal::shown(&self.title);
        let mut svg = String::new();
        let mut blocks = String::new();
        {
            let area =
                SVGBackend::with_string(&mut svg, (theme::WIDTH, height)).into_drawing_area();
            area.fill(&theme::PAPER)?;
            let at = (
                theme::MARGIN as i32,
                (theme::MARGIN + theme::LINE / 2) as i32,
            );
            let middle = Pos::new(HPos::Left, VPos::Center);
            area.draw(&Text::new(title.as_str(), at, theme::title().pos(middle)))?;
            let right = theme::MARGIN + LEFT + theme::PLOT;
            let (_, beside) = area.split_horizontally(right + GAP);
            let legend = ChartBuilder::on(&beside)
                .margin_top(head)
                .build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
            let mut chart = ChartBuilder::on(&area)
                .margin_top(head)
                .margin_left(theme::MARGIN)
                .margin_right(theme::WIDTH - right)
                .margin_bottom(theme::MARGIN)
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
                .y_labels((theme::HEIGHT / 50) as usize)
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
            for Hint { corner, size, text } in draw(&mut plot)? {
                let ((x, y), (width, height)) = (corner, size);
                let block = html! {
                    rect x=(x) y=(y) width=(width) height=(height) fill="none" pointer-events="all" {
                        title { (terminal::shown(&text)) }
                    }
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
            title: "<a> & \"b\"\u{7}".into(),
            x: axis(),
            y: axis(),
        };
        let hinted = |plot: &mut Plot<'_, '_>| {
            let text = "</title><script>\u{7}".into();
            Ok(vec![plot.hint([(0.0, 0.0), (1.0, 1.0)], 0, text)])
        };
        let svg = picture.paint(hinted).expect("painted");
        assert!(svg.contains("aria-label=\"&lt;a&gt; &amp; &quot;b&quot;"));
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;"));
        assert!(!svg.contains("<script") && !svg.contains('\u{7}'));
    }
}
