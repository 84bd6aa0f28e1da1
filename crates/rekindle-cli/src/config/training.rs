//! `[train]`: from TOML to [`TrainSettings`].

use rekindle::{Dtype, record::Update};
use rekindle_train::{
    data::TargetKind,
    settings::{Clip, LearningRate, LossKind, OnNonFinite, OptimizerSettings, TrainSettings},
};

use super::{
    problem::Problem,
    reader::{Node, Section},
};

const DEFAULT_STEPS: usize = 100;
const DEFAULT_BATCH: usize = 32;
const BETAS: [f64; 2] = [0.9, 0.999];
const ADAM_EPSILON: f64 = 1e-8;
const ADAMW_DECAY: f64 = 1e-2;
const SGD_RATE: f64 = 1e-2;
const ADAM_RATE: f64 = 1e-3;

#[derive(Clone, Copy)]
enum OptimizerKind {
    Sgd,
    Adam,
    AdamW,
}

#[derive(Clone, Copy)]
enum RateKind {
    Constant,
    WarmupCosine,
}

const OPTIMIZERS: [(&str, OptimizerKind); 3] = [
    ("sgd", OptimizerKind::Sgd),
    ("adam", OptimizerKind::Adam),
    ("adamw", OptimizerKind::AdamW),
];

/// Reads the section. What it leaves out follows from the data's target or has the default that is usual.
pub fn read(section: &mut Section<'_>, target: TargetKind) -> Result<TrainSettings, Problem> {
    let steps = section.or("steps", DEFAULT_STEPS, Node::size)?;
    let optimizer = match section.get("optimizer") {
        None => adam(None)?,
        Some(node) => optimizer(&node)?,
    };
    let batch = section.or("batch", DEFAULT_BATCH, Node::size)?;
    Ok(TrainSettings {
        steps,
        batch,
        accumulate: accumulate(section, batch)?,
        seed: section.or("seed", 0, Node::seed)?,
        dtype: section.or("dtype", Dtype::F32, dtype)?,
        loss: loss(section, target)?,
        learning_rate: learning_rate(section, steps, &optimizer)?,
        optimizer,
        update: section.or("update", Update::After, update)?,
        clip: section.get("clip").map(|node| clip(&node)).transpose()?,
        eval_every: section
            .get("eval_every")
            .map(|node| node.size())
            .transpose()?,
        on_nonfinite: section.or("on_nonfinite", OnNonFinite::Stop, on_nonfinite)?,
    })
}

fn update(node: &Node<'_>) -> Result<Update, Problem> {
    node.choice(&[
        ("after", Update::After),
        ("in-backward", Update::InBackward),
    ])
}

fn on_nonfinite(node: &Node<'_>) -> Result<OnNonFinite, Problem> {
    node.choice(&[
        ("stop", OnNonFinite::Stop),
        ("skip", OnNonFinite::Skip),
        ("continue", OnNonFinite::Continue),
    ])
}

fn dtype(node: &Node<'_>) -> Result<Dtype, Problem> {
    node.choice(&[
        ("f32", Dtype::F32),
        ("f16", Dtype::F16),
        ("bf16", Dtype::Bf16),
    ])
}

fn accumulate(section: &mut Section<'_>, batch: usize) -> Result<usize, Problem> {
    let Some(node) = section.get("accumulate") else {
        return Ok(1);
    };
    let parts = node.size()?;
    if batch.is_multiple_of(parts) {
        return Ok(parts);
    }
    Err(Problem::new(
        format!("`accumulate` is {parts}, which does not divide the batch of {batch}"),
        "must divide `batch`",
        node.span,
    )
    .help("a step's batch is run in so many equal parts, whose gradients add up"))
}

fn loss(section: &mut Section<'_>, target: TargetKind) -> Result<LossKind, Problem> {
    let node = section.get("loss");
    let chosen = node
        .as_ref()
        .map(|node| {
            node.choice(&[
                ("cross_entropy", LossKind::CrossEntropy),
                ("mean_squared_error", LossKind::MeanSquaredError),
            ])
        })
        .transpose()?;
    let (fitting, name, has) = match target {
        TargetKind::Classes(_) => (LossKind::CrossEntropy, "cross_entropy", "classes"),
        TargetKind::Values(_) => (
            LossKind::MeanSquaredError,
            "mean_squared_error",
            "real numbers",
        ),
    };
    match (chosen, node) {
        (Some(chosen), Some(node)) if chosen != fitting => {
            Err(node.problem(&format!("{name}: the data's targets are {has}")))
        }
        _ => Ok(fitting),
    }
}

fn optimizer(node: &Node<'_>) -> Result<OptimizerSettings, Problem> {
    if !node.is_table() {
        return match node.choice(&OPTIMIZERS)? {
            OptimizerKind::Sgd => sgd(None),
            OptimizerKind::Adam => adam(None),
            OptimizerKind::AdamW => adamw(None),
        };
    }
    let mut section = node.section("`optimizer`")?;
    let settings = match section.require("type")?.choice(&OPTIMIZERS)? {
        OptimizerKind::Sgd => sgd(Some(&mut section))?,
        OptimizerKind::Adam => adam(Some(&mut section))?,
        OptimizerKind::AdamW => adamw(Some(&mut section))?,
    };
    section.finish()?;
    Ok(settings)
}

type Settings<'s, 'a> = Option<&'s mut Section<'a>>;

fn sgd(section: Settings<'_, '_>) -> Result<OptimizerSettings, Problem> {
    let Some(section) = section else {
        return Ok(OptimizerSettings::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        });
    };
    Ok(OptimizerSettings::Sgd {
        momentum: section.or("momentum", 0.0, share)?,
        weight_decay: section.or("weight_decay", 0.0, Node::not_negative)?,
    })
}

fn adam(section: Settings<'_, '_>) -> Result<OptimizerSettings, Problem> {
    let (betas, epsilon, weight_decay) = moments(section, 0.0)?;
    Ok(OptimizerSettings::Adam {
        betas,
        epsilon,
        weight_decay,
    })
}

fn adamw(section: Settings<'_, '_>) -> Result<OptimizerSettings, Problem> {
    let (betas, epsilon, weight_decay) = moments(section, ADAMW_DECAY)?;
    Ok(OptimizerSettings::AdamW {
        betas,
        epsilon,
        weight_decay,
    })
}

fn moments(section: Settings<'_, '_>, decay: f64) -> Result<([f64; 2], f64, f64), Problem> {
    let Some(section) = section else {
        return Ok((BETAS, ADAM_EPSILON, decay));
    };
    let betas = section.or("betas", BETAS, |node| match &node.list()?[..] {
        [first, second] => Ok([share(first)?, share(second)?]),
        _ => Err(node.problem("a pair of numbers")),
    })?;
    Ok((
        betas,
        section.or("epsilon", ADAM_EPSILON, Node::positive)?,
        section.or("weight_decay", decay, Node::not_negative)?,
    ))
}

fn share(node: &Node<'_>) -> Result<f64, Problem> {
    node.number("at least 0 and below 1", |share| {
        (0.0..1.0).contains(&share)
    })
}

fn learning_rate(
    section: &mut Section<'_>,
    steps: usize,
    optimizer: &OptimizerSettings,
) -> Result<LearningRate, Problem> {
    let usual = match optimizer {
        OptimizerSettings::Sgd { .. } => SGD_RATE,
        OptimizerSettings::Adam { .. } | OptimizerSettings::AdamW { .. } => ADAM_RATE,
    };
    let Some(node) = section.get("learning_rate") else {
        return Ok(LearningRate::Constant { rate: usual });
    };
    if !node.is_table() {
        let rate = node.positive()?;
        return Ok(LearningRate::Constant { rate });
    }
    let mut section = node.section("`learning_rate`")?;
    let kind = section.require("type")?.choice(&[
        ("constant", RateKind::Constant),
        ("warmup_cosine", RateKind::WarmupCosine),
    ])?;
    let rate = section.or("rate", usual, Node::positive)?;
    let learning_rate = match kind {
        RateKind::Constant => LearningRate::Constant { rate },
        RateKind::WarmupCosine => LearningRate::WarmupCosine {
            rate,
            warmup_steps: section.or("warmup_steps", steps / 20, Node::whole)?,
            final_rate: section.or("final_rate", 0.0, |node| {
                node.number("at least 0 and at most `rate`", |last| {
                    (0.0..=rate).contains(&last)
                })
            })?,
        },
    };
    section.finish()?;
    Ok(learning_rate)
}

fn clip(node: &Node<'_>) -> Result<Clip, Problem> {
    let mut section = node.section("`clip`")?;
    let kind = section.require("type")?;
    let max = section.require("max")?.positive()?;
    let clip = kind.choice(&[
        ("value", Clip::Value { max }),
        ("norm", Clip::Norm { max }),
        ("global_norm", Clip::GlobalNorm { max }),
    ])?;
    section.finish()?;
    Ok(clip)
}
