//! One step: memory over time, by kind.
//!
//! Areas are the prediction, stacked by kind, each action as high as its peak; the line over them is the measurement. Both
//! axes begin at zero. The strip above shows which pass was running; for a run on several ranks, a second strip shows the
//! all-reduces. The legend has each kind's bytes at the predicted peak, and each pass's time.

use rekindle_plan::{Bytes, Parts, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction, Timeline},
};

use super::chart::{
    self, Axis, BOLD, BYTES, DASHES, PAPER, Picture, Place, SECONDS, SOFT, TEXT, THIN,
};

/// The picture's file in a run's folder.
pub const TIMELINE: &str = "timeline.svg";

/// Places of the strips, of the peak's label and of the top, as multiples of the highest value.
const PASS_STRIP: f64 = 1.25;
const EXCHANGE_STRIP: f64 = 1.2;
const STRIP: f64 = 0.035;
const LABEL: f64 = 1.07;
const TOP: f64 = 1.3;
/// A budget this many times higher than the peak is not shown, because it would make everything else small.
const FAR_BUDGET: f64 = 1.6;

/// A kind of bytes: its name, its colour, and its part.
pub type Kind = (&'static str, &'static str, fn(&Parts) -> Bytes);

/// From the bottom of the stack to its top.
pub const KINDS: [Kind; 6] = [
    ("parameters, data, state", "#B9BEC5", |of| of.fixed),
    ("kept activations", "#0072B2", |of| of.activations),
    ("recomputed activations", "#56B4E9", |of| of.graphs),
    ("gradients of activations", "#E69F00", |of| of.gradients),
    ("gradients of parameters", "#F8D894", |of| {
        of.parameter_gradients
    }),
    ("temporaries", "#D3EBF9", |of| of.temporary),
];

const PASSES: [(Pass, &str, &str); 7] = [
    (Pass::Forward, "forward", "#009E73"),
    (Pass::Recompute, "recompute", "#D55E00"),
    (Pass::Loss, "loss", "#F0E442"),
    (Pass::Backward, "backward", "#994F7F"),
    (Pass::Optimizer, "optimizer", "#3F454C"),
    (Pass::Offload, "offload", "#004D80"),
    (Pass::Fetch, "fetch", "#9AD2F2"),
];

/// All-reduces of gradients.
const EXCHANGE: &str = "#F8D894";

/// The timeline of a run, if it has one.
pub fn picture(record: &RunRecord) -> Option<String> {
    let timeline = record.timeline.as_ref()?;
    let highest = timeline.predicted_peak()?;
    let groups = groups(timeline, chart::PLOT);
    let held = |group: &Group<'_>| {
        let measured = group.measured.max(group.reserved.unwrap_or_default());
        measured.max(group.highest.predicted_at_peak.total())
    };
    let held = groups.iter().map(held).max().unwrap_or_default();
    // On a GPU a budget may bound the driver's context and the pools too, which a meter of live buffers does not measure.
    let budget = record.plan.budget;
    let budget = budget.map(|budget| budget - timeline.beside_buffers_bytes);
    let budget = budget.filter(|budget| (budget.0 as f64) < held.0 as f64 * FAR_BUDGET);
    let top = held.max(budget.unwrap_or_default());
    let end = timeline.duration();
    let mut picture = Picture::new(
        &format!("{}: memory during step {}", record.name, timeline.step),
        Axis::new("time since the step began", [0.0, end.0], SECONDS),
        Axis::new("memory in use", [0.0, top.0 as f64 * TOP], BYTES),
    );
    let drawing = Drawing {
        timeline,
        highest,
        groups,
        budget,
        top: top.0 as f64,
        end: end.0,
    };
    drawing.areas(&mut picture);
    drawing.lines(&mut picture);
    drawing.peak(&mut picture);
    drawing.passes(&mut picture);
    drawing.exchanges(&mut picture);
    Some(picture.svg())
}

struct Drawing<'a> {
    timeline: &'a Timeline,
    highest: &'a TimedAction,
    groups: Vec<Group<'a>>,
    /// The budget of what is drawn, where it is near enough to be shown.
    budget: Option<Bytes>,
    /// The highest value, in bytes.
    top: f64,
    /// The end of the step, in seconds.
    end: f64,
}

impl Drawing<'_> {
    /// A line that is level within every group.
    fn line(&self, height: impl Fn(&Group<'_>) -> Bytes) -> Vec<Place> {
        let same = self.groups.chunk_by(|a, b| height(a) == height(b));
        let level = |run: &[Group<'_>]| {
            let ends = [run[0].ends[0], run[run.len() - 1].ends[1]];
            ends.map(|end| (end, height(&run[0]).0 as f64))
        };
        same.flat_map(level).collect()
    }

    /// The corners of a block of a strip.
    fn block(&self, strip: f64, [left, right]: [f64; 2]) -> [Place; 4] {
        let [bottom, top] = [strip, strip + STRIP].map(|edge| edge * self.top);
        [(left, bottom), (right, bottom), (right, top), (left, top)]
    }

    /// Which pass was running.
    fn passes(&self, picture: &mut Picture) {
        picture.caption("time of each pass (the strip above):");
        for (pass, name, colour) in PASSES {
            let actions = self.timeline.actions.iter();
            let of_pass = actions.filter(|action| action.pass == pass);
            let seconds: Seconds = of_pass.clone().map(|action| action.duration_s).sum();
            if of_pass.count() == 0 {
                continue;
            }
            for run in self.groups.chunk_by(|a, b| a.pass == b.pass) {
                let (first, last) = (&run[0], &run[run.len() - 1]);
                if first.pass == pass {
                    let ends = [first.ends[0], last.ends[1]];
                    picture.area(&self.block(PASS_STRIP, ends), colour);
                }
            }
            picture.area_entry(&format!("{name} {seconds}"), colour);
        }
    }

    /// When the network was busy.
    fn exchanges(&self, picture: &mut Picture) {
        let exchanges = &self.timeline.exchanges;
        if exchanges.is_empty() {
            return;
        }
        for one in exchanges {
            let ends = [one.start_s, one.start_s + one.duration_s];
            let ends = ends.map(|end| end.0.min(self.end));
            picture.area(&self.block(EXCHANGE_STRIP, ends), EXCHANGE);
        }
        let seconds: Seconds = exchanges.iter().map(|one| one.duration_s).sum();
        let bytes: Bytes = exchanges.iter().map(|one| one.bytes).sum();
        picture.area_entry(&format!("exchange {seconds}, {bytes}"), EXCHANGE);
    }

    /// The prediction, from the top of the stack to its bottom, each layer over the one above it.
    fn areas(&self, picture: &mut Picture) {
        picture.caption("at the peak, as predicted (areas) and measured (line):");
        for layers in (1..=KINDS.len()).rev() {
            let (name, colour, of) = KINDS[layers - 1];
            let mut outline = self.line(|group| {
                let parts = &group.highest.predicted_at_peak;
                KINDS[..layers].iter().map(|(.., of)| of(parts)).sum()
            });
            outline.extend([(self.end, 0.0), (0.0, 0.0)]);
            picture.area(&outline, colour);
            let bytes = of(&self.highest.predicted_at_peak);
            picture.area_entry(&format!("{name} {bytes}"), colour);
        }
    }

    /// The budget, what the pools had reserved, and what was measured.
    fn lines(&self, picture: &mut Picture) {
        if let Some(budget) = self.budget {
            let line = [0.0, self.end].map(|x| (x, budget.0 as f64));
            let of = match self.timeline.beside_buffers_bytes {
                Bytes::ZERO => "budget",
                _ => "budget for buffers",
            };
            picture.line(&line, TEXT, DASHES, Some(&format!("{of} {budget}")));
        }
        if self.groups.iter().any(|group| group.reserved.is_some()) {
            let line = self.line(|group| group.reserved.unwrap_or_default());
            picture.line(&line, SOFT, THIN, Some("reserved by the pools"));
        }
        let measured = self.line(|group| group.measured);
        // Paper around the line, so that it is seen on every colour.
        picture.line(&measured, PAPER, (4, None), None);
        let name = format!("measured {}", self.timeline.measured_peak());
        picture.line(&measured, TEXT, BOLD, Some(&name));
    }

    /// The predicted peak, with both numbers.
    fn peak(&self, picture: &mut Picture) {
        let peak = self.highest.predicted_at_peak.total();
        let mut groups = self.groups.iter();
        let highest = groups.find(|group| group.highest.predicted_at_peak.total() == peak);
        let [from, to] = highest.map_or([0.0; 2], |group| group.ends);
        let point = (f64::midpoint(from, to), peak.0 as f64);
        let above = (point.0, LABEL * self.top);
        let measured = self.timeline.measured_peak();
        let text = format!("predicted peak {peak}, measured {measured}");
        picture.line(&[point, above], SOFT, THIN, None);
        picture.dot(point, [TEXT, PAPER], "");
        picture.label(above, &text);
    }
}

/// Consecutive actions that are drawn as one: a step of thousands has several in each pixel. It is as high as the highest of
/// them, so that no peak is lost.
struct Group<'a> {
    /// When it begins and ends, in seconds.
    ends: [f64; 2],
    /// The action with the highest prediction.
    highest: &'a TimedAction,
    /// The highest measurement.
    measured: Bytes,
    /// The most that pools had reserved.
    reserved: Option<Bytes>,
    /// The pass of the longest action.
    pass: Pass,
}

/// Consecutive actions that begin in the same of `parts` parts of the step's time are a group; an action as long as a part
/// begins one.
fn groups(timeline: &Timeline, parts: usize) -> Vec<Group<'_>> {
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
    use rekindle_plan::Action;

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
        let groups = groups(&timeline, 9);
        assert_eq!(heights(&groups), [5, 9, 6]);
        assert_eq!(groups[0].ends, [0.0, 1.0]);
        assert_eq!(groups[2].ends[1], timeline.duration().0);
    }

    #[test]
    fn a_step_that_took_no_time_has_all_its_actions() {
        assert_eq!(heights(&groups(&timeline([(5, 0.0), (8, 0.0)]), 4)), [5, 8]);
    }
}
