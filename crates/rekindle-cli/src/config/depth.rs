//! The depth of a config's model, which the command line can vary: how often the group repeats that unfolds to the most
//! layers, of those in the list `layers` itself; the first of equals.

use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
