//! What an exchange took.

use std::time::Duration;

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use crate::reduce::SharedReading;

/// What the exchange of a step took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangeReading {
    /// How long the step waited for other ranks and the network: what its computation did not hide.
    pub waited: Duration,
    /// How long it copied gradients to their buckets. What a device had still to compute of them is not included.
    pub taken: Duration,
    /// How long it copied sums back.
    pub returned: Duration,
    /// How long it took means over ranks ([`synchronised_batch_norm`](crate::synchronised_batch_norm)), copies included.
    pub means: Duration,
    /// How long ranks that share out the updates sent each other what they had updated, copies included. Of updates after the
    /// step that comes later, with [`Shards::share`](crate::reduce::Shards::share): zero here.
    pub parameters: Duration,
    /// What the network did, in order.
    pub operations: Vec<NetworkReading>,
}

impl ExchangeReading {
    /// What it added to the step.
    #[must_use]
    pub fn added(&self) -> Duration {
        self.waited + self.taken + self.returned + self.means + self.parameters
    }

    /// Adds what a later part of the step took; what the network did is that of the later one.
    pub fn add_part(&mut self, part: Self) {
        self.waited += part.waited;
        self.taken += part.taken;
        self.returned += part.returned;
        self.means += part.means;
        self.parameters += part.parameters;
        self.operations = part.operations;
    }

    /// Adds that updated parameters were sent, until so long after the step began.
    pub fn add_shared(&mut self, shared: SharedReading, until: Duration) {
        self.parameters += shared.took;
        self.operations.push(NetworkReading {
            what: Exchanges::Parameters,
            bytes: shared.bytes,
            begun: until.saturating_sub(shared.took),
            done: until,
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

/// An operation of the network in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkReading {
    /// What for.
    pub what: Exchanges,
    /// Bytes that the rank gave; of parameters, all that ranks sent.
    pub bytes: Bytes,
    /// When it was begun, from the start of the step on.
    pub begun: Duration,
    /// When the network was done.
    pub done: Duration,
}
