//! The score of evicting a storage.
//!
//! The formula is in `walk.rs`. Both traversals stop after [`REACH`] operations: evicted tensors further away do not
//! count, except that a source on which others may depend is assumed to be needed at the end.

use super::super::{OperationId, TensorId};
use super::places::NEVER;
use super::state::{END, Walk};

/// Maximum number of evicted operations that one traversal visits.
const REACH: usize = 96;
/// An operation that takes no time still costs a launch.
const LEAST_SECONDS: f64 = 1e-9;
/// Score of an unneeded storage: evicted before everything else.
const UNWANTED: f64 = 1e200;
/// Score of a storage that the outline recomputes: evicted before everything that is kept.
const REMADE: f64 = 1e100;

/// When the walk next needs a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Want {
    /// At this position of the outline.
    At(u32),
    /// The outline recomputes it first.
    Remade,
    /// Never.
    Never,
}

/// The evicted tensors that depend on a storage.
struct Dependents {
    /// The seconds of the operations that make them.
    seconds: f64,
    /// When the first of them is needed.
    wanted: u32,
}

impl Walk<'_> {
    /// When a tensor is next needed, without pending operations.
    pub(super) fn want(&mut self, tensor: TensorId) -> Want {
        let use_at = match self.uses.after(tensor.index(), self.now) {
            NEVER if self.graph.tensor(tensor).output => END,
            place => place,
        };
        if use_at == NEVER {
            return Want::Never;
        }
        let remade = self.index.maker(tensor).is_some_and(|maker| {
            self.graph.operation(maker).repeatable
                && self.makes.after(maker.index(), self.now) < use_at
        });
        if remade {
            Want::Remade
        } else {
            Want::At(use_at)
        }
    }

    /// The score of a held storage; `None` if it must be kept.
    pub(super) fn score(&mut self, storage: u32) -> Option<f64> {
        let tensors = std::mem::take(&mut self.storages[storage as usize].tensors);
        let score = self.score_of(&tensors, self.storages[storage as usize].bytes);
        let bias = tensors
            .first()
            .and_then(|t| self.task.bias.get(self.index.root(*t).index()))
            .copied()
            .unwrap_or(1.0);
        self.storages[storage as usize].tensors = tensors;
        let (class, score) = score?;
        let factor = match class {
            Want::Never => UNWANTED,
            Want::Remade => REMADE,
            Want::At(_) => 1.0,
        };
        Some(factor * bias * score)
    }

    fn score_of(&mut self, tensors: &[TensorId], bytes: u64) -> Option<(Want, f64)> {
        let (class, dependents) = self.class(tensors);
        let regain = self.regain_seconds(tensors);
        let transfer = self.transfer_seconds(tensors).map(|(seconds, _)| seconds);
        let regain = regain.into_iter().chain(transfer).reduce(f64::min);
        let distance = match class {
            Want::At(END) => self.length.max(1),
            Want::At(place) => place.saturating_sub(self.now).max(1),
            Want::Remade | Want::Never => 1,
        };
        let regain = match regain {
            None if class != Want::Never => return None,
            regain => regain.unwrap_or(0.0),
        };
        let scoring = &self.task.scoring;
        let cost = regain + scoring.dependents * dependents + LEAST_SECONDS;
        let score = (bytes as f64).powf(scoring.bytes) * f64::from(distance).powf(scoring.distance)
            / cost.powf(scoring.cost);
        Some((class, score))
    }

    /// When tensors of one storage, or evicted tensors that depend on them, are next needed, and the seconds to
    /// recompute the latter.
    pub(super) fn class(&mut self, tensors: &[TensorId]) -> (Want, f64) {
        let mut wanted = NEVER;
        let mut remade = false;
        for &tensor in tensors {
            match self.want(tensor) {
                Want::At(place) => wanted = wanted.min(place),
                Want::Remade => remade = true,
                Want::Never => {}
            }
        }
        let dependents = self.dependents(tensors);
        let class = match wanted.min(dependents.wanted) {
            NEVER if remade => Want::Remade,
            NEVER => Want::Never,
            place => Want::At(place),
        };
        (class, dependents.seconds)
    }

    /// Whether the current traversal visits an operation for the first time.
    fn first_visit(&mut self, id: OperationId) -> bool {
        std::mem::replace(&mut self.seen[id.index()], self.traversal) != self.traversal
    }

    /// The seconds to recompute tensors from the others held now, on the device or on the host; `None` if that is
    /// impossible.
    pub(super) fn regain_seconds(&mut self, tensors: &[TensorId]) -> Option<f64> {
        self.traversal += 1;
        let mut open: Vec<OperationId> = Vec::new();
        for &tensor in tensors {
            let maker = self.index.maker(tensor)?;
            if self.first_visit(maker) {
                open.push(maker);
            }
        }
        let mut seconds = 0.0;
        let mut visited = 0;
        while let Some(id) = open.pop() {
            let operation = self.graph.operation(id);
            if !operation.repeatable {
                return None;
            }
            seconds += operation.seconds.0;
            visited += 1;
            self.work += 1;
            for &input in &operation.inputs {
                if self.live(input) && !tensors.contains(&input) {
                    continue;
                }
                if let Some(moves) = self.copied(input) {
                    if self.first_visit(moves.fetch) {
                        seconds += self.graph.operation(moves.fetch).seconds.0;
                    }
                    continue;
                }
                let maker = self.index.maker(input)?;
                if visited < REACH && self.first_visit(maker) {
                    open.push(maker);
                }
            }
        }
        Some(seconds)
    }

    /// The evicted tensors that would be recomputed from these.
    fn dependents(&mut self, tensors: &[TensorId]) -> Dependents {
        self.traversal += 1;
        let mut found = Dependents {
            seconds: 0.0,
            wanted: NEVER,
        };
        let mut open: Vec<TensorId> = tensors.to_vec();
        let mut visited = 0;
        while let Some(tensor) = open.pop() {
            for &reader in self.index.readers(tensor) {
                if !self.ran[reader.index()] || !self.graph.operation(reader).repeatable {
                    continue;
                }
                if !self.first_visit(reader) {
                    continue;
                }
                if visited >= REACH {
                    found.wanted = found.wanted.min(END);
                    return found;
                }
                visited += 1;
                self.work += 1;
                let mut missing = false;
                for &output in &self.graph.operation(reader).outputs {
                    if self.live(output) || self.copied(output).is_some() {
                        continue;
                    }
                    missing = true;
                    if let Want::At(place) = self.want(output) {
                        found.wanted = found.wanted.min(place);
                    }
                    open.push(output);
                }
                if missing {
                    found.seconds += self.graph.operation(reader).seconds.0;
                }
            }
        }
        found
    }
}
