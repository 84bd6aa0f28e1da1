//! Labels of marks, placed so that none covers another or a mark.

use super::theme;

/// A rectangle of pixels: left, top, right, bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame(pub i32, pub i32, pub i32, pub i32);

impl Frame {
    /// A square about a point.
    pub fn about((x, y): (i32, i32), radius: i32) -> Self {
        Self(x - radius, y - radius, x + radius, y + radius)
    }

    fn overlaps(self, other: Self) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }

    fn contains(self, other: Self) -> bool {
        self.0 <= other.0 && self.1 <= other.1 && other.2 <= self.2 && other.3 <= self.3
    }
}

/// Pixels between a mark and its label.
const GAP: i32 = 4;
/// Pixels from the top of a label to its bottom.
pub const HEIGHT: i32 = 14;
/// Distances from the mark at which a place is looked for, in steps of a label's height.
const RINGS: i32 = 3;

/// Labels inside a plot.
pub struct Labels {
    /// The plot.
    pub inside: Frame,
    /// Places that must stay free, of marks and of other labels.
    pub taken: Vec<Frame>,
}

impl Labels {
    /// Where the left end of a label for a mark goes, level with its middle; `None` where there is no room near it.
    pub fn place(&mut self, text: &str, mark: Frame) -> Option<(i32, i32)> {
        let width = theme::width_of(text) as i32;
        let (x, y) = ((mark.0 + mark.2) / 2, (mark.1 + mark.3) / 2);
        let near = (0..RINGS).flat_map(|ring| {
            let away = ring * HEIGHT;
            let (right, left) = (mark.2 + GAP + away, mark.0 - GAP - away - width);
            let (above, below) = (
                mark.1 - HEIGHT / 2 - 1 - away,
                mark.3 + HEIGHT / 2 + 1 + away,
            );
            let middle = x - width / 2;
            [
                (right, y),
                (middle, above),
                (left, y),
                (middle, below),
                (right, above),
                (right, below),
                (left, above),
                (left, below),
            ]
        });
        let frame = |(left, middle): (i32, i32)| {
            Frame(left, middle - HEIGHT / 2, left + width, middle + HEIGHT / 2)
        };
        let mut free = near.filter(|&at| {
            let frame = frame(at);
            self.inside.contains(frame) && !self.taken.iter().any(|taken| taken.overlaps(frame))
        });
        let at = free.next()?;
        self.taken.push(frame(at));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cover_neither_each_other_nor_a_mark_and_stay_inside() {
        let inside = Frame(0, 0, 300, 200);
        // A crowd in the middle, and a mark in each corner.
        let mut marks: Vec<Frame> = (0..8)
            .map(|k| Frame::about((140 + 9 * (k % 4), 95 + 11 * (k / 4)), 5))
            .collect();
        marks.extend([(5, 5), (295, 5), (5, 195), (295, 195)].map(|at| Frame::about(at, 5)));
        let mut labels = Labels {
            inside,
            taken: marks.clone(),
        };
        let placed = marks
            .iter()
            .filter(|&&mark| labels.place("128 segments", mark).is_some())
            .count();
        assert!(placed >= 8, "{placed}");
        let texts = &labels.taken[marks.len()..];
        for (index, text) in texts.iter().enumerate() {
            assert!(inside.contains(*text));
            let others = marks.iter().chain(&texts[..index]);
            assert!(others.into_iter().all(|other| !other.overlaps(*text)));
        }
    }
}
