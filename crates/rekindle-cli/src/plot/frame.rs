//! A pair of axes in the theme.

use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{cartesian::Cartesian2d, types::RangedCoordf64},
    style::Color,
};

use super::{
    axis::tick,
    canvas::{Area, Drawn},
    theme::{self, Size},
};
use plotters::backend::SVGBackend;

/// Pixels around a picture.
pub const MARGIN: i32 = 14;
/// Pixels left of a plot, for its axis.
pub const LEFT: i32 = 66;
/// Pixels between an axis and the legend below it.
pub const GAP: i32 = 8;
/// Pixels below a plot, for its axis.
pub const BELOW: i32 = 46;

/// A plot that can be drawn in.
pub type Plot<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What one axis shows.
pub struct Axis {
    /// From where to where. A range without length is widened.
    pub range: std::ops::Range<f64>,
    /// Its title, unit included.
    pub title: String,
}

impl Axis {
    fn widened(&self) -> std::ops::Range<f64> {
        let (start, end) = (self.range.start, self.range.end);
        match end > start {
            true => start..end,
            false => start - 0.5..start + 0.5,
        }
    }
}

/// Draws axes with ticks, titles and level lines.
pub fn frame<'a, 'b>(area: &'a Area<'b>, size: Size, x: &Axis, y: &Axis) -> Drawn<Plot<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(MARGIN)
        .margin_right(MARGIN)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(x.widened(), y.widened())?;
    let x_labels = match size {
        Size::Wide => 10,
        Size::Narrow => 5,
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .bold_line_style(theme::GRID.light())
        .light_line_style(theme::PAPER.light().mix(0.0))
        .axis_style(theme::SOFT.light())
        .label_style(theme::text(theme::SOFT))
        .axis_desc_style(theme::text(theme::TEXT))
        .x_labels(x_labels)
        .y_labels(7)
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .x_desc(&x.title)
        .y_desc(&y.title)
        .draw()?;
    Ok(chart)
}
