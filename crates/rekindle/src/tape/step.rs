//! Data that the checkpoints of one step share with their borders in burn's graph.

use std::{
    cell::Cell,
    sync::{
        Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use burn::optim::GradientsParams;

use crate::quiet;

/// Recomputes a checkpoint and adds the gradients of its parameters.
pub(super) type Recompute = Box<dyn FnOnce(&mut GradientsParams) + Send>;

/// The checkpoints of one step, and the gradients of their parameters. The tape owns it, so that the data of
/// checkpoints is freed with the tape even if parts of burn's graph remain.
#[derive(Default)]
pub(super) struct TapeStep {
    checkpoints: Mutex<Vec<Option<Recompute>>>,
    gradients: Mutex<GradientsParams>,
    /// The panic message of the first checkpoint whose recompute failed.
    failure: Mutex<Option<String>>,
    /// Whether a backward pass other than the step's own has reached one of its borders and consumed the graph before
    /// it.
    used_up: AtomicBool,
}

thread_local! {
    /// The address of the step whose backward pass runs on this thread.
    static RUNNING: Cell<Option<usize>> = const { Cell::new(None) };
    static MET_ANOTHER: Cell<bool> = const { Cell::new(false) };
}

impl TapeStep {
    /// Stores a checkpoint and returns its index.
    pub(super) fn add(&self, recompute: Recompute) -> usize {
        let mut checkpoints = lock(&self.checkpoints);
        checkpoints.push(Some(recompute));
        checkpoints.len() - 1
    }

    /// Marks the step's own backward pass as running while the returned guard exists.
    pub(super) fn start(&self) -> Running {
        MET_ANOTHER.set(false);
        Running {
            outside: RUNNING.replace(Some(self.address())),
        }
    }

    pub(super) fn take_gradients(&self) -> GradientsParams {
        std::mem::take(&mut *lock(&self.gradients))
    }

    /// The panic message of the first checkpoint whose recompute failed.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Whether another backward pass has consumed a part of the step's graph.
    pub(super) fn is_used_up(&self) -> bool {
        self.used_up.load(Relaxed)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Called when a backward pass reaches the border of a checkpoint. It must be the backward pass of the checkpoint's
    /// own tape. burn's backward pass cannot return errors, so without a tape this panics; another tape is notified
    /// instead.
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
                    // A panic inside burn's backward pass would leave entries of nodes that are never freed.
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

/// See [`TapeStep::start`].
pub(super) struct Running {
    outside: Option<usize>,
}

impl Running {
    /// Whether the backward pass has reached a border of another tape.
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
