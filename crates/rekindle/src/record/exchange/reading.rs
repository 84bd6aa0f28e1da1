//! Measurements of an exchange.

use std::time::Duration;

use rekindle_plan::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// Measured time and operations of a step's exchange.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExchangeReading {
    /// Time that the exchange added to the step: copies, and waiting for other ranks and the network. Updates after the
    /// step exchange parameters later.
    pub added: Duration,
    /// The network operations, in order.
    pub operations: Vec<TimedExchange>,
}

impl ExchangeReading {
    /// Adds an operation of the network, which cannot begin before the one before it is done.
    pub(in crate::record) fn note(&mut self, one: TimedExchange) {
        let before = self.operations.last();
        let free = before.map_or(Seconds::ZERO, |before| before.start_s + before.duration_s);
        let waits = Seconds((free - one.start_s).0.clamp(0.0, one.duration_s.0));
        self.operations.push(TimedExchange {
            start_s: one.start_s + waits,
            duration_s: one.duration_s - waits,
            ..one
        });
    }

    /// Adds an exchange of updated parameters, which ended `until` after the start of the step.
    #[doc(hidden)]
    pub fn add_shared(&mut self, shared: TimedExchange, until: Duration) {
        self.added += Duration::from_secs_f64(shared.duration_s.0);
        self.note(TimedExchange {
            start_s: Seconds(until.as_secs_f64()) - shared.duration_s,
            ..shared
        });
    }
}

/// What an operation of the network is for.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchanges {
    /// A bucket of gradients is summed.
    Gradients,
    /// A mean over ranks is taken.
    Mean,
    /// All updated parameters are sent by the ranks that have updated them.
    Parameters,
}

/// What the network did for one step.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimedExchange {
    /// What for.
    pub what: Exchanges,
    /// Bytes that the rank gave; of parameters, all that ranks sent.
    pub bytes: Bytes,
    /// When the network could begin, from the start of the step: this rank had handed it over, and the one before was done.
    pub start_s: Seconds,
    /// How long until it was done.
    pub duration_s: Seconds,
}
