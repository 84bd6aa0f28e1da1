//! What the colours mean, in as many rows as it takes.

use plotters::style::text_anchor::HPos;
use plotters::{element::PathElement, style::Color};

use super::{
    canvas::{self, Area, Drawn},
    shape::Shape,
    theme::{self, Ink},
};

/// How an entry's colour is used in the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// An area.
    Area,
    /// A line.
    Line,
    /// A line with gaps.
    Dashes,
    /// A single point.
    Point(Shape),
    /// A ring about a point.
    Ring,
    /// No colour: the entry speaks of the ones after it.
    None,
}

/// One entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// How it is painted.
    pub mark: Mark,
    /// In which colour.
    pub ink: Ink,
    /// What it means.
    pub text: String,
}

impl Entry {
    /// An entry.
    pub fn new(mark: Mark, ink: Ink, text: impl Into<String>) -> Self {
        Self {
            mark,
            ink,
            text: text.into(),
        }
    }

    /// Words before entries.
    pub fn words(text: impl Into<String>) -> Self {
        Self::new(Mark::None, theme::SOFT, text)
    }

    fn mark_width(&self) -> u32 {
        match self.mark {
            Mark::None => 0,
            Mark::Area | Mark::Point(_) | Mark::Ring => 16,
            Mark::Line | Mark::Dashes => 28,
        }
    }

    fn width(&self) -> u32 {
        self.mark_width() + canvas::width_of(&self.text, theme::LETTERS)
    }
}

const GAP: u32 = 14;

/// Groups of entries, each of which begins a row, laid out.
pub struct Legend {
    rows: Vec<Vec<(u32, Entry)>>,
}

impl Legend {
    /// Lays out groups of entries in rows of so many pixels.
    pub fn new(groups: Vec<Vec<Entry>>, pixels: u32) -> Self {
        let mut rows = Vec::new();
        for group in groups {
            let mut row: Vec<(u32, Entry)> = Vec::new();
            let mut x = 0;
            for entry in group {
                let parts = match entry.mark {
                    Mark::None => canvas::wrapped(&entry.text, pixels)
                        .into_iter()
                        .map(Entry::words)
                        .collect(),
                    _ => vec![entry],
                };
                for part in parts {
                    let width = part.width();
                    if !row.is_empty() && x + width > pixels {
                        rows.push(std::mem::take(&mut row));
                        x = 0;
                    }
                    row.push((x, part));
                    x += width + GAP;
                }
            }
            rows.push(row);
        }
        Self { rows }
    }

    /// Pixels from top to bottom.
    pub fn height(&self) -> u32 {
        self.rows.len() as u32 * theme::LINE
    }

    /// Paints it with its upper left corner at a point.
    pub fn paint(&self, area: &Area<'_>, (left, top): (i32, i32)) -> Drawn<()> {
        for (row, entries) in self.rows.iter().enumerate() {
            let middle = top + (row as u32 * theme::LINE + theme::LINE / 2) as i32;
            for (x, entry) in entries {
                let x = left + *x as i32;
                paint_mark(area, entry, (x, middle))?;
                let ink = match entry.mark {
                    Mark::None => theme::SOFT,
                    _ => theme::TEXT,
                };
                let at = (x + entry.mark_width() as i32, middle);
                canvas::text(area, &entry.text, at, ink, HPos::Left)?;
            }
        }
        Ok(())
    }
}

fn paint_mark(area: &Area<'_>, entry: &Entry, (x, middle): (i32, i32)) -> Drawn<()> {
    let line = |from: i32, to: i32| {
        let style = entry.ink.light().stroke_width(2);
        area.draw(&PathElement::new(
            [(x + from, middle), (x + to, middle)],
            style,
        ))
    };
    match entry.mark {
        Mark::None => Ok(()),
        Mark::Area => canvas::rectangle(area, (x, middle - 6), (x + 11, middle + 5), entry.ink),
        Mark::Point(shape) => shape.paint(area, (x + 5, middle), 5, entry.ink, true),
        Mark::Ring => Shape::ring(area, (x + 5, middle), 6, entry.ink),
        Mark::Line => line(0, 22),
        Mark::Dashes => line(0, 9).and_then(|()| line(13, 22)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_overlaps_another_or_leaves_its_row() {
        let entries: Vec<_> = (0..9)
            .map(|k| Entry::new(Mark::Area, theme::FIXED, "x".repeat(3 + 2 * k)))
            .collect();
        let pixels = 300;
        let legend = Legend::new(vec![entries.clone(), entries], pixels);
        assert!(legend.rows.len() > 2);
        for row in &legend.rows {
            for pair in row.windows(2) {
                assert!(pair[0].0 + pair[0].1.width() < pair[1].0);
            }
            let (x, last) = row.last().expect("entries");
            assert!(x + last.width() <= pixels);
        }
    }
}
