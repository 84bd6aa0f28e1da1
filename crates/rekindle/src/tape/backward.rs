//! The backward of a tape: cuts from the last to the first, and the ordinary code between them.
//!
//! An end of graph whose gradient is known is due. Before the gradients of a cut's leaves are read, all due ends that
//! were made after it are swept as one; those made before it wait, for cuts before it may add to them.

use burn::{
    module::AutodiffModule,
    optim::GradientsParams,
    tensor::{
        Tensor, TensorMetadata,
        ops::{FloatTensor, FloatTensorOps},
    },
};

use super::{
    Tape, TapeError, TapePart,
    cut::{Cut, Gradient, Leaf},
    sweeper::Sweeper,
};
use crate::{
    backend::CheckpointBackend,
    graph::{self, Upstream},
    seed::Drawing,
};

/// An end of graph whose gradient is known and that waits for its sweep.
struct Due<B: CheckpointBackend> {
    end: FloatTensor<B>,
    gradient: Gradient<B>,
    part: TapePart,
}

impl<B: CheckpointBackend> Tape<B> {
    /// The gradients of all parameters that want one: those of `model`, and those of the modules that ran in
    /// checkpoints.
    ///
    /// `model` is everything whose parameters the step used outside checkpoints; a tuple of modules will do.
    ///
    /// ```compile_fail
    /// # use burn::{backend::{Autodiff, Flex}, nn::Linear, prelude::*};
    /// # use rekindle::Tape;
    /// # type B = Autodiff<Flex>;
    /// fn twice(tape: Tape<B>, loss: Tensor<B, 1>, model: &Linear<B>) {
    ///     let _ = tape.backward(loss.clone(), model);
    ///     let _ = tape.backward(loss, model); // the tape is gone
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`TapeError`] wherever gradients would be wrong.
    ///
    /// # Panics
    ///
    /// As burn's own backward does.
    pub fn backward<M>(
        mut self,
        loss: Tensor<B, 1>,
        model: &M,
    ) -> Result<GradientsParams, TapeError>
    where
        M: AutodiffModule<B>,
    {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let [elements] = loss.dims();
        if elements != 1 {
            return Err(TapeError::LossNotScalar { elements });
        }
        let root = graph::root_of(loss);
        if !B::is_tracked(&root) {
            return Err(TapeError::LossUntracked);
        }
        let mut sweeper = Sweeper::new(self.number);
        sweeper.know_parameters::<B, M>(model);
        let leaves = self.cuts.iter().flat_map(|cut| &cut.leaves);
        sweeper.know(leaves.flat_map(Leaf::numbers));
        let ends = self.cuts.iter().flat_map(|cut| cut.ends.iter().flatten());
        let own = ends.filter(|end| B::float_is_require_grad(end));
        sweeper.know(own.map(B::node_number));

        let one =
            B::InnerBackend::float_ones(root.shape(), &B::float_device(&root), root.dtype().into());
        let mut due = Vec::new();
        self.arrive(root, one, TapePart::Loss, &mut due);
        while let Some(after) = self.cuts.last().map(Cut::number) {
            let (now, later) = due
                .into_iter()
                .partition(|due: &Due<B>| B::node_number(&due.end) > after);
            due = later;
            self.sweep_ordinary(now, model, &mut sweeper)?;
            let Some(cut) = self.cuts.pop() else { break };
            let upstream: Vec<_> = cut.leaves.into_iter().map(|leaf| leaf.gradient).collect();
            if upstream.iter().all(Option::is_none) {
                continue;
            }
            let upstream = match cut.recompute {
                None => Upstream(upstream),
                Some(recompute) => recompute(Upstream(upstream), &mut sweeper)?,
            };
            for (end, gradient) in cut.ends.into_iter().zip(upstream.0) {
                if let (Some(end), Some(gradient)) = (end, gradient) {
                    self.arrive(end, gradient, cut.part, &mut due);
                }
            }
        }
        self.sweep_ordinary(due, model, &mut sweeper)?;
        if let Some(device) = &self.seeded {
            drop(Drawing::seeded::<B>(device, self.seed.after()));
        }
        Ok(sweeper.gradients)
    }

    /// A gradient has come to an end of graph. If that is a leaf of ours there is nothing to sweep.
    fn arrive(
        &mut self,
        end: FloatTensor<B>,
        gradient: Gradient<B>,
        part: TapePart,
        due: &mut Vec<Due<B>>,
    ) {
        match self.places.get(&B::node_number(&end)) {
            Some(&(cut, leaf)) => self.cuts[cut].leaves[leaf].add(gradient),
            None => due.push(Due {
                end,
                gradient,
                part,
            }),
        }
    }

    /// One backward through ordinary code, from all ends that are due.
    fn sweep_ordinary<M: AutodiffModule<B>>(
        &mut self,
        due: Vec<Due<B>>,
        model: &M,
        sweeper: &mut Sweeper,
    ) -> Result<(), TapeError> {
        let ends: Vec<_> = due
            .iter()
            .map(|due| (B::node_number(&due.end), due.part))
            .collect();
        let seeds = due
            .into_iter()
            .map(|due| B::seed_backward(due.end, due.gradient));
        let Some(root) = seeds.reduce(B::float_add) else {
            return Ok(());
        };
        let (mut grads, tree) = sweeper.sweep::<B>(root, &ends)?;
        sweeper.collect::<B, M>(model, &mut grads);
        for node in tree.values().flatten() {
            if let Some(&(cut, leaf)) = self.places.get(node)
                && let Some(cut) = self.cuts.get_mut(cut)
            {
                cut.leaves[leaf].take(&mut grads);
            }
        }
        Ok(())
    }
}
