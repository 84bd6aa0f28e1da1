//! Writes a snapshot one tensor at a time.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use bincode::{config, error::EncodeError, serde::encode_into_std_write};
use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::{DynOptimizer, DynState, StateSink},
    tensor::Tensor,
};
use serde::Serialize;

use super::format::STATE_PREFIX;

/// A snapshot that is being written.
pub(crate) struct SnapshotWriter<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) checksum: crc32fast::Hasher,
}

impl SnapshotWriter<'_> {
    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, value: &T) -> io::Result<()> {
        match encode_into_std_write(value, self, config::standard()) {
            Ok(_) => Ok(()),
            Err(EncodeError::Io { inner, .. }) => Err(inner),
            Err(other) => Err(io::Error::other(other)),
        }
    }

    /// Writes every float tensor of a module whose statistics are up to date.
    pub(crate) fn model(&mut self, model: &impl Module) -> io::Result<()> {
        struct Count(usize);
        impl ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
                self.0 += 1;
            }
        }
        struct Put<'w, 'a> {
            to: &'w mut SnapshotWriter<'a>,
            result: io::Result<()>,
        }
        impl ModuleVisitor for Put<'_, '_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.result.is_ok() {
                    let data = param.val().into_data();
                    self.result = self.to.put(&(param.id.val(), data));
                }
            }
        }

        let mut count = Count(0);
        model.visit(&mut count);
        self.put(&count.0)?;
        let mut put = Put {
            to: self,
            result: Ok(()),
        };
        model.visit(&mut put);
        put.result
    }

    /// Writes an optimizer's state, parameter by parameter.
    pub(crate) fn optimizer(
        &mut self,
        optimizer: &dyn DynOptimizer,
        states: &HashMap<ParamId, DynState>,
    ) -> io::Result<()> {
        let mut states: Vec<_> = states.iter().collect();
        // The map's order differs between processes.
        states.sort_unstable_by_key(|(id, _)| id.val());
        self.put(&states.len())?;
        for (id, state) in states {
            self.put(&id.val())?;
            self.put(&flattened(optimizer, state))?;
        }
        Ok(())
    }

    /// Writes a parameter's [flattened] state that was encoded elsewhere.
    pub(crate) fn state(&mut self, id: ParamId, encoded: &[u8]) -> io::Result<()> {
        self.put(&id.val())?;
        self.write_all(encoded)
    }
}

impl Write for SnapshotWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A parameter's optimizer state as plain values: its rank, tensors and scalars.
pub(crate) fn flattened(optimizer: &dyn DynOptimizer, state: &DynState) -> impl Serialize + use<> {
    let mut sink = StateSink::default();
    optimizer.state_flatten(STATE_PREFIX, state, &mut sink);
    (state.rank(), sink.tensors, sink.scalars)
}
