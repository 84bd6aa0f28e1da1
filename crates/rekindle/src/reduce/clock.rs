//! The time that the operations of a network go by.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A clock: the machine's, or that of a rank whose network is simulated. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Instant>>>);

impl Clock {
    /// A simulated one, which stands at this moment.
    pub(super) fn simulated(at: Instant) -> Self {
        Self(Some(Arc::new(Mutex::new(at))))
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(at) => *at.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Lets so much time pass on a simulated clock.
    pub fn advance(&self, by: Duration) {
        self.reach(self.now() + by);
    }

    /// Whoever waits until this moment sees a simulated clock show it.
    pub(super) fn reach(&self, moment: Instant) {
        if let Some(at) = &self.0 {
            let mut at = at.lock().unwrap_or_else(PoisonError::into_inner);
            *at = moment.max(*at);
        }
    }
}
