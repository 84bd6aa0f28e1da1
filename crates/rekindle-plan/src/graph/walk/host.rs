//! Tensors that a walk offloads instead of dropping them.
//!
//! A storage that is evicted and needed again is first copied to the host if offloading and fetching take less time
//! than recomputing it; a missing tensor is fetched if that is faster. The copy may be made at any moment since the
//! storage was made. The walk chooses the latest moment with room for the offload's additional bytes: directly before
//! the operation that lacks room, if there is room then.

use super::super::index::Moves;
use super::super::{OperationId, TensorId};
use super::score::Want;
use super::state::{GIVEN, NONE, Walk};

impl Walk<'_> {
    /// Records the bytes held after a run.
    pub(super) fn note_held(&mut self) {
        if self.index.has_moves() {
            self.host.held.push(self.used);
            self.host.copied.push(self.host.used);
        }
    }

    /// The transfers of a tensor, if it has a host copy.
    pub(super) fn copied(&self, tensor: TensorId) -> Option<Moves> {
        let moves = self.index.moves(tensor)?;
        (self.of[moves.copy.index()] != NONE).then_some(moves)
    }

    /// The operation that provides a missing tensor: its fetch, if there is a copy and fetching is cheaper, else its
    /// maker. `None` for a given tensor.
    pub(super) fn source(&mut self, tensor: TensorId) -> Option<OperationId> {
        if let Some(moves) = self.copied(tensor) {
            let fetch = self.graph.operation(moves.fetch).seconds.0;
            let regain = self.regain_seconds(&[tensor]);
            if regain.is_none_or(|regain| fetch <= regain) {
                return Some(moves.fetch);
            }
        }
        self.index.maker(tensor)
    }

    /// The seconds to offload and fetch the storage of these tensors, and the tensor that is copied; `None` if it
    /// cannot be offloaded.
    pub(super) fn transfer_seconds(&self, tensors: &[TensorId]) -> Option<(f64, TensorId)> {
        let root = self.index.root(*tensors.first()?);
        let moves = self.index.moves(root)?;
        let seconds = |id| self.graph.operation(id).seconds.0;
        let views = tensors.iter().filter(|&&tensor| tensor != root);
        let views = views.filter_map(|&tensor| self.index.maker(tensor));
        let back = seconds(moves.fetch) + views.map(seconds).sum::<f64>();
        match self.copied(root) {
            Some(_) => Some((back, root)),
            None if tensors.contains(&root) => Some((back + seconds(moves.offload), root)),
            None => None,
        }
    }

    /// Copies a storage that is about to be evicted to the host, if it is needed again and this is cheaper than
    /// recomputing. Returns whether the storage may be evicted: not if it cannot be recomputed and there is no room for
    /// the copy.
    pub(super) fn save(&mut self, storage: u32) -> bool {
        if !self.index.has_moves() {
            return true;
        }
        let tensors = self.storages[storage as usize].tensors.clone();
        let (class, _) = self.class(&tensors);
        let Want::At(_) = class else {
            return true;
        };
        let regain = self.regain_seconds(&tensors);
        let Some((seconds, root)) = self.transfer_seconds(&tensors) else {
            return regain.is_some();
        };
        if self.copied(root).is_some() || regain.is_some_and(|regain| regain <= seconds) {
            return true;
        }
        let saved = self
            .index
            .moves(root)
            .is_some_and(|moves| self.copy(storage, root, moves));
        saved || regain.is_some()
    }

    /// Makes a copy on the host, if there is room for it.
    fn copy(&mut self, storage: u32, root: TensorId, moves: Moves) -> bool {
        let bytes = self.graph.tensor(moves.copy).host_bytes.0;
        let temporary = self.graph.operation(moves.offload).temp_bytes.0;
        let born = self.storages[storage as usize].born;
        let fits = |held: &u64| held + temporary <= self.task.room;
        let place = match fits(&self.used) {
            true => Some(self.runs.len()),
            false => {
                let held = self.host.held[born..].iter().rposition(fits);
                held.map(|after| born + after + 1)
            }
        };
        let Some(place) = place.filter(|_| self.make_host_room(bytes)) else {
            return false;
        };
        // An earlier copy coexists with copies that were dropped since then.
        let since = &mut self.host.copied[place..];
        if since.iter().any(|used| used + bytes > self.task.host_room) {
            return false;
        }
        since.iter_mut().for_each(|used| *used += bytes);
        self.host.used += bytes;
        self.host.copies.push(root);
        self.host.offloads.push((place, moves.offload));
        self.of[moves.copy.index()] = GIVEN;
        true
    }

    /// Drops unneeded copies until there is room for `bytes` more bytes. Returns whether there is.
    fn make_host_room(&mut self, bytes: u64) -> bool {
        let mut place = 0;
        while self.host.used + bytes > self.task.host_room && place < self.host.copies.len() {
            let tensor = self.host.copies[place];
            let copy = self.index.moves(tensor).map(|moves| moves.copy);
            let free = |one: TensorId| self.pins[one.index()] == 0;
            let Some(copy) = copy.filter(|&copy| free(copy) && free(tensor)) else {
                place += 1;
                continue;
            };
            if !self.live(tensor) && self.class(&[tensor]).0 != Want::Never {
                place += 1;
                continue;
            }
            self.of[copy.index()] = NONE;
            self.host.used -= self.graph.tensor(copy).host_bytes.0;
            self.host.copies.swap_remove(place);
        }
        self.host.used + bytes <= self.task.host_room
    }

    /// All runs, offloads among them.
    pub(super) fn into_runs(mut self) -> Vec<OperationId> {
        if self.host.offloads.is_empty() {
            return self.runs;
        }
        self.host.offloads.sort_by_key(|(place, _)| *place);
        let mut offloads = self.host.offloads.into_iter().peekable();
        let mut runs = Vec::with_capacity(self.runs.len() + offloads.len());
        for (place, run) in self.runs.into_iter().enumerate() {
            while let Some((_, offload)) = offloads.next_if(|(before, _)| *before <= place) {
                runs.push(offload);
            }
            runs.push(run);
        }
        runs
    }
}
