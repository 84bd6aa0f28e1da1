//! Rules between keys, which neither the schema nor serde checks.

use rekindle_train::{
    data::{TargetKind, settings::Source},
    model::spec::SampleShape,
    settings::{LearningRate, LossKind, TrainSettings},
};
use toml::de::DeTable;

use super::{
    follow::fitting_loss,
    node::{Node, at},
    problem::Problem,
};

/// The model's input: the data's shape, unless the config sets another image size.
pub fn input(
    document: &DeTable<'_>,
    stated: Option<Vec<usize>>,
    source: &Source,
) -> Result<SampleShape, Problem> {
    let from_data = source.sample_shape();
    let (Some(dims), Some(node)) = (stated, at(document, &["model", "input"])) else {
        return Ok(from_data);
    };
    let fits = match source {
        Source::Mnist { .. } => matches!(dims[..], [1, _, _]),
        _ => dims == from_data.dims,
    };
    if !fits {
        let wanted = match source {
            Source::Mnist { .. } => "[1, rows, columns], as IDX images have it".to_owned(),
            _ => format!("{:?}, the shape of the data's samples", from_data.dims),
        };
        return Err(node
            .problem(&wanted)
            .help("leave `input` out: it follows from the data"));
    }
    Ok(SampleShape {
        kind: from_data.kind,
        dims,
    })
}

/// Checks that the keys of `[train]` are consistent with the data and with each other.
pub fn training(
    document: &DeTable<'_>,
    settings: &TrainSettings,
    target: TargetKind,
) -> Result<(), Problem> {
    let TrainSettings {
        batch, accumulate, ..
    } = *settings;
    if let Some(node) = at(document, &["train", "accumulate"])
        && !batch.is_multiple_of(accumulate)
    {
        return Err(Problem::new(
            format!("`accumulate` is {accumulate}, which does not divide the batch of {batch}"),
            "must divide `batch`",
            node.span,
        )
        .help("`accumulate` runs a batch in that many equal parts and adds up their gradients"));
    }
    if let Some(node) = at(document, &["train", "loss"])
        && settings.loss != fitting_loss(target)
    {
        let wanted = match fitting_loss(target) {
            LossKind::CrossEntropy => "cross_entropy: the data's targets are classes",
            LossKind::MeanSquaredError => "mean_squared_error: the data's targets are real numbers",
        };
        return Err(node.problem(wanted));
    }
    if let LearningRate::WarmupCosine {
        rate, final_rate, ..
    } = settings.learning_rate
        && let Some(node) = at(document, &["train", "learning_rate", "final_rate"])
        && final_rate > rate
    {
        return Err(node.problem("at least 0 and at most `rate`"));
    }
    Ok(())
}

/// Checks that at most one way to find the schedule is given.
pub fn run(document: &DeTable<'_>) -> Result<(), Problem> {
    let key = |key| at(document, &["run", key]);
    let both = |first: &str, second: Node<'_>| {
        Problem::new(
            format!("[run] has both `{first}` and `{}`", second.key),
            format!("besides `{first}`"),
            second.span,
        )
    };
    let mut ways = ["segments", "budget", "plan"].into_iter().filter_map(key);
    if let (Some(first), Some(second)) = (ways.next(), ways.next()) {
        return Err(both(first.key, second).help("keep one of `segments`, `budget` and `plan`"));
    }
    match (key("plan"), key("planner")) {
        (Some(plan), Some(planner)) => {
            Err(both(plan.key, planner).help("a plan file needs no planner: keep one of the two"))
        }
        _ => Ok(()),
    }
}
