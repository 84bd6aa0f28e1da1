//! The clock by which network operations are timed.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A clock: the machine's, or a simulated one for a rank with a simulated network. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Instant>>>);

impl Clock {
    /// A simulated clock that shows this moment.
    pub(super) fn simulated(at: Instant) -> Self {
        Self(Some(Arc::new(Mutex::new(at))))
    }

    /// The current time of the clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(at) => *at.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Advances a simulated clock.
    pub fn advance(&self, by: Duration) {
        self.reach(self.now() + by);
    }

    /// Advances a simulated clock to this moment, if it is earlier: the caller has waited until then.
    pub(super) fn reach(&self, moment: Instant) {
        if let Some(at) = &self.0 {
            let mut at = at.lock().unwrap_or_else(PoisonError::into_inner);
            *at = moment.max(*at);
        }
    }
}
