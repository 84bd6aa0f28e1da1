//! A [sharded](crate::optimizer_state::OptimizerState::Sharded) optimizer's state in rank 0's snapshot.
//!
//! Rank 0 writes, and requests the state it lacks one parameter at a time; the others answer until rank 0 sends the
//! end. So all ranks run the same operations even if writing fails. Memory: besides its own, a rank holds one
//! parameter's state.

use std::{collections::HashMap, io};

use bincode::{config, serde::encode_to_vec};
use burn::{
    module::ParamId,
    optim::{DynOptimizer, DynState},
};
use rekindle::{
    quiet::catch,
    reduce::{ReduceError, Shards},
};

use super::snapshot::{SnapshotWriter, flattened};

/// A rank's part of an optimizer's state.
pub(super) struct StatePart<'a> {
    pub(super) shards: &'a Shards,
    pub(super) optimizer: &'a dyn DynOptimizer,
    pub(super) states: &'a HashMap<ParamId, DynState>,
}

/// Sent instead of a parameter's number: requests the list of parameters with a state.
const WHICH: u64 = u64::MAX;

impl StatePart<'_> {
    /// On rank 0: writes the state of all ranks, which [answer](Self::answer).
    pub(super) fn write(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        self.ask(Some(WHICH)).map_err(io::Error::other)?;
        let places = self.places().map_err(io::Error::other)?;
        to.put(&places.len())?;
        for place in places {
            let (id, owner) = self.shards.owners()[place as usize];
            let state = match owner {
                0 => self.encoded(id),
                _ => {
                    self.ask(Some(place)).map_err(io::Error::other)?;
                    let sent = self.shards.reducer().broadcast(owner, Vec::new());
                    sent.wait().map_err(io::Error::other)?
                }
            };
            if state.is_empty() {
                let message =
                    format!("rank {owner} cannot read the optimizer's state of parameter {id}");
                return Err(io::Error::other(message));
            }
            to.state(id, &state)?;
        }
        Ok(())
    }

    /// On rank 0: ends the others' waiting.
    pub(super) fn done(&self) -> Result<(), ReduceError> {
        self.ask(None)
    }

    /// On the other ranks: answers rank 0 until it is done.
    pub(super) fn answer(&self) -> Result<(), ReduceError> {
        let reducer = self.shards.reducer();
        loop {
            let asked = reducer.broadcast(0, Vec::new()).wait()?;
            let Some((place, _)) = asked.split_first_chunk() else {
                return Ok(());
            };
            match u64::from_le_bytes(*place) {
                WHICH => drop(self.places()?),
                place => {
                    let (id, owner) = self.shards.owners()[place as usize];
                    let own = match owner == reducer.rank() {
                        true => self.encoded(id),
                        false => Vec::new(),
                    };
                    drop(reducer.broadcast(owner, own).wait()?);
                }
            }
        }
    }

    fn ask(&self, what: Option<u64>) -> Result<(), ReduceError> {
        let what = what.map_or(Vec::new(), |what| what.to_le_bytes().to_vec());
        self.shards.reducer().broadcast(0, what).wait().map(drop)
    }

    /// Numbers of the parameters that have a state on some rank.
    fn places(&self) -> Result<Vec<u64>, ReduceError> {
        let owners = self.shards.owners().iter().zip(0_u64..);
        let own = owners.filter(|((id, _), _)| self.states.contains_key(id));
        let own = own.flat_map(|(_, place)| place.to_le_bytes()).collect();
        let all = self.shards.reducer().all_gather(own).wait()?;
        let all = all.iter().flat_map(|one| one.as_chunks().0);
        let mut all: Vec<u64> = all.map(|place| u64::from_le_bytes(*place)).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// A parameter's state in the snapshot format; empty if the device fails.
    fn encoded(&self, id: ParamId) -> Vec<u8> {
        let state = self.states.get(&id);
        let encoded = state.and_then(|state| {
            let state = catch(|| flattened(self.optimizer, state)).ok()?;
            encode_to_vec(state, config::standard()).ok()
        });
        encoded.unwrap_or_default()
    }
}
