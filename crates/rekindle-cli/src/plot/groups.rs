//! Joins actions of a timeline that are too short to be seen.
//!
//! A step of thousands of actions has several in each pixel. They are drawn as one, as high as the highest of them, so that
//! no peak is lost.

use rekindle_plan::Bytes;
use rekindle_train::timeline::{Pass, TimedAction, Timeline};

/// Consecutive actions that are drawn as one.
#[derive(Debug)]
pub struct Group<'a> {
    /// When it begins and ends, in seconds.
    pub ends: [f64; 2],
    /// The action with the highest prediction.
    pub highest: &'a TimedAction,
    /// The highest measurement.
    pub measured: Bytes,
    /// The most that pools had reserved.
    pub reserved: Option<Bytes>,
    /// The pass of the longest action.
    pub pass: Pass,
}

/// Consecutive actions that begin in the same of `parts` parts of the step's time are a group; an action as long as a part
/// begins one.
pub fn groups(timeline: &Timeline, parts: usize) -> Vec<Group<'_>> {
    let end = timeline.duration();
    let width = end.0 / parts as f64;
    let part = |action: &TimedAction| (action.start_s.0 / width) as usize;
    let joined = |a: &TimedAction, b: &TimedAction| part(a) == part(b) && b.duration_s.0 < width;
    let mut chunks = timeline.actions.chunk_by(joined).peekable();
    let mut groups = Vec::new();
    while let Some(actions) = chunks.next() {
        let next = chunks.peek().map_or(end, |next| next[0].start_s);
        groups.push(Group::new(actions, [actions[0].start_s.0, next.0]));
    }
    groups
}

impl<'a> Group<'a> {
    fn new(actions: &'a [TimedAction], ends: [f64; 2]) -> Self {
        let highest = actions
            .iter()
            .max_by_key(|action| action.predicted_at_peak.total());
        let longest = actions
            .iter()
            .max_by(|a, b| a.duration_s.0.total_cmp(&b.duration_s.0));
        let measured = actions.iter().map(|action| action.measured_peak_bytes);
        let reserved = actions.iter().filter_map(|action| action.reserved_bytes);
        Self {
            ends,
            highest: highest.unwrap_or(&actions[0]),
            measured: measured.max().unwrap_or_default(),
            reserved: reserved.max(),
            pass: longest.unwrap_or(&actions[0]).pass,
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Action, Parts, Seconds};

    use super::*;

    /// Actions of so many bytes and seconds.
    fn timeline(actions: impl IntoIterator<Item = (u64, f64)>) -> Timeline {
        let mut start = 0.0;
        let action = |(height, duration): (u64, f64)| {
            start += duration;
            TimedAction {
                action: Action::Loss,
                pass: Pass::Forward,
                start_s: Seconds(start - duration),
                duration_s: Seconds(duration),
                predicted_at_peak: Parts {
                    fixed: Bytes(height),
                    ..Parts::default()
                },
                predicted_after_bytes: Bytes(0),
                measured_peak_bytes: Bytes(height + 1),
                measured_after_bytes: Bytes(0),
                reserved_bytes: None,
            }
        };
        Timeline {
            step: 1,
            beside_buffers_bytes: Bytes(0),
            actions: actions.into_iter().map(action).collect(),
            exchanges: Vec::new(),
        }
    }

    fn heights(groups: &[Group<'_>]) -> Vec<u64> {
        let height = |group: &Group<'_>| group.highest.predicted_at_peak.total().0;
        groups.iter().map(height).collect()
    }

    #[test]
    fn no_peak_is_lost_among_many_actions() {
        let height = |k: u64| if k == 3_217 { 99 } else { k % 7 };
        let timeline = timeline((0..5_000).map(|k| (height(k), 1e-4)));
        let groups = groups(&timeline, 80);
        assert!((70..=80).contains(&groups.len()), "{}", groups.len());
        let highest = groups.iter().max_by_key(|group| group.measured);
        let highest = highest.expect("a group");
        assert_eq!(highest.measured, Bytes(100));
        assert_eq!(highest.highest, &timeline.actions[3_217]);
    }

    #[test]
    fn a_short_action_does_not_raise_a_long_one() {
        let short = 1.0 / 1024.0;
        let timeline = timeline([(5, 1.0), (8, short), (9, short), (6, 1.0)]);
        let groups = groups(&timeline, 10);
        assert_eq!(heights(&groups), [5, 9, 6]);
        assert_eq!(groups[0].ends, [0.0, 1.0]);
        assert_eq!(groups[2].ends[1], timeline.duration().0);
    }

    #[test]
    fn a_step_that_took_no_time_has_all_its_actions() {
        assert_eq!(heights(&groups(&timeline([(5, 0.0), (8, 0.0)]), 4)), [5, 8]);
    }
}
