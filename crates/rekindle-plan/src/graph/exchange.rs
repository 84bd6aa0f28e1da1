//! The time of an exchange: gradients summed over ranks while the rest of a program runs.
//!
//! A ring of n ranks sums b bytes in 2 (n - 1) rounds, in each of which every rank sends one n-th of the bytes to its
//! neighbour:
//!
//! ```text
//! all_reduce(b) = 2 (n - 1) latency + 2 (n - 1)/n b / rate
//! ```
//!
//! (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005, without the time of the additions.)
//!
//! [`ExchangeCost::simulate`] follows a step as it runs. The program hands over each gradient where it is complete
//! ([`Timetable`]). The computing thread copies it to its bucket, which is *staging*, and begins a bucket once that and all
//! before it are full; the last begins after the program. The network, driven by a thread of its own, sums one bucket after the
//! other meanwhile. At the end the computing thread waits for each bucket in turn and copies its sums back. A program that
//! updates parameters itself waits for the oldest bucket as soon as two are under way, and updates then.
//!
//! Means over ranks, which a program takes of what it computes, are waited for where they are, and buckets begin after the last
//! of them. Ranks that share out the updates send each parameter to all others when all are updated, one after the other. The
//! exchange adds to a step what is waited for, what is staged, and all of these.
//!
//! All ranks are taken to be as fast as this one. Cost: O(steps of the program).

use std::collections::{HashMap, VecDeque};

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
    /// What it takes to sum so many bytes of each rank.
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

    /// What it takes one rank to send so many bytes to all others: down a binomial tree, or in n parts, which the ranks then
    /// gather around the ring, whichever is quicker (Thakur, Rabenseifner and Gropp 2005, section 4.3):
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

    /// The ring that sums the smaller and the larger of two sizes in these times.
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

/// What an exchange takes of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeCost {
    /// The network.
    pub ring: Ring,
    /// One rank sends to all others, where that was measured; else it takes as long as the ring says.
    pub broadcast: Option<Rate>,
    /// What the computing thread takes to copy a byte to its bucket.
    pub take_s_per_byte: f64,
    /// What it takes to copy a summed byte back.
    pub return_s_per_byte: f64,
}

/// Where a program hands a gradient over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HandOver {
    /// Its place among those that were asked for.
    pub gradient: usize,
    /// How long the program computes before, its updates apart.
    pub at: Seconds,
    /// What the update takes that it is for, where the program makes it.
    pub update: Option<Seconds>,
}

/// Where a program takes a mean over ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TakeMean {
    /// How long the program computes before.
    pub at: Seconds,
    /// Bytes that each rank gives.
    pub bytes: Bytes,
}

/// When a program hands over which gradient, and takes means over ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timetable {
    /// In the program's order.
    pub handed: Vec<HandOver>,
    /// In the program's order.
    pub means: Vec<TakeMean>,
    /// How long the whole program computes, its updates apart.
    pub computing: Seconds,
}

impl Timetable {
    /// That of these gradients, each of which is handed over after the last step that makes or reads it, or by its update;
    /// and of these operations, each of which is a mean over ranks of so many bytes.
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

    /// The same on a machine that takes so many times as long.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Timetable {
        let handed = self.handed.iter().map(|one| HandOver {
            at: one.at * factor,
            update: one.update.map(|update| update * factor),
            ..*one
        });
        let means = self.means.iter().map(|one| TakeMean {
            at: one.at * factor,
            ..*one
        });
        Timetable {
            handed: handed.collect(),
            means: means.collect(),
            computing: self.computing * factor,
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
    /// What it adds to the step.
    pub fn added(&self) -> Seconds {
        self.waited_s + self.staged_s + self.means_s + self.parameters_s
    }

    /// That of a step which exchanges gradients and means so many times, once for each part of its batch.
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

/// The clock of the computing thread, and what is under way.
struct Clock<'a> {
    exchange: &'a ExchangeCost,
    buckets: &'a [Vec<(usize, Bytes)>],
    /// Gradients that each of them still waits for.
    left: Vec<usize>,
    now: Seconds,
    /// How long the program has computed.
    computed: Seconds,
    /// When the network is done with all that has begun.
    network: Seconds,
    begun: usize,
    /// Buckets, and when they are done.
    under_way: VecDeque<(usize, Seconds)>,
    /// What the update of each gradient takes.
    updates: HashMap<usize, Seconds>,
    taken: Exchanged,
}

impl Clock<'_> {
    /// Has the program compute until it has done so for so long.
    fn compute(&mut self, until: Seconds) {
        self.now += until - self.computed;
        self.computed = until;
    }

    fn begin(&mut self) {
        let bytes: Bytes = self.buckets[self.begun].iter().map(|one| one.1).sum();
        let time = self.exchange.ring.all_reduce(bytes);
        self.network = Seconds(self.network.0.max(self.now.0)) + time;
        self.under_way.push_back((self.begun, self.network));
        self.begun += 1;
        self.taken.bytes += bytes;
        self.taken.buckets += 1;
        self.taken.network_s += time;
    }

    /// Begins buckets that are full.
    fn begin_ready(&mut self) {
        // The last waits for all else that can fail.
        while self.begun + 1 < self.buckets.len() && self.left[self.begun] == 0 {
            self.begin();
        }
    }

    /// Waits for the oldest bucket.
    fn finish(&mut self) {
        let Some((bucket, done)) = self.under_way.pop_front() else {
            return;
        };
        let waited = Seconds((done - self.now).0.max(0.0));
        self.taken.waited_s += waited;
        self.now += waited;
        for (gradient, bytes) in &self.buckets[bucket] {
            self.stage(*bytes, self.exchange.return_s_per_byte);
            self.now += self.updates.remove(gradient).unwrap_or_default();
        }
    }

    /// Computes until a mean over ranks, and waits for it.
    fn mean(&mut self, mean: TakeMean) {
        self.compute(mean.at);
        let time = self.exchange.ring.all_reduce(mean.bytes) + self.exchange.staged(mean.bytes);
        self.now += time;
        self.taken.means += 1;
        self.taken.means_s += time;
    }

    fn stage(&mut self, bytes: Bytes, s_per_byte: f64) {
        let time = Seconds(bytes.0 as f64 * s_per_byte);
        self.taken.staged_s += time;
        self.now += time;
    }
}

impl ExchangeCost {
    /// What a step takes whose program hands over gradients by this timetable. Buckets are given in the order in which
    /// they begin: places of gradients, with their bytes on the network. `parameters` are the bytes of those that ranks send
    /// each other once they are updated.
    pub fn simulate(
        &self,
        timetable: &Timetable,
        buckets: &[Vec<(usize, Bytes)>],
        parameters: impl IntoIterator<Item = Bytes>,
    ) -> Exchanged {
        let mut bytes_of: HashMap<usize, (usize, Bytes)> = HashMap::new();
        for (bucket, gradients) in buckets.iter().enumerate() {
            bytes_of.extend(gradients.iter().map(|&(one, bytes)| (one, (bucket, bytes))));
        }
        let mut clock = Clock {
            exchange: self,
            buckets,
            left: buckets.iter().map(Vec::len).collect(),
            now: Seconds::ZERO,
            computed: Seconds::ZERO,
            network: Seconds::ZERO,
            begun: 0,
            under_way: VecDeque::new(),
            updates: HashMap::new(),
            taken: Exchanged::default(),
        };
        let mut means = timetable.means.iter().copied().peekable();
        for one in &timetable.handed {
            while let Some(mean) = means.next_if(|mean| mean.at <= one.at) {
                clock.mean(mean);
                if means.peek().is_none() {
                    clock.begin_ready();
                }
            }
            clock.compute(one.at);
            let Some(&(bucket, bytes)) = bytes_of.get(&one.gradient) else {
                continue;
            };
            clock.stage(bytes, self.take_s_per_byte);
            clock.left[bucket] -= 1;
            if means.peek().is_none() {
                clock.begin_ready();
            }
            if let Some(update) = one.update {
                clock.updates.insert(one.gradient, update);
                if clock.under_way.len() > 1 {
                    clock.finish();
                }
            }
        }
        means.for_each(|mean| clock.mean(mean));
        clock.begin_ready();
        clock.compute(timetable.computing);
        while clock.begun < buckets.len() {
            clock.begin();
        }
        while !clock.under_way.is_empty() {
            clock.finish();
        }
        for bytes in parameters {
            clock.taken.parameter_bytes += bytes;
            clock.taken.parameters_s += self.broadcast(bytes) + self.staged(bytes);
        }
        clock.taken
    }

    /// What it takes one rank to send so many bytes to all others.
    fn broadcast(&self, bytes: Bytes) -> Seconds {
        match self.broadcast {
            Some(line) => line.seconds(bytes),
            None => self.ring.broadcast(bytes),
        }
    }

    /// What it takes to copy so many bytes to the network and from it.
    fn staged(&self, bytes: Bytes) -> Seconds {
        Seconds(bytes.0 as f64 * (self.take_s_per_byte + self.return_s_per_byte))
    }
}

#[cfg(test)]
mod tests;
