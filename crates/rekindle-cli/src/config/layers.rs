//! `[model] layers`: from TOML to [`LayerSpec`]s, with the place of each.

use std::ops::Range;

use rekindle_train::model::{
    shape_error::LayerPath,
    spec::{LayerSpec, Padding, PoolSpec},
};

use super::{
    problem::{Problem, one_of, suggestion},
    reader::{Node, Section},
    vary::Group,
};

/// Layers that a config may unfold to, those inside residuals counted: as many as planners take stages.
const MAX_LAYERS: usize = 20_000;

/// All layer types, as a config spells them.
const TYPES: [&str; 17] = [
    "linear",
    "conv2d",
    "max_pool2d",
    "avg_pool2d",
    "flatten",
    "reshape",
    "relu",
    "gelu",
    "tanh",
    "sigmoid",
    "softmax",
    "dropout",
    "batch_norm",
    "layer_norm",
    "embedding",
    "zero_pad",
    "residual",
];

/// Where a layer stands in the file, and the layers inside it.
#[derive(Debug, Clone)]
pub struct Place {
    /// In bytes.
    pub span: Range<usize>,
    /// Of a residual.
    pub inner: Vec<Place>,
}

/// Layers, groups unfolded, each with its place.
#[derive(Debug, Default)]
pub struct Layers {
    /// The layers.
    pub specs: Vec<LayerSpec>,
    /// Their places, in the same order.
    pub places: Vec<Place>,
    /// Groups that repeat, of the list itself.
    pub groups: Vec<Group>,
    /// All layers, those inside residuals counted.
    count: usize,
}

/// All layers, those inside residuals counted.
fn count(places: &[Place]) -> usize {
    places.iter().map(|place| 1 + count(&place.inner)).sum()
}

impl Layers {
    /// Reads a list. `vocab` is the number of token ids in the data, for embeddings that name none.
    pub fn read(list: &Node<'_>, vocab: Option<usize>) -> Result<Self, Problem> {
        let mut layers = Self::default();
        for (item, node) in list.list()?.into_iter().enumerate() {
            layers.push(item, &node, vocab)?;
        }
        if layers.specs.is_empty() {
            return Err(list.problem("at least one layer"));
        }
        Ok(layers)
    }

    /// The place that an error's path names.
    pub fn place(&self, path: &LayerPath) -> Option<&Place> {
        let mut places = &self.places;
        let mut found = None;
        for &index in &path.0 {
            let place = places.get(index)?;
            places = &place.inner;
            found = Some(place);
        }
        found
    }

    /// The same with its largest group repeated so many times, or why that cannot be.
    pub fn with_depth(&self, times: usize) -> Result<Self, String> {
        let group = Group::deepest(&self.groups).ok_or("no group in `layers` has a `repeat`")?;
        let turn = count(&self.places[group.layers.start..][..group.turn()]);
        let others = self.count - turn * group.times;
        if others.saturating_add(turn.saturating_mul(times)) > MAX_LAYERS {
            return Err(format!("a model has at most {MAX_LAYERS} layers here"));
        }
        Ok(Self {
            specs: group.repeated(&self.specs, times),
            places: group.repeated(&self.places, times),
            groups: Vec::new(),
            count: others + turn * times,
        })
    }

    fn push(&mut self, item: usize, node: &Node<'_>, vocab: Option<usize>) -> Result<(), Problem> {
        // A layer that needs no settings may be its name alone.
        if let Some(name) = node.as_text() {
            let empty = toml::de::DeTable::new();
            let mut section = Section::new(&empty, node.span.clone(), format!("layer `{name}`"));
            let (spec, inner) = read_layer(name, &node.span, &mut section, vocab)?;
            self.count += 1 + count(&inner);
            self.specs.push(spec);
            self.places.push(Place {
                span: node.span.clone(),
                inner,
            });
            return Ok(());
        }

        let mut section = node.section("layer")?;
        let repeat_node = section.get("repeat");
        let repeat = repeat_node.as_ref().map_or(Ok(1), Node::size)?;
        let group = match section.get("type") {
            Some(kind) => {
                let name = kind.text()?;
                section.rename(format!("layer `{name}`"));
                let (spec, inner) = read_layer(name, &kind.span, &mut section, vocab)?;
                section.finish()?;
                Self {
                    specs: vec![spec],
                    count: 1 + count(&inner),
                    places: vec![Place {
                        span: node.span.clone(),
                        inner,
                    }],
                    groups: Vec::new(),
                }
            }
            None => {
                let Some(list) = section.get("layers") else {
                    return Err(Problem::new(
                        "a layer has no `type`",
                        "neither a layer nor a group",
                        node.span.clone(),
                    )
                    .help("write `{ type = \"linear\", out = 10 }`, or a group: `{ repeat = 4, layers = [...] }`"));
                };
                section.finish()?;
                Self::read(&list, vocab)?
            }
        };

        let unfolded = group.specs.len().saturating_mul(repeat);
        let all = self
            .count
            .saturating_add(group.count.saturating_mul(repeat));
        if all > MAX_LAYERS {
            let node = repeat_node.as_ref().unwrap_or(node);
            return Err(node.problem(&format!(
                "smaller: a model has at most {MAX_LAYERS} layers here"
            )));
        }
        if repeat_node.is_some() {
            self.groups.push(Group {
                item,
                layers: self.specs.len()..self.specs.len() + unfolded,
                times: repeat,
            });
        }
        self.count = all;
        for _ in 0..repeat {
            self.specs.extend_from_slice(&group.specs);
            self.places.extend_from_slice(&group.places);
        }
        Ok(())
    }
}

fn read_layer(
    name: &str,
    name_span: &Range<usize>,
    section: &mut Section<'_>,
    vocab: Option<usize>,
) -> Result<(LayerSpec, Vec<Place>), Problem> {
    let mut inner = Vec::new();
    let spec = match name {
        "linear" => LayerSpec::Linear {
            out: section.require("out")?.size()?,
            bias: section.or("bias", true, Node::flag)?,
        },
        "conv2d" => LayerSpec::Conv2d {
            out: section.require("out")?.size()?,
            kernel: section.require("kernel")?.pair(Node::size)?,
            stride: section.or("stride", [1, 1], |node| node.pair(Node::size))?,
            padding: section.or("padding", Padding::Valid, conv_padding)?,
            bias: section.or("bias", true, Node::flag)?,
        },
        "max_pool2d" => LayerSpec::MaxPool2d(pool(section)?),
        "avg_pool2d" => LayerSpec::AvgPool2d(pool(section)?),
        "flatten" => LayerSpec::Flatten,
        "reshape" => LayerSpec::Reshape {
            shape: section.require("shape")?.sizes()?,
        },
        "relu" => LayerSpec::Relu,
        "gelu" => LayerSpec::Gelu,
        "tanh" => LayerSpec::Tanh,
        "sigmoid" => LayerSpec::Sigmoid,
        "softmax" => LayerSpec::Softmax,
        "dropout" => LayerSpec::Dropout {
            p: section.or("p", 0.5, |node| {
                node.number("at least 0 and below 1", |p| (0.0..1.0).contains(&p))
            })?,
        },
        "batch_norm" => LayerSpec::BatchNorm {
            epsilon: section.or("epsilon", 1e-5, Node::positive)?,
            momentum: section.or("momentum", 0.1, |node| {
                node.number("between 0 and 1", |m| (0.0..=1.0).contains(&m))
            })?,
        },
        "layer_norm" => LayerSpec::LayerNorm {
            epsilon: section.or("epsilon", 1e-5, Node::positive)?,
        },
        "embedding" => embedding(section, vocab)?,
        "zero_pad" => LayerSpec::ZeroPad {
            padding: sides(&section.require("padding")?)?,
        },
        "residual" => {
            let layers = Layers::read(&section.require("layers")?, vocab)?;
            inner = layers.places;
            LayerSpec::Residual {
                layers: layers.specs,
            }
        }
        _ => {
            let problem = Problem::new(
                format!("unknown layer type `{name}`"),
                "unknown type",
                name_span.clone(),
            );
            return Err(match suggestion(name, TYPES) {
                Some(close) => problem.help(format!("did you mean `{close}`?")),
                None => problem.help(format!("a layer is {}", one_of(&TYPES))),
            });
        }
    };
    Ok((spec, inner))
}

fn conv_padding(node: &Node<'_>) -> Result<Padding, Problem> {
    match node.as_text() {
        Some("same") => Ok(Padding::Same),
        Some("valid") => Ok(Padding::Valid),
        Some(_) => Err(node.problem("\"same\", \"valid\", a whole number or a pair of them")),
        None => node.pair(Node::whole).map(Padding::Explicit),
    }
}

fn pool(section: &mut Section<'_>) -> Result<PoolSpec, Problem> {
    let kernel = section.require("kernel")?.pair(Node::size)?;
    Ok(PoolSpec {
        kernel,
        stride: section.or("stride", kernel, |node| node.pair(Node::size))?,
        padding: section.or("padding", [0, 0], |node| match node.as_text() {
            Some("valid") => Ok([0, 0]),
            _ => node.pair(Node::whole),
        })?,
    })
}

/// One number for all sides, a pair for (above and below, left and right), or four.
fn sides(node: &Node<'_>) -> Result<[usize; 4], Problem> {
    let wanted = "a whole number, [rows, columns] or [top, bottom, left, right]";
    let Some(list) = node.as_list() else {
        return node
            .whole()
            .map(|all| [all; 4])
            .map_err(|_| node.problem(wanted));
    };
    match list
        .iter()
        .map(Node::whole)
        .collect::<Result<Vec<_>, _>>()?[..]
    {
        [rows, columns] => Ok([rows, rows, columns, columns]),
        [top, bottom, left, right] => Ok([top, bottom, left, right]),
        _ => Err(node.problem(wanted)),
    }
}

fn embedding(section: &mut Section<'_>, data_vocab: Option<usize>) -> Result<LayerSpec, Problem> {
    let dim = section.require("dim")?.size()?;
    let vocab = match (section.get("vocab"), data_vocab) {
        (Some(node), needed) => {
            let vocab = node.size()?;
            if let Some(needed) = needed.filter(|&needed| vocab < needed) {
                return Err(
                    node.problem(&format!("at least {needed}: the data has ids below that"))
                );
            }
            vocab
        }
        (None, Some(vocab)) => vocab,
        (None, None) => {
            return Err(Problem::new(
                "layer `embedding` has no `vocab`, and the data has no token ids to count",
                "an embedding of what?",
                section.span.clone(),
            )
            .help("an embedding is for token ids; data of numbers goes into a linear or conv2d"));
        }
    };
    Ok(LayerSpec::Embedding { vocab, dim })
}
