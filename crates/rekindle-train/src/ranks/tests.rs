//! Ranks that are threads.

use std::thread;

use rekindle::reduce::in_process;

use super::*;

/// What each of three ranks comes to, the last of which is asked to stop.
fn told(own: fn(usize) -> Result<Tally, RunError>) -> Vec<(Result<Tally, RunError>, Ranks)> {
    let ranks = in_process(3).into_iter().map(|reducer| {
        thread::spawn(move || {
            let rank = reducer.rank();
            let asked: fn() -> bool = if rank == 2 { || true } else { || false };
            let ranks = Ranks::new(reducer, asked);
            let told = ranks.tell(own(rank), || Bytes(rank as u64));
            (told, ranks)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let ended = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
    ended.collect()
}

#[test]
fn ranks_add_up_what_they_came_to_and_stop_together() {
    let own = |rank| {
        Ok(Tally {
            samples: rank,
            predictions: 2 * rank,
            // A rank without samples counts nothing.
            correct: (rank > 0).then_some(rank as i64),
            loss: 0.5 * rank as f64,
        })
    };
    let all = Tally {
        samples: 3,
        predictions: 6,
        correct: Some(3),
        loss: 1.5,
    };
    for (told, ranks) in told(own) {
        assert_eq!(told, Ok(all));
        assert!(ranks.stops(false));
        let peaks = ranks
            .records()
            .into_iter()
            .map(|one| one.measured_peak_bytes);
        assert!(peaks.eq([0, 1, 2].map(Bytes)));
    }
    let alone = Ranks::default();
    assert_eq!(alone.tell(Ok(all), || Bytes(1)), Ok(all));
    assert!(alone.stops(true) && !alone.stops(false) && alone.records().is_empty());
}

#[test]
fn a_rank_that_fails_has_all_fail() {
    let device = || RunError::from(RecordError::Device("gone".into()));
    let own = |rank| match rank {
        1 => Err(RunError::from(RecordError::Device("gone".into()))),
        _ => Ok(Tally::default()),
    };
    let told: Vec<_> = told(own).into_iter().map(|(told, _)| told).collect();
    let other = || Err(RunError::OtherRank);
    assert_eq!(told, [other(), Err(device()), other()]);
}
