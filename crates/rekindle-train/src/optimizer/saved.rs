//! An optimizer's state in snapshots, one parameter at a time.
//!
//! Where ranks [divide](rekindle::record::OptimizerState::Sharded) the state, rank 0 writes, and asks for what it lacks;
//! the others answer until rank 0 sends the end. So all ranks run the same operations even if writing fails. Memory: besides
//! its own, a rank holds one parameter's state.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
};

use burn::{
    module::{Module, ParamId},
    optim::StateSink,
    tensor::Device,
};
use rekindle::{
    record::driver::{Shards, catch},
    reduce::ReduceError,
};

use super::AnyOptimizer;
use crate::{
    file_error::FileError,
    snapshot::{Form, Snapshot},
};

/// Sent instead of a parameter's number: asks for the forms of all states.
const FORMS: u64 = u64::MAX;

/// The forms of parameters' states.
#[derive(Default)]
pub(crate) struct Forms {
    /// Each that occurs.
    pub(crate) all: Vec<Form>,
    /// The place of each parameter's.
    pub(crate) of: HashMap<ParamId, usize>,
}

impl Forms {
    fn add(&mut self, id: ParamId, form: Form) {
        let known = self.all.iter().position(|one| *one == form);
        let place = known.unwrap_or(self.all.len());
        if known.is_none() {
            self.all.push(form);
        }
        self.of.insert(id, place);
    }
}

impl AnyOptimizer {
    /// The forms of all states. Where ranks divide the state, the other ranks [answer](Self::end_save) meanwhile.
    pub(crate) fn forms(&self) -> io::Result<Forms> {
        let mut all = Forms::default();
        let Some(shards) = &self.shards else {
            for id in self.states.keys() {
                all.add(*id, self.form(*id)?);
            }
            return Ok(all);
        };
        ask(shards, Some(FORMS)).map_err(io::Error::other)?;
        for (rank, forms) in (0..).zip(self.all_forms(shards).map_err(io::Error::other)?) {
            let forms: Vec<(usize, Form)> =
                serde_json::from_slice(&forms).map_err(|_| unreadable(rank))?;
            for (place, form) in forms {
                all.add(shards.owners()[place].0, form);
            }
        }
        Ok(all)
    }

    /// Writes the values of a parameter's state, which are so many bytes.
    pub(crate) fn write_state(
        &self,
        id: ParamId,
        bytes: usize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let owners = self.shards.as_ref().map(Shards::owners).unwrap_or_default();
        let place = owners.iter().position(|(one, _)| *one == id);
        if let Some(shards) = &self.shards
            && let Some(place) = place
            && let (_, owner @ 1..) = owners[place]
        {
            ask(shards, Some(place as u64)).map_err(io::Error::other)?;
            let sent = shards.reducer().broadcast(owner, Vec::new());
            let sent = sent.wait().map_err(io::Error::other)?;
            if sent.len() != bytes {
                return Err(unreadable(owner));
            }
            return out.write_all(&sent);
        }
        self.read_state(id, |sink| {
            let mut tensors = sink.tensors.iter();
            tensors.try_for_each(|(_, data)| out.write_all(data.as_bytes()))
        })?
    }

    /// Ends a save on rank 0, successful or not; the other ranks send their parts to rank 0 until then.
    pub(crate) fn end_save(&self) -> Result<(), ReduceError> {
        let Some(shards) = &self.shards else {
            return Ok(());
        };
        let reducer = shards.reducer();
        if reducer.rank() == 0 {
            return ask(shards, None);
        }
        loop {
            let asked = reducer.broadcast(0, Vec::new()).wait()?;
            let Some((place, _)) = asked.split_first_chunk() else {
                return Ok(());
            };
            match u64::from_le_bytes(*place) {
                FORMS => drop(self.all_forms(shards)?),
                place => {
                    let (id, owner) = shards.owners()[place as usize];
                    let values = |sink: &StateSink| {
                        let tensors = sink.tensors.iter().map(|(_, data)| data.as_bytes());
                        tensors.collect::<Vec<_>>().concat()
                    };
                    let own = match owner == reducer.rank() {
                        true => catch(|| self.read_state(id, values))
                            .ok()
                            .and_then(Result::ok),
                        false => None,
                    };
                    let own = own.unwrap_or_default();
                    drop(reducer.broadcast(owner, own).wait()?);
                }
            }
        }
    }

    /// Each rank's forms, with the numbers of their parameters, as JSON; nothing where the device fails.
    fn all_forms(&self, shards: &Shards) -> Result<Vec<Vec<u8>>, ReduceError> {
        let owners = shards.owners().iter().enumerate();
        let own = owners.filter(|(_, (id, _))| self.states.contains_key(id));
        let own = catch(|| -> io::Result<_> {
            let forms = own.map(|(place, (id, _))| Ok((place, self.form(*id)?)));
            Ok(serde_json::to_vec(&forms.collect::<io::Result<Vec<_>>>()?)?)
        });
        let own = own.ok().and_then(Result::ok).unwrap_or_default();
        shards.reducer().all_gather(own).wait()
    }

    fn form(&self, id: ParamId) -> io::Result<Form> {
        self.read_state(id, |sink| {
            let scalars: BTreeMap<_, _> = sink.scalars.iter().cloned().collect();
            Ok(Form {
                tensors: sink.tensors.iter().map(|(name, _)| name.clone()).collect(),
                scalars: serde_json::to_value(scalars)?,
            })
        })?
    }

    /// Reads a parameter's state as plain values.
    fn read_state<T>(&self, id: ParamId, read: impl FnOnce(&StateSink) -> T) -> io::Result<T> {
        let state = self.states.get(&id);
        let state = state.ok_or_else(|| io::Error::other("the optimizer has lost a state"))?;
        Ok(state.read(&*self.optimizer, read))
    }

    /// Restores the state that an optimizer with the same settings has written, whole or sharded.
    pub(crate) fn restored(
        mut self,
        from: &mut Snapshot,
        model: &impl Module,
        device: &Device,
    ) -> Result<Self, FileError> {
        let mut states = HashMap::new();
        let keep = |id, state| drop(states.insert(id, self.kept(id, state)));
        from.optimizer(model, &*self.optimizer, |id| self.updates(id), keep, device)?;
        self.states = states;
        let scaler = self.scaler.restored(from.loss_scale());
        self.scaler = scaler.map_err(|wrong| from.malformed(wrong))?;
        Ok(self)
    }
}

fn ask(shards: &Shards, what: Option<u64>) -> Result<(), ReduceError> {
    let what = what.map_or(Vec::new(), |what| what.to_le_bytes().to_vec());
    shards.reducer().broadcast(0, what).wait().map(drop)
}

fn unreadable(rank: usize) -> io::Error {
    io::Error::other(format!("rank {rank} cannot read its optimizer state"))
}
