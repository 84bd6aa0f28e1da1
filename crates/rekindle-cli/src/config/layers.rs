//! `[model] layers`: checks that a schema cannot express, and the position of each layer after groups are unfolded.

use std::ops::Range;

use rekindle_train::model::{
    shape_error::LayerPath,
    spec::{LayerSpec, MAX_LAYERS},
};

use super::{node::Node, problem::Problem, schema::LAYERS, vary::Group};

/// The position of a layer in the file, and the layers inside it.
#[derive(Debug, Clone)]
pub struct LayerPlace {
    /// In bytes.
    pub span: Range<usize>,
    /// Of a residual.
    pub inner: Vec<LayerPlace>,
}

/// Layers, groups unfolded, each with its place.
#[derive(Debug, Default)]
pub struct Layers {
    /// The layers.
    pub specs: Vec<LayerSpec>,
    /// Their places, in the same order.
    pub places: Vec<LayerPlace>,
    /// Groups that repeat, of the list itself.
    pub groups: Vec<Group>,
}

/// All layers, those inside residuals counted.
fn count(places: &[LayerPlace]) -> usize {
    places.iter().map(|place| 1 + count(&place.inner)).sum()
}

impl Layers {
    /// Finds the places in a list that fits the schema.
    pub fn place_all(list: &Node<'_>) -> Result<Self, Problem> {
        let mut layers = Self::default();
        let mut all: usize = 0;
        for (item, node) in list.elements().enumerate() {
            let turn = match (node.get(LAYERS), node.get("type")) {
                (Some(list), None) => Self::place_all(&list)?.places,
                (inner, _) => vec![LayerPlace {
                    span: node.span.clone(),
                    inner: match inner {
                        Some(list) => Self::place_all(&list)?.places,
                        None => Vec::new(),
                    },
                }],
            };
            let repeat_node = node.get("repeat");
            let repeat = repeat_node.as_ref().and_then(Node::whole).unwrap_or(1);
            let repeat = usize::try_from(repeat).unwrap_or(usize::MAX);
            all = all.saturating_add(count(&turn).saturating_mul(repeat));
            if all > MAX_LAYERS {
                let node = repeat_node.as_ref().unwrap_or(&node);
                return Err(node.problem(&format!(
                    "smaller: a model has at most {MAX_LAYERS} layers here"
                )));
            }
            if repeat_node.is_some() {
                let start = layers.places.len();
                layers.groups.push(Group {
                    item,
                    layers: start..start + turn.len() * repeat,
                    times: repeat,
                });
            }
            for _ in 0..repeat {
                layers.places.extend_from_slice(&turn);
            }
        }
        Ok(layers)
    }

    /// The place that an error's path names.
    pub fn place(&self, path: &LayerPath) -> Option<&LayerPlace> {
        let mut places = &self.places;
        let mut found = None;
        for &index in &path.0 {
            let place = places.get(index)?;
            places = &place.inner;
            found = Some(place);
        }
        found
    }

    /// The same with its largest group repeated `times` times, or the reason why that is impossible.
    pub fn with_depth(&self, times: usize) -> Result<Self, String> {
        let group = Group::deepest(&self.groups).ok_or("no group in `layers` has a `repeat`")?;
        let turn = count(&self.places[group.layers.start..][..group.turn()]);
        let others = count(&self.places) - turn * group.times;
        if others.saturating_add(turn.saturating_mul(times)) > MAX_LAYERS {
            return Err(format!("a model has at most {MAX_LAYERS} layers here"));
        }
        Ok(Self {
            specs: group.repeated(&self.specs, times),
            places: group.repeated(&self.places, times),
            groups: Vec::new(),
        })
    }
}

/// Checks that embeddings have a vector for each of the data's token ids, of which there are `vocab`.
pub fn check_embeddings(list: &Node<'_>, vocab: Option<usize>) -> Result<(), Problem> {
    for node in list.elements() {
        if let Some(inner) = node.get(LAYERS) {
            check_embeddings(&inner, vocab)?;
        }
        let kind = node.get("type");
        if kind.is_none_or(|kind| !matches!(kind.value.as_str(), Some("embedding" | "unembedding")))
        {
            continue;
        }
        match (node.get("vocab"), vocab) {
            (Some(stated), Some(needed)) if stated.whole() < Some(needed as u64) => {
                let wanted = format!("at least {needed}: the data has ids below that");
                return Err(stated.problem(&wanted));
            }
            (None, None) => {
                return Err(Problem::new(
                    "layer `embedding` has no `vocab`, and the data has no token ids to count",
                    "`vocab` is missing here",
                    node.span,
                )
                .help("an embedding takes token ids; a linear or conv2d layer takes numbers"));
            }
            _ => {}
        }
    }
    Ok(())
}
