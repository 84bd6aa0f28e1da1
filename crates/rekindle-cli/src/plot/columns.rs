//! Reduces a timeline to the columns of a picture.
//!
//! A step of thousands of actions has several in each column. A column shows the highest of them, so that no peak is
//! lost, and the pass that takes most of its time.

use rekindle_plan::Bytes;
use rekindle_train::timeline::{Pass, TimedAction, Timeline};

/// What one column shows.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    /// The action with the highest prediction.
    pub highest: &'a TimedAction,
    /// The highest measurement.
    pub measured: Bytes,
    /// The most that pools had reserved.
    pub reserved: Option<Bytes>,
    /// The pass that takes most of the column's time.
    pub pass: Pass,
    /// The time of that pass, as a part of a column.
    share: f64,
}

/// Columns of equal width in time.
pub fn columns(timeline: &Timeline, count: usize) -> Vec<Column<'_>> {
    let total = timeline.duration().0;
    let mut columns: Vec<Option<Column<'_>>> = vec![None; count];
    let place = |seconds: f64| (seconds / total * count as f64).clamp(0.0, count as f64);
    for action in &timeline.actions {
        let from = place(action.start_s.0);
        let to = place(action.start_s.0 + action.duration_s.0);
        let first = (from as usize).min(count - 1);
        let last = (to.ceil() as usize).clamp(first + 1, count);
        for (index, column) in (first..).zip(&mut columns[first..last]) {
            let share = to.min((index + 1) as f64) - from.max(index as f64);
            let shown = column.get_or_insert(Column {
                highest: action,
                measured: action.measured_peak_bytes,
                reserved: action.reserved_bytes,
                pass: action.pass,
                share,
            });
            if action.predicted_at_peak.total() > shown.highest.predicted_at_peak.total() {
                shown.highest = action;
            }
            shown.measured = shown.measured.max(action.measured_peak_bytes);
            shown.reserved = shown.reserved.max(action.reserved_bytes);
            if share > shown.share {
                (shown.share, shown.pass) = (share, action.pass);
            }
        }
    }
    let mut filled: Vec<Column<'_>> = Vec::with_capacity(count);
    for column in columns {
        // Rounding may leave a gap between two actions.
        filled.extend(column.or_else(|| filled.last().copied()));
    }
    filled
}

/// Runs of neighbouring columns that are alike: the first of each, and where it begins and ends, from 0 to 1.
pub fn runs<'c, 'a>(
    columns: &'c [Column<'a>],
    alike: impl Fn(&Column<'a>, &Column<'a>) -> bool,
) -> Vec<(&'c Column<'a>, [f64; 2])> {
    let at = |column: usize| column as f64 / columns.len() as f64;
    let mut end = 0;
    let run = |run: &'c [Column<'a>]| {
        let first = end;
        end += run.len();
        (&run[0], [at(first), at(end)])
    };
    columns.chunk_by(alike).map(run).collect()
}

/// The corners of a line that is level within every column, from 0 to 1.
pub fn steps<'a>(columns: &[Column<'a>], height: impl Fn(&Column<'a>) -> f64) -> Vec<(f64, f64)> {
    let levels = runs(columns, |a, b| height(a) == height(b)).into_iter();
    let corners = levels.flat_map(|(level, ends)| ends.map(|end| (end, height(level))));
    corners.collect()
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Action, Parts, Seconds};

    use super::*;

    fn timeline(heights: &[u64], duration: f64) -> Timeline {
        let action = |(index, &height): (usize, &u64)| TimedAction {
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
        };
        Timeline {
            step: 1,
            beside_buffers_bytes: Bytes(0),
            actions: heights.iter().enumerate().map(action).collect(),
            exchanges: Vec::new(),
        }
    }

    fn heights(columns: &[Column<'_>]) -> Vec<u64> {
        let height = |column: &Column<'_>| column.highest.predicted_at_peak.total().0;
        columns.iter().map(height).collect()
    }

    #[test]
    fn no_peak_is_lost_among_many_actions() {
        let actions: Vec<u64> = (0..5_000)
            .map(|k| if k == 3_217 { 99 } else { k % 7 })
            .collect();
        let timeline = timeline(&actions, 1e-4);
        let columns = columns(&timeline, 80);
        assert_eq!(columns.len(), 80);
        assert_eq!(heights(&columns).into_iter().max(), Some(99));
        let column = columns[3_217 * 80 / 5_000];
        assert_eq!(column.measured, Bytes(100));
        assert_eq!(column.highest, &timeline.actions[3_217]);
    }

    #[test]
    fn few_actions_fill_all_columns() {
        let timeline = timeline(&[5, 8], 1.0);
        let columns = columns(&timeline, 10);
        assert_eq!(heights(&columns), [5, 5, 5, 5, 5, 8, 8, 8, 8, 8]);
        let line = steps(&columns, |column| column.measured.0 as f64);
        assert_eq!(line, [(0.0, 6.0), (0.5, 6.0), (0.5, 9.0), (1.0, 9.0)]);
    }

    #[test]
    fn a_step_that_took_no_time_is_one_column_high() {
        assert!(heights(&columns(&timeline(&[5, 8], 0.0), 4)).contains(&8));
    }
}
