//! The sizes of a config's model that the command line can vary.
//!
//! **Depth** is how often the group repeats that unfolds to the most layers, of those in the list `layers` itself; the
//! first of equals.
//!
//! **Width** is the most common size of hidden layers: the most common `out` of linear and conv2d layers, without the
//! model's last one, which must fit the loss; the larger of equally common ones. Varying it changes all hidden sizes in
//! proportion, embeddings' `dim` included, each rounded and at least 1.

use std::{collections::BTreeMap, ops::Range};

use rekindle_train::model::spec::LayerSpec;

/// A group that repeats, in the list that it unfolded to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Which item of `layers` it is, from 0.
    pub item: usize,
    /// All its layers, of all its turns.
    pub layers: Range<usize>,
    /// How often it repeats.
    pub times: usize,
}

impl Group {
    /// The group that determines the depth.
    pub fn deepest(groups: &[Self]) -> Option<&Self> {
        // `max_by_key` returns the last of equals: iterate from the back.
        groups.iter().rev().max_by_key(|group| group.layers.len())
    }

    /// Layers of one turn.
    pub fn turn(&self) -> usize {
        self.layers.len() / self.times.max(1)
    }

    /// A list with this group's part repeated so many times instead. `items` is the unfolded list, or one beside it.
    pub fn repeated<T: Clone>(&self, items: &[T], times: usize) -> Vec<T> {
        let before = items.get(..self.layers.start).unwrap_or_default();
        let turn = items
            .get(self.layers.start..self.layers.start + self.turn())
            .unwrap_or_default();
        let after = items.get(self.layers.end..).unwrap_or_default();
        let mut list = before.to_vec();
        for _ in 0..times {
            list.extend_from_slice(turn);
        }
        list.extend_from_slice(after);
        list
    }
}

/// Unfolds the groups of a list, and says which there are; the error is that of an item.
pub fn unfolded(written: &[LayerSpec]) -> Result<(Vec<LayerSpec>, Vec<Group>), (usize, String)> {
    let (mut layers, mut groups) = (Vec::new(), Vec::new());
    for (item, layer) in written.iter().enumerate() {
        let start = layers.len();
        layer.unfold(&mut layers).map_err(|why| (item, why))?;
        if let LayerSpec::Repeat { times, .. } = *layer {
            groups.push(Group {
                item,
                layers: start..layers.len(),
                times,
            });
        }
    }
    Ok((layers, groups))
}

/// The width of a model, if it has hidden layers.
fn width(layers: &[LayerSpec]) -> Option<usize> {
    let mut outs = Vec::new();
    collect(layers, &mut outs);
    outs.pop();
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for out in outs {
        *counts.entry(out).or_default() += 1;
    }
    let (width, _) = counts.into_iter().max_by_key(|&(_, count)| count)?;
    Some(width)
}

/// The layers with another width.
pub fn widened(layers: &[LayerSpec], to: usize) -> Result<Vec<LayerSpec>, &'static str> {
    if to == 0 {
        return Err("it must be at least 1");
    }
    let from = width(layers).ok_or("the model has no hidden linear or conv2d layer")?;
    let mut outs = Vec::new();
    collect(layers, &mut outs);
    let mut layers = layers.to_vec();
    let mut hidden = outs.len().saturating_sub(1);
    scale(&mut layers, &mut hidden, |size| {
        let scaled = (size as u128 * to as u128 + from as u128 / 2) / from.max(1) as u128;
        usize::try_from(scaled).unwrap_or(usize::MAX).max(1)
    });
    Ok(layers)
}

fn collect(layers: &[LayerSpec], outs: &mut Vec<usize>) {
    for layer in layers {
        match layer {
            LayerSpec::Linear { out, .. } | LayerSpec::Conv2d { out, .. } => outs.push(*out),
            LayerSpec::Residual(layers) => collect(layers, outs),
            _ => {}
        }
    }
}

/// Replaces the sizes of the first `hidden` linear and conv2d layers and of embeddings.
fn scale(layers: &mut [LayerSpec], hidden: &mut usize, to: impl Fn(usize) -> usize + Copy) {
    for layer in layers {
        match layer {
            LayerSpec::Linear { out, .. } | LayerSpec::Conv2d { out, .. } if *hidden > 0 => {
                *hidden -= 1;
                *out = to(*out);
            }
            LayerSpec::Embedding { dim, .. } => *dim = to(*dim),
            LayerSpec::Residual(layers) => scale(layers, hidden, to),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(out: usize) -> LayerSpec {
        LayerSpec::Linear { out, bias: true }
    }

    #[test]
    fn the_group_of_most_layers_repeats() {
        let group = |item, layers: Range<usize>, times| Group {
            item,
            layers,
            times,
        };
        let groups = [group(0, 0..6, 3), group(2, 7..15, 2), group(3, 15..23, 8)];
        let deepest = Group::deepest(&groups).expect("a group");
        assert_eq!(
            (deepest.item, deepest.turn()),
            (2, 4),
            "the first of equals"
        );
        assert_eq!(Group::deepest(&[]), None);

        let letters: Vec<char> = "xababaz".chars().collect();
        let group = group(1, 1..5, 2);
        let unfolded = |times| {
            group
                .repeated(&letters, times)
                .into_iter()
                .collect::<String>()
        };
        assert_eq!(unfolded(2), "xababaz");
        assert_eq!(unfolded(1), "xabaz");
        assert_eq!(unfolded(3), "xabababaz");
    }

    #[test]
    fn all_hidden_sizes_follow_the_most_common_one() {
        let inner = LayerSpec::Residual(vec![linear(8), LayerSpec::Relu]);
        let layers = [
            LayerSpec::Embedding { vocab: 9, dim: 4 },
            linear(8),
            inner,
            linear(3),
            linear(3),
        ];
        assert_eq!(width(&layers), Some(8), "the last layer is not hidden");
        let wide = widened(&layers, 20).expect("a width");
        let wide_inner = LayerSpec::Residual(vec![linear(20), LayerSpec::Relu]);
        assert_eq!(
            wide,
            [
                LayerSpec::Embedding { vocab: 9, dim: 10 },
                linear(20),
                wide_inner,
                linear(8),
                linear(3),
            ]
        );
        assert_eq!(widened(&layers, 8).as_deref(), Ok(&layers[..]));
        assert!(widened(&[linear(3)], 8).is_err());
        assert!(widened(&layers, 0).is_err());
    }
}
