//! What the checkpoints of one step share with the borders that they leave in burn's graph.

use std::{
    cell::Cell,
    sync::{
        Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use burn::optim::GradientsParams;

use crate::quiet;

/// Runs a checkpoint again and adds the gradients of its parameters.
pub(super) type Recompute = Box<dyn FnOnce(&mut GradientsParams) + Send>;

/// The checkpoints of one step, and the gradients of their parameters. The tape owns it, so that what checkpoints keep
/// goes with the tape, whatever lives on in burn's graph.
#[derive(Default)]
pub(super) struct Step {
    checkpoints: Mutex<Vec<Option<Recompute>>>,
    gradients: Mutex<GradientsParams>,
    /// What the first checkpoint said that could not run again.
    failure: Mutex<Option<String>>,
    /// Whether a backward that was not the step's own has passed one of its borders, and used up what is before it.
    used_up: AtomicBool,
}

thread_local! {
    /// The address of the step whose backward this thread runs.
    static RUNNING: Cell<Option<usize>> = const { Cell::new(None) };
    static MET_ANOTHER: Cell<bool> = const { Cell::new(false) };
}

impl Step {
    /// Keeps a checkpoint and returns its place.
    pub(super) fn add(&self, recompute: Recompute) -> usize {
        let mut checkpoints = lock(&self.checkpoints);
        checkpoints.push(Some(recompute));
        checkpoints.len() - 1
    }

    /// The step's own backward, as long as the result lives.
    pub(super) fn start(&self) -> Running {
        MET_ANOTHER.set(false);
        Running {
            outside: RUNNING.replace(Some(self.address())),
        }
    }

    pub(super) fn take_gradients(&self) -> GradientsParams {
        std::mem::take(&mut *lock(&self.gradients))
    }

    /// What the first checkpoint said that could not run again.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Whether another backward has used up some of the step's graph.
    pub(super) fn is_used_up(&self) -> bool {
        self.used_up.load(Relaxed)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// A backward passes the border of a checkpoint. It must be its own tape's: burn's backward returns no errors, so
    /// without a tape it panics, and another tape is told.
    #[expect(
        clippy::panic,
        reason = "burn's backward returns no errors, and its gradients would be wrong"
    )]
    pub(super) fn passed(step: &Weak<Self>, checkpoint: usize) {
        let step = step.upgrade();
        match (RUNNING.get(), step) {
            (Some(running), Some(step)) if running == step.address() => {
                let recompute = lock(&step.checkpoints)[checkpoint].take();
                let failed = lock(&step.failure).is_some();
                if let Some(recompute) = recompute.filter(|_| !failed) {
                    let mut gradients = step.take_gradients();
                    // A panic in the midst of burn's backward would leave entries of nodes behind that nothing frees.
                    match quiet::catch(|| recompute(&mut gradients)) {
                        Ok(()) => *lock(&step.gradients) = gradients,
                        Err(panic) => *lock(&step.failure) = Some(panic),
                    }
                }
            }
            (Some(_), step) => {
                MET_ANOTHER.set(true);
                step.inspect(|step| step.used_up.store(true, Relaxed));
            }
            (None, step) => {
                step.inspect(|step| step.used_up.store(true, Relaxed));
                panic!(
                    "an ordinary backward has come to the output of a checkpoint, where it would lose the gradients of \
                 the checkpoint's parameters: call `tape.backward(loss, &model)` in place of `loss.backward()`"
                )
            }
        }
    }
}

/// See [`Step::start`].
pub(super) struct Running {
    outside: Option<usize>,
}

impl Running {
    /// Whether the backward has passed a border of another tape.
    pub(super) fn met_another_tape(&self) -> bool {
        MET_ANOTHER.get()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(self.outside);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
