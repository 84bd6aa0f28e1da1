//! A timeline in no more columns than a picture has.
//!
//! A step of thousands of actions has several in each column. A column shows the highest of them, so that no peak is
//! lost, and the pass that takes most of its time.

use rekindle_plan::{Bytes, Parts};
use rekindle_train::timeline::{Pass, Timeline};

/// What one column shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Column {
    /// The highest prediction.
    pub predicted: Parts,
    /// The highest measurement.
    pub measured: Bytes,
    /// The most that pools had reserved.
    pub reserved: Option<Bytes>,
    /// The pass that takes most of the column's time.
    pub pass: Pass,
    /// The place of the action with the highest prediction.
    pub highest: usize,
}

/// Columns of equal width in time.
pub fn columns(timeline: &Timeline, count: usize) -> Vec<Column> {
    let total = timeline.duration().0;
    let mut columns: Vec<Option<(Column, f64)>> = vec![None; count];
    let place = |seconds: f64| (seconds / total * count as f64).clamp(0.0, count as f64);
    for (number, action) in timeline.actions.iter().enumerate() {
        let from = place(action.start_s.0);
        let to = place(action.start_s.0 + action.duration_s.0);
        let first = (from as usize).min(count - 1);
        let last = (to.ceil() as usize).clamp(first + 1, count);
        for (index, column) in columns.iter_mut().enumerate().take(last).skip(first) {
            let share = to.min((index + 1) as f64) - from.max(index as f64);
            let (shown, longest) = column.get_or_insert((
                Column {
                    predicted: action.predicted_at_peak,
                    measured: action.measured_peak_bytes,
                    reserved: action.reserved_bytes,
                    pass: action.pass,
                    highest: number,
                },
                share,
            ));
            if action.predicted_at_peak.total() > shown.predicted.total() {
                shown.predicted = action.predicted_at_peak;
                shown.highest = number;
            }
            shown.measured = shown.measured.max(action.measured_peak_bytes);
            shown.reserved = shown.reserved.max(action.reserved_bytes);
            if share > *longest {
                (*longest, shown.pass) = (share, action.pass);
            }
        }
    }
    let mut filled: Vec<Column> = Vec::with_capacity(count);
    for column in columns {
        let shown = column.map(|(column, _)| column);
        // Rounding may leave a gap between two actions.
        filled.extend(shown.or_else(|| filled.last().copied()));
    }
    filled
}

/// The corners of a line that is level within every column, from 0 to 1.
pub fn steps(columns: &[Column], height: impl Fn(&Column) -> f64) -> Vec<(f64, f64)> {
    let at = |column: usize| column as f64 / columns.len() as f64;
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        let height = height(column);
        match corners.last() {
            Some(&(_, last)) if last == height => {}
            Some(&(_, last)) => corners.extend([(at(index), last), (at(index), height)]),
            None => corners.push((at(index), height)),
        }
    }
    let end = corners.last().map(|&(_, last)| (1.0, last));
    corners.extend(end);
    corners
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Action, Seconds};
    use rekindle_train::timeline::TimedAction;

    use super::*;

    fn timeline(heights: &[u64], duration: f64) -> Timeline {
        let actions = heights
            .iter()
            .enumerate()
            .map(|(index, &height)| TimedAction {
                action: Action::Loss,
                pass: Pass::Forward,
                start_s: Seconds(index as f64 * duration),
                duration_s: Seconds(duration),
                predicted_at_peak: Parts {
                    fixed: Bytes(height),
                    ..Parts::default()
                },
                predicted_after_bytes: Bytes(0),
                measured_peak_bytes: Bytes(height + 1),
                measured_after_bytes: Bytes(0),
                reserved_bytes: None,
            });
        Timeline {
            step: 1,
            beside_buffers_bytes: Bytes(0),
            actions: actions.collect(),
            exchanges: Vec::new(),
        }
    }

    #[test]
    fn no_peak_is_lost_among_many_actions() {
        let heights: Vec<u64> = (0..5_000)
            .map(|k| if k == 3_217 { 99 } else { k % 7 })
            .collect();
        let columns = columns(&timeline(&heights, 1e-4), 80);
        assert_eq!(columns.len(), 80);
        let highest = columns.iter().map(|column| column.predicted.total().0);
        assert_eq!(highest.max(), Some(99));
        assert_eq!(
            columns.iter().map(|column| column.measured.0).max(),
            Some(100)
        );
        let column = columns[3_217 * 80 / 5_000];
        assert_eq!((column.measured, column.highest), (Bytes(100), 3_217));
    }

    #[test]
    fn few_actions_fill_all_columns() {
        let columns = columns(&timeline(&[5, 8], 1.0), 10);
        let heights: Vec<u64> = columns
            .iter()
            .map(|column| column.predicted.total().0)
            .collect();
        assert_eq!(heights, [5, 5, 5, 5, 5, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn a_step_that_took_no_time_is_one_column_high() {
        let columns = columns(&timeline(&[5, 8], 0.0), 4);
        assert!(
            columns
                .iter()
                .any(|column| column.predicted.total() == Bytes(8))
        );
    }
}
