//! The graph planner: many walks under the budget, the best of which is kept.
//!
//! A walk takes an outline, a scoring and a bias per tensor (`walk.rs`), and produces a program that fits, or none. So
//! the search is over these three. It first tries fixed scorings on every outline: the recorded order, and programs
//! over stages that are faster than those that fit. Then it makes rounds of random changes to the best so far, and
//! keeps a change if the program is no worse: another scoring, another bias (the random keys of Bean 1994, ORSA J.
//! Computing 6(2), decoded by a walk), an operation moved in the outline, or the best program itself as the outline.
//! The sequence of random numbers is fixed, so the same request gives the same program.
//!
//! Graphs of few operations are searched exactly first (`exact.rs`). Against exhaustive search over random graphs of 8
//! to 10 operations, at four budgets each from the smallest possible up: 4,562 of 4,564 plans were optimal, the others
//! took at most 1.1 times the least time; every budget was met, and the program with the smallest peak was always found
//! (`tests/graphs/exhaustive.rs`). With walks alone, 4,532 plans were optimal and 31 budgets had no plan. For a sequence
//! of equal steps, where the binomial schedule is optimal, walks need 7% more forward steps with 20 steps and 3 states,
//! and 22% more with 84 steps, because a walk does not recognise the overall pattern. If a graph has borders, the
//! planners for chains do.
//!
//! Cost: limited by [`Effort`].

use super::exact::Problem;
use super::found::{Found, keep_better};
use super::index::Index;
use super::updates::settled;
use super::walk::{Scoring, WalkTask};
use super::{Graph, OperationId, Program};
use crate::bytes::Bytes;

/// Largest graph, in operations, that is searched exactly, and the limit on the states of such a search.
const MOST_OPERATIONS: usize = 24;
const MOST_STATES: usize = 5_000;

/// The limits of a search.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Total number of operations that its walks run and examine.
    pub(crate) work: usize,
    /// Maximum number of consecutive rounds of random changes without a better program.
    pub(crate) patience: usize,
}

impl Effort {
    /// About a second.
    pub(crate) const WHOLE: Effort = Effort {
        work: 20_000_000,
        patience: 400,
    };

    /// A part of the effort.
    pub(crate) const fn part(self, parts: usize) -> Effort {
        Effort {
            work: self.work / parts,
            patience: self.patience / parts,
        }
    }
}

/// The scorings that are tried on every outline.
const SCORINGS: [Scoring; 6] = [
    scoring(1.0, 1.0, 1.0, 1.0),
    scoring(1.0, 1.0, 1.0, 0.0),
    scoring(1.0, 0.5, 1.0, 1.0),
    scoring(1.0, 0.0, 1.0, 1.0),
    scoring(1.0, 1.0, 0.5, 0.5),
    scoring(1.0, 1.0, 0.0, 0.0),
];

const fn scoring(bytes: f64, distance: f64, cost: f64, dependents: f64) -> Scoring {
    Scoring {
        bytes,
        distance,
        cost,
        dependents,
    }
}

/// The parameters of a walk.
#[derive(Clone)]
struct Keys {
    outline: Vec<OperationId>,
    scoring: Scoring,
    bias: Vec<f64>,
}

/// One search on one graph.
pub(crate) struct Search<'a> {
    graph: &'a Graph,
    index: &'a Index,
    effort: Effort,
    /// Maximum bytes of host copies.
    host_room: Bytes,
    random: Random,
}

impl<'a> Search<'a> {
    /// A search with `host_room` bytes for host copies.
    pub(crate) fn new(
        graph: &'a Graph,
        index: &'a Index,
        effort: Effort,
        host_room: Bytes,
    ) -> Search<'a> {
        Search {
            graph,
            index,
            effort,
            host_room,
            random: Random(0x9E37_79B9_7F4A_7C15),
        }
    }

    /// The best program found within a budget.
    pub(crate) fn within(mut self, budget: Bytes, outlines: &[&Found]) -> Option<Found> {
        let mut best = self.exact(budget);
        if best.is_some() {
            return best;
        }
        let mut keys = None;
        for outline in outlines {
            if outline.peak() <= budget {
                keep_better(&mut best, (*outline).clone());
            }
            for tried in self.fixed(outline) {
                if let Some(found) = self.walk(&tried, budget)
                    && best.as_ref().is_none_or(|best| found.beats(best))
                {
                    best = Some(found);
                    keys = Some(tried);
                }
            }
        }
        let fallback = Keys {
            outline: settled(self.graph, self.graph.computing().collect()),
            scoring: SCORINGS[0].clone(),
            bias: Vec::new(),
        };
        let mut keys = keys.unwrap_or(fallback);
        let mut patience = self.effort.patience;
        while self.effort.work > 0 && patience > 0 {
            patience -= 1;
            let tried = self.changed(&keys, best.as_ref());
            if let Some(found) = self.walk(&tried, budget)
                && best.as_ref().is_none_or(|best| !best.beats(&found))
            {
                if best.as_ref().is_none_or(|best| found.beats(best)) {
                    patience = self.effort.patience;
                }
                best = Some(found);
                keys = tried;
            }
        }
        best
    }

    /// The program of the first fixed scoring that fits, if any.
    pub(crate) fn first_within(&mut self, budget: Bytes, outlines: &[&Found]) -> Option<Found> {
        if let Some(found) = self.exact(budget) {
            return Some(found);
        }
        let fixed: Vec<Keys> = outlines.iter().flat_map(|one| self.fixed(one)).collect();
        fixed.iter().find_map(|keys| self.walk(keys, budget))
    }

    /// The parameters that are tried first on an outline.
    fn fixed(&self, outline: &Found) -> [Keys; SCORINGS.len()] {
        SCORINGS.map(|scoring| Keys {
            outline: self.outline(outline),
            scoring,
            bias: Vec::new(),
        })
    }

    /// The operations of a program without its transfers; walks choose these themselves.
    fn outline(&self, found: &Found) -> Vec<OperationId> {
        let operations = found.program.operations().iter().copied();
        let computing = |id: &OperationId| self.graph.operation(*id).transfer.is_none();
        operations.filter(computing).collect()
    }

    /// The fastest program of a small graph.
    fn exact(&self, budget: Bytes) -> Option<Found> {
        if self.graph.recorded_operations() > MOST_OPERATIONS {
            return None;
        }
        let room = budget.checked_sub(self.graph.fixed_bytes)?.0;
        let problem = Problem::of(self.graph, self.index, (room, self.host_room.0))?;
        let runs = problem.solve(MOST_STATES)?;
        let found = Found::of(self.graph, &Program::new(self.graph, runs).ok()?);
        debug_assert!(
            found.peak() <= budget,
            "the exact search miscounted its bytes"
        );
        (found.peak() <= budget).then_some(found)
    }

    fn walk(&mut self, keys: &Keys, budget: Bytes) -> Option<Found> {
        if self.effort.work == 0 {
            return None;
        }
        let room = budget.checked_sub(self.graph.fixed_bytes)?.0;
        let task = WalkTask {
            graph: self.graph,
            index: self.index,
            room,
            host_room: self.host_room.0,
            scoring: &keys.scoring,
            bias: &keys.bias,
        };
        let (runs, steps) = task.walk(&keys.outline);
        self.effort.work = self.effort.work.saturating_sub(steps.max(1));
        let program = Program::settled(self.graph, runs?);
        debug_assert!(program.is_ok(), "the walk broke a rule: {program:?}");
        let found = Found::of(self.graph, &program.ok()?);
        // A walk may read a parameter after the point of its update in the outline; the update then runs later.
        let fits = found.peak() <= budget && found.simulated.host_peak <= self.host_room;
        debug_assert!(
            fits || !self.graph.updates().is_empty(),
            "the walk miscounted its bytes"
        );
        fits.then_some(found)
    }

    fn changed(&mut self, keys: &Keys, best: Option<&Found>) -> Keys {
        let mut keys = keys.clone();
        if let Some(best) = best
            && self.random.below(4) == 0
        {
            keys.outline = self.outline(best);
        }
        match self.random.below(4) {
            0 => {
                keys.scoring = Scoring {
                    bytes: self.random.between(0.5, 1.5),
                    distance: self.random.between(0.0, 1.5),
                    cost: self.random.between(0.0, 1.5),
                    dependents: self.random.between(0.0, 2.0),
                };
            }
            1 => {
                let tensors = self.graph.tensors.len();
                keys.bias.resize(tensors, 1.0);
                let spread = self.random.between(0.2, 2.0);
                for bias in &mut keys.bias {
                    *bias = (spread * self.random.between(-1.0, 1.0)).exp();
                }
            }
            2 => {
                let tensors = self.graph.tensors.len();
                keys.bias.resize(tensors, 1.0);
                let most = tensors.max(8) / 2;
                for _ in 0..1_usize << self.random.below(most.ilog2() as usize) {
                    let at = self.random.below(tensors);
                    let factor = self.random.between(-3.0, 3.0).exp();
                    if let Some(bias) = keys.bias.get_mut(at) {
                        *bias *= factor;
                    }
                }
            }
            _ => self.reorder(&mut keys.outline),
        }
        keys
    }

    /// Moves an operation of an outline to another position: walks accept any order.
    fn reorder(&mut self, outline: &mut Vec<OperationId>) {
        if outline.len() < 2 {
            return;
        }
        for _ in 0..=self.random.below(3) {
            let from = self.random.below(outline.len());
            let to = self.random.below(outline.len());
            let moved = outline.remove(from);
            outline.insert(to, moved);
        }
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014): the same sequence in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
