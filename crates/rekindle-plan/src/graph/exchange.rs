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
//! [`ExchangeCost::of_step`] is what the exchange takes of a step. The program passes on each gradient when it is
//! complete ([`Timetable`]). The computing thread copies it to its bucket (*staging*), and begins a bucket when that
//! bucket and all earlier ones are full; the last one begins after the program. Meanwhile the network, driven by a
//! separate thread, sums one bucket after another, so it is done with bucket j at
//!
//! ```text
//! done(j) = max( done(j - 1), full(j) ) + all_reduce(bytes of j)
//! ```
//!
//! At the end the computing thread waits for each bucket in turn and copies its sums back. A program that updates
//! parameters itself does so as buckets come back: all updates but those of the last bucket hide the network, too.
//!
//! The program waits for each mean over ranks at once, and buckets begin after the last mean. Ranks that divide the
//! updates send each parameter to all others after all are updated, one after another. The time that the exchange adds
//! to a step is the waiting for buckets, the staging, the means, and the sending of parameters.
//!
//! All ranks are assumed to be as fast as this one. Cost: O(steps of the program).

use std::collections::HashMap;

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
    ///
    /// ```
    /// use rekindle_plan::graph::{Rate, Ring};
    /// use rekindle_plan::{Bytes, Seconds};
    ///
    /// let link = Rate { latency_s: Seconds(1.0), bytes_per_s: 100.0 };
    /// // Six rounds of a second and 50 bytes each.
    /// assert_eq!(Ring { ranks: 4, link }.all_reduce(Bytes(200)), Seconds(6.0 * 1.5));
    /// ```
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
    /// The measured rate of one rank sending to all others; if `None`, it is computed from the ring.
    pub broadcast: Option<Rate>,
    /// Seconds for the computing thread to copy a byte to its bucket.
    pub take_s_per_byte: f64,
    /// Seconds to copy a summed byte back.
    pub return_s_per_byte: f64,
}

/// The point at which a program completes a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HandOver {
    /// Its index among the requested gradients.
    pub gradient: usize,
    /// Computing time of the program before this point, without updates.
    pub at: Seconds,
    /// The time of its update, if the program makes it.
    pub update: Option<Seconds>,
}

/// The point at which a program computes a mean over ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TakeMean {
    /// Computing time of the program before this point.
    pub at: Seconds,
    /// Bytes that each rank contributes.
    pub bytes: Bytes,
}

/// When a program completes each gradient, and computes means over ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timetable {
    /// In the program's order.
    pub handed: Vec<HandOver>,
    /// In the program's order.
    pub means: Vec<TakeMean>,
    /// Computing time of the whole program, without updates.
    pub computing: Seconds,
}

impl Timetable {
    /// The timetable of these gradients, each complete after the last step that makes or reads it, or at its update;
    /// and of these operations, each a mean over ranks of the given number of bytes.
    ///
    /// # Panics
    /// If the program was made for another graph.
    pub fn new(
        graph: &Graph,
        program: &Program,
        gradients: &[TensorId],
        means: &HashMap<OperationId, Bytes>,
    ) -> Timetable {
        let mut places: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for (place, tensor) in gradients.iter().enumerate() {
            places.entry(*tensor).or_default().push(place);
        }
        let mut computing = Seconds::ZERO;
        let mut last: Vec<Option<(usize, HandOver)>> = vec![None; gradients.len()];
        let mut taken = Vec::with_capacity(means.len());
        for (step, id) in program.operations().iter().enumerate() {
            let operation = graph.operation(*id);
            let update = operation.updates.map(|_| operation.seconds);
            if update.is_none() {
                computing += operation.seconds;
            }
            taken.extend(means.get(id).map(|&bytes| TakeMean {
                at: computing,
                bytes,
            }));
            let tensors = operation.inputs.iter().chain(&operation.outputs);
            for &gradient in tensors.filter_map(|tensor| places.get(tensor)).flatten() {
                let updated = last[gradient].is_some_and(|(_, one)| one.update.is_some());
                if update.is_some() || !updated {
                    let at = computing;
                    last[gradient] = Some((
                        step,
                        HandOver {
                            gradient,
                            at,
                            update,
                        },
                    ));
                }
            }
        }
        let mut handed: Vec<_> = last.into_iter().flatten().collect();
        handed.sort_by_key(|(step, _)| *step);
        Timetable {
            handed: handed.into_iter().map(|(_, one)| one).collect(),
            means: taken,
            computing,
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
        let seconds = |one: Seconds| one * times as f64;
        Exchanged {
            bytes: Bytes(self.bytes.0 * times as u64),
            buckets: self.buckets * times,
            network_s: seconds(self.network_s),
            waited_s: seconds(self.waited_s),
            staged_s: seconds(self.staged_s),
            means: self.means * times,
            means_s: seconds(self.means_s),
            ..self
        }
    }
}

impl ExchangeCost {
    /// What the exchange takes of a step whose program completes gradients by this timetable. Buckets are given in the
    /// order in which they begin, each with the indices of its gradients and their bytes on the network. `parameters`
    /// are the bytes of the updated parameters that ranks exchange.
    pub fn of_step(
        &self,
        timetable: &Timetable,
        buckets: &[Vec<(usize, Bytes)>],
        parameters: impl IntoIterator<Item = Bytes>,
    ) -> Exchanged {
        let mut bucket_of: HashMap<usize, (usize, Bytes)> = HashMap::new();
        for (bucket, gradients) in buckets.iter().enumerate() {
            bucket_of.extend(gradients.iter().map(|&(one, bytes)| (one, (bucket, bytes))));
        }
        let copying = |bytes: Bytes, s_per_byte: f64| Seconds(bytes.0 as f64 * s_per_byte);
        let mut taken = Exchanged::default();
        let mut means = timetable.means.iter().peekable();
        // When the last mean is there, and when each bucket is full.
        let mut free = Seconds::ZERO;
        let mut full = vec![Seconds::ZERO; buckets.len()];
        let mut updates = Seconds::ZERO;
        let mut mean = |taken: &mut Exchanged, mean: &TakeMean| {
            taken.means += 1;
            taken.means_s += self.ring.all_reduce(mean.bytes) + self.staged(mean.bytes);
            free = mean.at + taken.staged_s + taken.means_s;
        };
        for one in &timetable.handed {
            while let Some(next) = means.next_if(|next| next.at <= one.at) {
                mean(&mut taken, next);
            }
            let Some(&(bucket, bytes)) = bucket_of.get(&one.gradient) else {
                continue;
            };
            taken.staged_s += copying(bytes, self.take_s_per_byte);
            full[bucket] = one.at + taken.staged_s + taken.means_s;
            if bucket + 1 < buckets.len() {
                updates += one.update.unwrap_or_default();
            }
        }
        means.for_each(|next| mean(&mut taken, next));
        let mut now = timetable.computing + taken.staged_s + taken.means_s;
        if let Some(last) = full.last_mut() {
            *last = now;
        }
        now += updates;
        let mut network = Seconds::ZERO;
        for (bucket, full) in buckets.iter().zip(full) {
            let bytes: Bytes = bucket.iter().map(|one| one.1).sum();
            let time = self.ring.all_reduce(bytes);
            network = Seconds(network.0.max(full.0).max(free.0)) + time;
            let waited = Seconds((network - now).0.max(0.0));
            let back = copying(bytes, self.return_s_per_byte);
            now += waited + back;
            taken.bytes += bytes;
            taken.buckets += 1;
            taken.network_s += time;
            taken.waited_s += waited;
            taken.staged_s += back;
        }
        for bytes in parameters {
            taken.parameter_bytes += bytes;
            taken.parameters_s += self.broadcast(bytes) + self.staged(bytes);
        }
        taken
    }

    /// The time for one rank to send this many bytes to all others.
    fn broadcast(&self, bytes: Bytes) -> Seconds {
        match self.broadcast {
            Some(line) => line.seconds(bytes),
            None => self.ring.broadcast(bytes),
        }
    }

    /// The time to copy this many bytes to buckets and back.
    fn staged(&self, bytes: Bytes) -> Seconds {
        Seconds(bytes.0 as f64 * (self.take_s_per_byte + self.return_s_per_byte))
    }
}

#[cfg(test)]
mod tests;
