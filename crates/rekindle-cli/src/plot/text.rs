//! Memory against time in twelve lines of text.

use rekindle_plan::{Bytes, Seconds};

const ROWS: usize = 10;
const COLUMNS: usize = 60;

/// A `*` at each peak and step time; empty where all are the same.
pub fn plot(points: &[(Bytes, Seconds)]) -> String {
    let peaks = points.iter().map(|one| one.0.0 as f64);
    let times = points.iter().map(|one| one.1.0);
    let [left, right] = ends(peaks);
    let [bottom, top] = ends(times);
    if points.len() < 2 || right <= left || top <= bottom {
        return String::new();
    }
    let mut rows = [[' '; COLUMNS]; ROWS];
    for &(peak, time) in points {
        let along = (peak.0 as f64 - left) / (right - left);
        let up = (time.0 - bottom) / (top - bottom);
        let row = ((1.0 - up) * (ROWS - 1) as f64).round() as usize;
        rows[row][(along * (COLUMNS - 1) as f64).round() as usize] = '*';
    }
    let [bottom, top] = [bottom, top].map(|time| Seconds(time).to_string());
    let [left, right] = [left, right].map(|peak| Bytes(peak as u64).to_string());
    let width = bottom.chars().count().max(top.chars().count());
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        let label = match place {
            0 => &*top,
            place if place + 1 == ROWS => &*bottom,
            _ => "",
        };
        let row: String = row.iter().collect();
        text += &format!("{label:>width$} |{}\n", row.trim_end());
    }
    let line = "-".repeat(COLUMNS);
    let gap = COLUMNS - left.chars().count();
    text + &format!(
        "{:width$} +{line}\n{:width$}  {left}{right:>gap$}\n",
        "step", "peak"
    )
}

/// The least and the largest.
pub fn ends(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, 0.0], |[least, most], value| {
        [least.min(value), most.max(value)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_in_the_corners() {
        let points =
            [(1, 4.0), (2, 2.0), (3, 1.0)].map(|(mib, time)| (Bytes(mib << 20), Seconds(time)));
        let text = plot(&points);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 12, "{text}");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(
            lines[0].ends_with("|*") && lines[0].trim_start().starts_with("4.00 s"),
            "{text}"
        );
        // A third of the way up, in the middle.
        let marks = |line: &str| line.split('|').nth(1).and_then(|row| row.find('*'));
        assert_eq!(marks(lines[6]), Some(COLUMNS / 2), "{text}");
        assert_eq!(marks(lines[ROWS - 1]), Some(COLUMNS - 1), "{text}");
        assert!(
            lines[11].contains("1.0 MiB") && lines[11].ends_with("3.0 MiB"),
            "{text}"
        );
        assert_eq!(plot(&points[..1]), "");
    }
}
