//! Marks of single points: shapes that can be told apart without their colours.

use plotters::{
    element::{Circle, PathElement, Polygon},
    style::{Color, ShapeStyle},
};

use super::{
    canvas::{Area, Drawn},
    theme::{self, Ink},
};

/// A shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A circle.
    Disc,
    /// A square on its side.
    Square,
    /// A triangle on its base.
    Triangle,
    /// A square on its corner.
    Diamond,
}

impl Shape {
    /// Paints a ring that goes around any shape.
    pub fn ring(area: &Area<'_>, at: (i32, i32), radius: i32, ink: Ink) -> Drawn<()> {
        area.draw(&Circle::new(at, radius, ink.light().stroke_width(2)))
    }

    /// Paints it about a point, so many pixels from there to its edge: full, or its outline on paper.
    pub fn paint(
        self,
        area: &Area<'_>,
        (x, y): (i32, i32),
        radius: i32,
        ink: Ink,
        full: bool,
    ) -> Drawn<()> {
        let inside: ShapeStyle = if full { ink } else { theme::PAPER }.light().filled();
        let outline = ink.light().stroke_width(2);
        let corners = match self {
            Self::Disc => {
                area.draw(&Circle::new((x, y), radius, inside))?;
                return area.draw(&Circle::new((x, y), radius, outline));
            }
            Self::Square => [(-1, -1), (1, -1), (1, 1), (-1, 1)].to_vec(),
            Self::Triangle => [(0, -1), (1, 1), (-1, 1)].to_vec(),
            Self::Diamond => [(0, -1), (1, 0), (0, 1), (-1, 0)].to_vec(),
        };
        let mut corners: Vec<(i32, i32)> = corners
            .into_iter()
            .map(|(dx, dy)| (x + dx * radius, y + dy * radius))
            .collect();
        area.draw(&Polygon::new(corners.clone(), inside))?;
        corners.extend(corners.first().copied());
        area.draw(&PathElement::new(corners, outline))
    }
}
