//! The depth of a config's model, which the command line can vary: how often the group repeats that unfolds to the most
//! layers, of those in the list `layers` itself; the first of equals.

use rekindle_train::model::spec::{LayerSpec, count_layers};

/// The group that determines the depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Which item of `layers` it is, from 0.
    item: usize,
    /// How often it repeats.
    pub times: usize,
    /// Layers of one turn, those inside residuals counted.
    pub turn: usize,
    /// Layers outside of the group, counted likewise.
    pub others: usize,
}

/// The group that determines the depth, if one repeats.
pub fn deepest(layers: &[LayerSpec]) -> Option<Group> {
    let groups = layers.iter().enumerate();
    let groups = groups.filter_map(|(item, layer)| match layer {
        LayerSpec::Repeat { times, layers } => Some((item, *times, unfolded(layers).ok()?)),
        _ => None,
    });
    // `max_by_key` returns the last of equals: iterate from the back.
    let (item, times, turn) = groups
        .rev()
        .max_by_key(|(_, times, turn)| times * turn.len())?;
    let turn = count_layers(&turn);
    Some(Group {
        item,
        times,
        turn,
        others: count_layers(&unfolded(layers).ok()?) - times * turn,
    })
}

/// The layers with another depth, if a group repeats.
pub fn deepened(layers: &[LayerSpec], depth: usize) -> Option<Vec<LayerSpec>> {
    let deepest = deepest(layers)?.item;
    let mut layers = layers.to_vec();
    if let LayerSpec::Repeat { times, .. } = &mut layers[deepest] {
        *times = depth;
    }
    Some(layers)
}

/// Unfolds all groups of a list; the error is that of an item.
pub fn unfolded(layers: &[LayerSpec]) -> Result<Vec<LayerSpec>, (usize, String)> {
    let mut list = Vec::new();
    for (item, layer) in layers.iter().enumerate() {
        layer.unfold(&mut list).map_err(|why| (item, why))?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_most_layers_repeats() {
        let repeat = |times, layers: &[LayerSpec]| LayerSpec::Repeat {
            times,
            layers: layers.to_vec(),
        };
        let block = LayerSpec::Residual(vec![LayerSpec::Tanh, LayerSpec::Relu]);
        let layers = [
            repeat(3, &[LayerSpec::Relu, LayerSpec::Tanh]),
            LayerSpec::Flatten,
            repeat(4, &[block.clone(), LayerSpec::Relu]),
            repeat(8, &[LayerSpec::Gelu]),
        ];
        let group = deepest(&layers).expect("a group");
        assert_eq!((group.item, group.times), (2, 4), "the first of equals");
        assert_eq!((group.turn, group.others), (4, 6 + 1 + 8));
        assert_eq!(deepest(&layers[1..2]), None);

        let deeper = deepened(&layers, 2).expect("a group");
        assert_eq!(deeper[2], repeat(2, &[block, LayerSpec::Relu]));
        assert_eq!(unfolded(&deeper).map(|list| list.len()), Ok(6 + 1 + 4 + 8));
    }
}
