//! The time of an exchange: gradients summed over ranks while the rest of a program runs.
//!
//! A ring of n ranks sums b bytes in 2 (n - 1) rounds. In each round every rank sends 1/n of the bytes to its
//! neighbour:
//!
//! ```text
//! all_reduce(b) = 2 (n - 1) latency + 2 (n - 1)/n b / rate
//! ```
//!
//! (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005, without the time of the additions.)
//!
//! [`ExchangeCost::of_step`] is what the exchange takes of a step. The program passes on each gradient when it is complete
//! ([`Timetable`]). The computing thread copies it to its bucket, and the sums back: *staging*. Meanwhile the network, driven
//! by a separate thread, sums one bucket after another, from the first gradient or the last mean over ranks on; the last
//! bucket begins after the program. So the step waits for
//!
//! ```text
//! max( all_reduce(last bucket), sum of all_reduce(bucket) - (end of the program - begin) )
//! ```
//!
//! The program waits for each mean over ranks at once. Ranks that divide the updates send each parameter to all others after
//! all are updated, one after another. The time that the exchange adds to a step is the waiting for buckets, the staging, the
//! means, and the sending of parameters.
//!
//! All ranks are assumed to be as fast as this one, and nothing but the step's own operations hides the network: neither
//! staging nor updates. Cost: O(steps of the program).

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Graph, OperationId, Program, Rate, TensorId};
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// Ranks that sum over a ring of equal links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// How many.
    pub ranks: usize,
    /// From each to its neighbour, in both directions at once.
    pub link: Rate,
}

impl Ring {
    /// The time to sum `bytes` bytes of each rank.
    pub fn all_reduce(&self, bytes: Bytes) -> Seconds {
        let rounds = 2.0 * self.ranks.saturating_sub(1) as f64;
        let message = bytes.0 as f64 / self.ranks.max(1) as f64;
        (self.link.latency_s + Seconds(message / self.link.bytes_per_s)) * rounds
    }

    /// The time for one rank to send `bytes` bytes to all others: down a binomial tree, or in n parts, which the ranks
    /// then gather around the ring, whichever is faster (Thakur, Rabenseifner and Gropp 2005, section 4.3):
    ///
    /// ```text
    /// min( log n (latency + b / rate),  (log n + n - 1) latency + 2 (n - 1)/n b / rate ),  log n to base 2, rounded up
    /// ```
    pub fn broadcast(&self, bytes: Bytes) -> Seconds {
        let others = self.ranks.saturating_sub(1) as f64;
        let deep = f64::from(self.ranks.max(1).next_power_of_two().ilog2());
        let whole = Seconds(bytes.0 as f64 / self.link.bytes_per_s);
        let tree = (self.link.latency_s + whole) * deep;
        let parts = self.link.latency_s * (deep + others) + whole * (2.0 * others / (others + 1.0));
        Seconds(tree.0.min(parts.0))
    }

    /// The ring whose times for summing a smaller and a larger size are these.
    pub fn of_times(ranks: usize, small: (Bytes, Seconds), large: (Bytes, Seconds)) -> Ring {
        let line = Rate::of_times(small, large);
        let rounds = 2.0 * ranks.saturating_sub(1).max(1) as f64;
        Ring {
            ranks,
            link: Rate {
                latency_s: line.latency_s * rounds.recip(),
                bytes_per_s: line.bytes_per_s * rounds / ranks.max(1) as f64,
            },
        }
    }
}

/// The costs of an exchange for a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeCost {
    /// The network.
    pub ring: Ring,
    /// Seconds for the computing thread to copy a byte to its bucket, and its sum back.
    pub staged_s_per_byte: f64,
}

/// When a program completes its gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timetable {
    /// The gradients by the indices of their parameters, in the order in which they are complete; last those that nothing makes.
    pub order: Vec<usize>,
    /// Computing time without updates, after the first gradient is complete and the last mean over ranks is taken: that of
    /// buckets is hidden by it.
    pub hides: Seconds,
}

impl Timetable {
    /// The timetable of the gradients of parameters that have one, each complete after the last step that makes or reads it;
    /// `means` are the operations that take a mean over ranks.
    ///
    /// # Panics
    /// If the program was made for another graph.
    pub fn new(
        graph: &Graph,
        program: &Program,
        gradients: &[Option<TensorId>],
        means: &HashSet<OperationId>,
    ) -> Timetable {
        let mut computing = Seconds::ZERO;
        let mut last_mean = Seconds::ZERO;
        // The last step of each tensor.
        let mut complete = vec![(usize::MAX, f64::INFINITY); graph.tensors.len()];
        for (step, id) in program.operations().iter().enumerate() {
            let operation = graph.operation(*id);
            if operation.updates.is_none() {
                computing += operation.seconds;
            }
            if means.contains(id) {
                last_mean = computing;
            }
            for tensor in operation.inputs.iter().chain(&operation.outputs) {
                complete[tensor.index()] = (step, computing.0);
            }
        }
        let at = |parameter: &usize| Some(complete[gradients[*parameter]?.index()]);
        let parameters = 0..gradients.len();
        let mut order: Vec<usize> = parameters.filter(|one| at(one).is_some()).collect();
        order.sort_by_key(|parameter| at(parameter).map(|(step, _)| step));
        let first = order.first().and_then(at);
        let begins = first.map_or(computing.0, |(_, at)| at.min(computing.0));
        Timetable {
            order,
            hides: computing - Seconds(begins.max(last_mean.0)),
        }
    }
}

/// What an exchange takes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exchanged {
    /// Bytes of gradients that a rank gives.
    pub bytes: Bytes,
    /// All-reduces of gradients.
    pub buckets: usize,
    /// What they take, one after the other.
    pub network_s: Seconds,
    /// What of that the program does not hide: the computing thread waits.
    pub waited_s: Seconds,
    /// What the computing thread takes to copy gradients to their buckets and sums back.
    pub staged_s: Seconds,
    /// Means over ranks, of synchronised batch normalisation.
    pub means: usize,
    /// What they take, with copies: all of it is waited for.
    pub means_s: Seconds,
    /// Bytes of updated parameters that ranks send each other, of a sharded optimizer.
    pub parameter_bytes: Bytes,
    /// What that takes after the updates, with copies: all of it is waited for.
    pub parameters_s: Seconds,
}

impl Exchanged {
    /// The time that it adds to the step.
    pub fn added(&self) -> Seconds {
        self.waited_s + self.staged_s + self.means_s + self.parameters_s
    }

    /// The exchange of a step that exchanges gradients and means `times` times, once for each part of its batch.
    #[must_use]
    pub fn repeated(self, times: usize) -> Exchanged {
        let seconds = times as f64;
        Exchanged {
            bytes: Bytes(self.bytes.0 * times as u64),
            buckets: self.buckets * times,
            network_s: self.network_s * seconds,
            waited_s: self.waited_s * seconds,
            staged_s: self.staged_s * seconds,
            means: self.means * times,
            means_s: self.means_s * seconds,
            ..self
        }
    }
}

impl ExchangeCost {
    /// What the exchange takes of a step whose program completes gradients by this timetable, with buckets, means over ranks
    /// and updated parameters of so many bytes on the network.
    pub fn of_step(
        &self,
        timetable: &Timetable,
        buckets: &[Bytes],
        means: &[Bytes],
        parameters: &[Bytes],
    ) -> Exchanged {
        let all_reduce = |bytes: &Bytes| self.ring.all_reduce(*bytes);
        let staged = |bytes: &Bytes| Seconds(bytes.0 as f64 * self.staged_s_per_byte);
        let mean = |bytes: &Bytes| all_reduce(bytes) + staged(bytes);
        let sent = |bytes: &Bytes| self.ring.broadcast(*bytes) + staged(bytes);
        let bytes: Bytes = buckets.iter().copied().sum();
        let network: Seconds = buckets.iter().map(all_reduce).sum();
        let last = buckets.last().map(all_reduce).unwrap_or_default();
        Exchanged {
            bytes,
            buckets: buckets.len(),
            network_s: network,
            waited_s: Seconds((network - timetable.hides).0.max(last.0)),
            staged_s: staged(&bytes),
            means: means.len(),
            means_s: means.iter().map(mean).sum(),
            parameter_bytes: parameters.iter().copied().sum(),
            parameters_s: parameters.iter().map(sent).sum(),
        }
    }
}
