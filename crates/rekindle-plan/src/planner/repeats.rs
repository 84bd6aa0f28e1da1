//! Which stages are alike, and whether they come back with a period.

use std::collections::HashMap;

use super::terms::Terms;

/// The repetition in a chain.
pub(crate) struct Repeats {
    /// Stages that are alike have equal numbers. The loss has one of its own.
    pub(crate) contents: Vec<usize>,
    /// The least p with which at least half of the stages are like the one p before.
    pub(crate) period: Option<usize>,
}

impl Repeats {
    /// Cost: O(n^2).
    pub(crate) fn new(terms: &Terms) -> Repeats {
        let mut by_hash: HashMap<[u64; 5], Vec<usize>> = HashMap::new();
        let mut contents: Vec<usize> = Vec::with_capacity(terms.nodes.len());
        for (i, node) in terms.nodes.iter().enumerate() {
            let way = &node.ways[0];
            let key = [
                node.output,
                way.saved,
                node.forward_temp,
                node.forward.to_bits(),
                way.seconds.to_bits(),
            ];
            let alike = by_hash.entry(key).or_default();
            let found = alike
                .iter()
                .copied()
                .find(|&other| i != terms.loss() && terms.nodes[other] == *node);
            contents.push(found.unwrap_or_else(|| {
                alike.push(i);
                i
            }));
        }
        let n = contents.len();
        let alike = |period: &usize| {
            contents
                .iter()
                .zip(&contents[*period..])
                .filter(|(a, b)| a == b)
                .count()
        };
        let period = (1..n / 2).find(|period| alike(period) * 2 >= n);
        Repeats { contents, period }
    }
}
