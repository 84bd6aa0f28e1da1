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
//! updates parameters itself waits for the oldest bucket as soon as two are under way, and updates then. The exchange adds to a
//! step what is waited for and what is staged.
//!
//! All ranks are taken to be as fast as this one. Cost: O(steps of the program).

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{Graph, Program, Rate, TensorId};
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

/// When a program hands over which gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timetable {
    /// In the program's order.
    pub handed: Vec<HandOver>,
    /// How long the whole program computes, its updates apart.
    pub computing: Seconds,
}

impl Timetable {
    /// That of these gradients, each of which is handed over after the last step that makes or reads it, or by its update.
    ///
    /// # Panics
    /// If the program was made for another graph.
    pub fn new(graph: &Graph, program: &Program, gradients: &[TensorId]) -> Timetable {
        let mut places: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for (place, tensor) in gradients.iter().enumerate() {
            places.entry(*tensor).or_default().push(place);
        }
        let mut computing = Seconds::ZERO;
        let mut last: Vec<Option<(usize, HandOver)>> = vec![None; gradients.len()];
        for (step, id) in program.operations().iter().enumerate() {
            let operation = graph.operation(*id);
            let update = operation.updates.map(|_| operation.seconds);
            if update.is_none() {
                computing += operation.seconds;
            }
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
        Timetable {
            handed: handed.collect(),
            computing: self.computing * factor,
        }
    }
}

/// What an exchange takes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exchanged {
    /// Bytes that a rank gives.
    pub bytes: Bytes,
    /// All-reduces.
    pub buckets: usize,
    /// What they take, one after the other.
    pub network_s: Seconds,
    /// What of that the program does not hide: the computing thread waits.
    pub waited_s: Seconds,
    /// What the computing thread takes to copy gradients to their buckets and sums back.
    pub staged_s: Seconds,
}

impl Exchanged {
    /// What it adds to the step.
    pub fn added(&self) -> Seconds {
        self.waited_s + self.staged_s
    }

    /// That of a step which exchanges so many times, once for each part of its batch.
    #[must_use]
    pub fn repeated(self, times: usize) -> Exchanged {
        let seconds = |one: Seconds| one * times as f64;
        Exchanged {
            bytes: Bytes(self.bytes.0 * times as u64),
            buckets: self.buckets * times,
            network_s: seconds(self.network_s),
            waited_s: seconds(self.waited_s),
            staged_s: seconds(self.staged_s),
        }
    }
}

/// The clock of the computing thread, and what is under way.
struct Clock<'a> {
    exchange: &'a ExchangeCost,
    buckets: &'a [Vec<(usize, Bytes)>],
    now: Seconds,
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

    fn stage(&mut self, bytes: Bytes, s_per_byte: f64) {
        let time = Seconds(bytes.0 as f64 * s_per_byte);
        self.taken.staged_s += time;
        self.now += time;
    }
}

impl ExchangeCost {
    /// What a step takes whose program hands over gradients by this timetable. Buckets are given in the order in which
    /// they begin: places of gradients, with their bytes on the network.
    pub fn simulate(&self, timetable: &Timetable, buckets: &[Vec<(usize, Bytes)>]) -> Exchanged {
        let mut bytes_of: HashMap<usize, (usize, Bytes)> = HashMap::new();
        for (bucket, gradients) in buckets.iter().enumerate() {
            bytes_of.extend(gradients.iter().map(|&(one, bytes)| (one, (bucket, bytes))));
        }
        let mut left: Vec<usize> = buckets.iter().map(Vec::len).collect();
        let mut clock = Clock {
            exchange: self,
            buckets,
            now: Seconds::ZERO,
            network: Seconds::ZERO,
            begun: 0,
            under_way: VecDeque::new(),
            updates: HashMap::new(),
            taken: Exchanged::default(),
        };
        let mut computed = Seconds::ZERO;
        for one in &timetable.handed {
            clock.now += one.at - computed;
            computed = one.at;
            let Some(&(bucket, bytes)) = bytes_of.get(&one.gradient) else {
                continue;
            };
            clock.stage(bytes, self.take_s_per_byte);
            left[bucket] -= 1;
            // The last waits for all else that can fail.
            while clock.begun + 1 < buckets.len() && left[clock.begun] == 0 {
                clock.begin();
            }
            if let Some(update) = one.update {
                clock.updates.insert(one.gradient, update);
                if clock.under_way.len() > 1 {
                    clock.finish();
                }
            }
        }
        clock.now += timetable.computing - computed;
        while clock.begun < buckets.len() {
            clock.begin();
        }
        while !clock.under_way.is_empty() {
            clock.finish();
        }
        clock.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Bytes = Bytes(1 << 20);

    /// Two ranks whose all-reduce of a bucket takes so long.
    fn exchange(bucket_s: f64) -> ExchangeCost {
        let link = Rate {
            latency_s: Seconds(0.0),
            bytes_per_s: BYTES.0 as f64 / bucket_s,
        };
        ExchangeCost {
            ring: Ring { ranks: 2, link },
            take_s_per_byte: 0.0,
            return_s_per_byte: 0.0,
        }
    }

    /// So many gradients, one complete after each second, after a forward pass of 3 seconds; each a bucket.
    fn step(count: usize, update: Option<Seconds>) -> (Timetable, Vec<Vec<(usize, Bytes)>>) {
        let handed = (0..count).map(|gradient| HandOver {
            gradient,
            at: Seconds(4.0 + gradient as f64),
            update,
        });
        let computing = Seconds(3.0 + count as f64);
        let timetable = Timetable {
            handed: handed.collect(),
            computing,
        };
        (
            timetable,
            (0..count).map(|one| vec![(one, BYTES)]).collect(),
        )
    }

    #[test]
    fn a_quick_network_leaves_the_last_bucket_alone_to_wait_for() {
        let (timetable, buckets) = step(5, None);
        let taken = exchange(0.75).simulate(&timetable, &buckets);
        assert_eq!(taken.waited_s, Seconds(0.75));
        assert_eq!(taken.network_s, Seconds(5.0 * 0.75));
        assert_eq!((taken.buckets, taken.bytes), (5, Bytes(5 << 20)));
    }

    #[test]
    fn a_slow_network_is_busy_from_the_first_bucket_on() {
        let (timetable, buckets) = step(5, None);
        let taken = exchange(2.5).simulate(&timetable, &buckets);
        // It begins a second after the backward pass, which lasts five.
        assert_eq!(taken.waited_s, Seconds(1.0 + 5.0 * 2.5 - 5.0));
    }

    #[test]
    fn staging_is_the_computing_threads() {
        let (timetable, buckets) = step(4, None);
        let per_byte = |seconds: f64| seconds / BYTES.0 as f64;
        let staged = ExchangeCost {
            take_s_per_byte: per_byte(0.25),
            return_s_per_byte: per_byte(0.5),
            ..exchange(1.0)
        };
        let taken = staged.simulate(&timetable, &buckets);
        assert_eq!(taken.staged_s, Seconds(4.0 * 0.75));
        // Buckets come every 1.25 seconds; the first three sums are there before the last is, and are copied back meanwhile.
        assert_eq!(taken.waited_s, Seconds(0.0));
        assert_eq!(taken.added(), Seconds(3.0));
    }

    #[test]
    fn updates_in_the_backward_pass_wait_for_all_but_one_bucket() {
        // Three seconds a bucket: the first from 4 to 7, the second to 10, waited for at 5 + 0 and after its update.
        let (timetable, buckets) = step(3, Some(Seconds(0.5)));
        let taken = exchange(3.0).simulate(&timetable, &buckets);
        // At 5 two are under way: until 7 for the first, updated until 7.5; the last is complete at 8.5. The second is there
        // at 10 and updated at 10.5, the last at 13.
        assert_eq!(taken.waited_s, Seconds(2.0 + 1.5 + 2.5));
    }

    #[test]
    fn a_ring_is_the_line_through_two_times() {
        let link = Rate {
            latency_s: Seconds(0.5),
            bytes_per_s: 1000.0,
        };
        let ring = Ring { ranks: 5, link };
        let at = |bytes| (Bytes(bytes), ring.all_reduce(Bytes(bytes)));
        let found = Ring::of_times(5, at(100), at(5000));
        assert!((found.link.latency_s.0 - 0.5).abs() < 1e-12, "{found:?}");
        assert!((found.link.bytes_per_s - 1000.0).abs() < 1e-9, "{found:?}");
        let alone = Ring { ranks: 1, link };
        assert_eq!(alone.all_reduce(Bytes(100)), Seconds::ZERO);
    }

    #[test]
    fn gradients_are_handed_over_after_their_last_use_or_by_their_update() {
        use crate::graph::{Operation, OperationId, Tensor};

        // Two layers, each a second: 0 and 1 are given, 2 and 3 activations, 4 the gradient of 3, 5 that of 2, 6 that of 1.
        let tensor = |id| Tensor {
            bytes: Bytes(8),
            given: id < 2,
            output: id == 4,
            ..Tensor::default()
        };
        let operation = |inputs: &[u32], output, backward| Operation {
            inputs: inputs.iter().map(|&id| TensorId(id)).collect(),
            outputs: vec![TensorId(output)],
            seconds: Seconds(1.0),
            backward,
            ..Operation::default()
        };
        let update = Operation {
            seconds: Seconds(0.25),
            repeatable: false,
            updates: Some(TensorId(1)),
            ..operation(&[6], 7, true)
        };
        let graph = Graph {
            tensors: (0..8).map(tensor).collect(),
            operations: vec![
                operation(&[0, 1], 2, false),
                operation(&[2], 3, false),
                operation(&[3], 4, true),
                operation(&[4], 5, true),
                operation(&[5, 2], 6, true),
                update,
            ],
            fixed_bytes: Bytes::ZERO,
        };
        // The first layer runs again after the gradient 4 was read.
        let program = [0, 1, 2, 3, 0, 4, 5].map(OperationId).to_vec();
        let program = Program::new(&graph, program).expect("whole");
        let timetable = Timetable::new(&graph, &program, &[TensorId(6), TensorId(4)]);
        let handed = |gradient, at, update| HandOver {
            gradient,
            at: Seconds(at),
            update,
        };
        let expected = Timetable {
            handed: vec![handed(1, 4.0, None), handed(0, 6.0, Some(Seconds(0.25)))],
            computing: Seconds(6.0),
        };
        assert_eq!(timetable, expected);
    }
}
