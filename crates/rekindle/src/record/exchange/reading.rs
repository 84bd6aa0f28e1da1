//! Measurements of an exchange.

use std::time::Duration;

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

/// Measured time and operations of a step's exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangeReading {
    /// Time that the exchange added to the step: copies, and waiting for other ranks and the network. Updates after the
    /// step exchange parameters later, with [`Shards::share`](crate::reduce::Shards::share).
    pub added: Duration,
    /// The network operations, in order.
    pub operations: Vec<NetworkReading>,
}

impl ExchangeReading {
    /// Adds the time of a later part of the step; the network operations are those of the later part.
    pub fn add_part(&mut self, part: Self) {
        self.added += part.added;
        self.operations = part.operations;
    }

    /// Adds an exchange of updated parameters, whose times are counted from its own start, and which ended `until` after
    /// the start of the step.
    pub fn add_shared(&mut self, shared: NetworkReading, until: Duration) {
        self.added += shared.done;
        self.operations.push(NetworkReading {
            begun: until.saturating_sub(shared.done),
            done: until,
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
