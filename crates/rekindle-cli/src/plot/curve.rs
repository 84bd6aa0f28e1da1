//! The loss of every step, and of evaluations.

use plotters::{
    element::{Circle, PathElement},
    style::Color,
};
use rekindle_train::record::{EvalRecord, StepRecord};

use super::{
    canvas::{self, Drawn},
    frame::{Axis, BELOW, GAP, MARGIN, frame},
    legend::{Entry, Legend, Mark},
    theme::{self, Size},
};

const PLOT: i32 = 200;

/// The losses of a run of two steps or more; `None` where there is no line to draw.
pub fn picture(
    steps: &[StepRecord],
    evaluations: &[EvalRecord],
    size: Size,
) -> Option<Drawn<String>> {
    let points = |steps: &mut dyn Iterator<Item = (usize, f64)>| {
        let finite = steps.filter(|(_, loss)| loss.is_finite());
        finite
            .map(|(step, loss)| (step as f64, loss))
            .collect::<Vec<_>>()
    };
    let losses = points(&mut steps.iter().map(|step| (step.step, step.loss)));
    let evaluations = evaluations.iter();
    let evaluations = points(&mut evaluations.map(|evaluation| (evaluation.step, evaluation.loss)));
    (losses.len() > 1).then(|| paint(&thinned(losses, size.width() as usize), &evaluations, size))
}

/// At most two points for each pixel, the lowest and the highest of its steps.
fn thinned(points: Vec<(f64, f64)>, pixels: usize) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(pixels);
    if each <= 2 {
        return points;
    }
    let by_loss = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let ends = |steps: &[(f64, f64)]| {
        let low = steps.iter().min_by(by_loss).copied();
        let high = steps.iter().max_by(by_loss).copied();
        let mut ends: Vec<_> = low.into_iter().chain(high).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    };
    points.chunks(each).flat_map(ends).collect()
}

fn paint(losses: &[(f64, f64)], evaluations: &[(f64, f64)], size: Size) -> Drawn<String> {
    let width = size.width();
    let all = || losses.iter().chain(evaluations);
    let lowest = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let highest = all().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    let room = (highest - lowest) * 0.06;
    let x = Axis {
        range: 1.0..all().map(|point| point.0).fold(1.0, f64::max),
        title: "step".into(),
    };
    let y = Axis {
        range: lowest - room..highest + room,
        title: "loss".into(),
    };
    let mut entries = vec![Entry::new(
        Mark::Line,
        theme::BOUNDARIES,
        "training, each step's batch",
    )];
    if !evaluations.is_empty() {
        entries.push(Entry::new(Mark::Area, theme::RECOMPUTE, "evaluation"));
    }
    let legend = Legend::new(vec![entries], width - 2 * MARGIN as u32);
    let bottom = MARGIN + PLOT + BELOW + GAP;
    let height = bottom as u32 + legend.height() + MARGIN as u32;
    canvas::picture((width, height), "Loss by step", |area| {
        let (_, rest) = area.split_vertically(MARGIN);
        let (chart, _) = rest.split_vertically(PLOT + BELOW);
        let mut chart = frame(&chart, size, &x, &y)?;
        let style = theme::BOUNDARIES.light().stroke_width(2);
        chart.draw_series([PathElement::new(losses.to_vec(), style)])?;
        let dots = evaluations
            .iter()
            .map(|&point| Circle::new(point, 4, theme::RECOMPUTE.light().filled()));
        chart.draw_series(dots)?;
        legend.paint(area, (MARGIN, bottom))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_keep_their_extremes() {
        let points: Vec<_> = (0..10_000)
            .map(|step| (f64::from(step), if step == 4_321 { 99.0 } else { 1.0 }))
            .collect();
        let thin = thinned(points, 100);
        assert!(thin.len() <= 200);
        assert!(thin.contains(&(4_321.0, 99.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
