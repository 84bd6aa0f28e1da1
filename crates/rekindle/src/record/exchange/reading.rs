//! Measurements of an exchange.

use std::time::Duration;

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use crate::reduce::SharedReading;

/// Measured times and operations of a step's exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangeReading {
    /// How long the step waited for other ranks and the network: the part that computation did not hide.
    pub waited: Duration,
    /// Time to copy gradients to their buckets, without the device's pending computation of them.
    pub taken: Duration,
    /// Time to copy sums back.
    pub returned: Duration,
    /// Time for means over ranks ([`synchronised_batch_norm`](crate::synchronised_batch_norm)), copies included.
    pub means: Duration,
    /// Time to exchange updated parameters between ranks that divide the updates, copies included. Zero here for
    /// updates after the step, whose exchange comes later, with [`Shards::share`](crate::reduce::Shards::share).
    pub parameters: Duration,
    /// The network operations, in order.
    pub operations: Vec<NetworkReading>,
}

impl ExchangeReading {
    /// Time that the exchange added to the step.
    #[must_use]
    pub fn added(&self) -> Duration {
        self.waited + self.taken + self.returned + self.means + self.parameters
    }

    /// Adds the times of a later part of the step; the network operations are those of the later part.
    pub fn add_part(&mut self, part: Self) {
        self.waited += part.waited;
        self.taken += part.taken;
        self.returned += part.returned;
        self.means += part.means;
        self.parameters += part.parameters;
        self.operations = part.operations;
    }

    /// Adds an exchange of updated parameters that ended `until` after the start of the step.
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
    /// The purpose.
    pub what: Exchanges,
    /// Bytes that the rank sent; for parameters, the bytes that all ranks sent.
    pub bytes: Bytes,
    /// When it began, counted from the start of the step.
    pub begun: Duration,
    /// When the network had finished.
    pub done: Duration,
}
