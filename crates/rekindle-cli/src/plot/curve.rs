//! The loss of every step, and of evaluations.

use plotters::{element::Circle, series::LineSeries, style::Color};
use rekindle_train::record::{EvalRecord, StepRecord};

use super::{
    axis::Axis,
    chart::{self, Drawn, Picture},
    theme,
};

/// The losses of a run of two steps or more; `None` where there is no line to draw.
pub fn picture(steps: &[StepRecord], evaluations: &[EvalRecord]) -> Option<Drawn<String>> {
    let finite = |points: &mut dyn Iterator<Item = (usize, f64)>| -> Vec<(f64, f64)> {
        let finite = points.filter(|(_, loss)| loss.is_finite());
        finite.map(|(step, loss)| (step as f64, loss)).collect()
    };
    let losses = finite(&mut steps.iter().map(|step| (step.step, step.loss)));
    let evaluated = finite(&mut evaluations.iter().map(|one| (one.step, one.loss)));
    (losses.len() > 1).then(|| paint(thinned(losses), evaluated))
}

/// At most two points for each pixel, the lowest and the highest of its steps.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(theme::PLOT as usize);
    if each <= 2 {
        return points;
    }
    let by_loss = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let ends = |steps: &[(f64, f64)]| {
        let (low, high) = (steps.iter().min_by(by_loss), steps.iter().max_by(by_loss));
        let mut ends: Vec<_> = low.into_iter().chain(high).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    };
    points.chunks(each).flat_map(ends).collect()
}

fn paint(losses: Vec<(f64, f64)>, evaluated: Vec<(f64, f64)>) -> Drawn<String> {
    let all = || losses.iter().chain(&evaluated);
    let last = all().map(|point| point.0).fold(0.0, f64::max);
    let highest = all().map(|point| point.1).fold(0.0, f64::max);
    let lowest = all().map(|point| point.1).fold(0.0, f64::min);
    let picture = Picture {
        title: "Loss by step".into(),
        x: Axis {
            range: 0.0..last,
            title: "step".into(),
        },
        y: Axis {
            range: lowest..highest * 1.06,
            title: "loss".into(),
        },
        height: theme::SMALL,
    };
    picture.paint(|plot| {
        let line = theme::PLANS.stroke_width(2);
        plot.chart.draw_series(LineSeries::new(losses, line))?;
        plot.entry("training", chart::line(theme::PLANS, 2))?;
        if !evaluated.is_empty() {
            plot.chart.draw_series(evaluated.into_iter().map(dot))?;
            plot.entry("evaluation", |(x, y)| dot((x + 11, y)))?;
        }
        Ok(Vec::new())
    })
}

fn dot<T>(at: T) -> Circle<T, i32> {
    Circle::new(at, 4, theme::SEGMENTS.filled())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_keep_their_extremes() {
        let points: Vec<_> = (0..10_000)
            .map(|step| (f64::from(step), if step == 4_321 { 99.0 } else { 1.0 }))
            .collect();
        let thin = thinned(points);
        assert!(thin.len() <= 2 * theme::PLOT as usize);
        assert!(thin.contains(&(4_321.0, 99.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
