//! The search for the largest size that fits.

use std::convert::Infallible;

use rekindle_train::fit::{Bounds, largest};

/// Costs that rise in different ways: evenly, in steps, ever faster, hardly, not at all.
fn cost(kind: usize, size: usize) -> usize {
    match kind {
        0 => 100 + 7 * size,
        1 => 64 * size.div_ceil(16),
        2 => size * size,
        3 => size.ilog2() as usize,
        _ => 5,
    }
}

#[test]
fn the_search_finds_what_trying_every_size_finds() {
    for kind in 0..5 {
        for limit in [0, 1, 2, 3, 50, 127] {
            for room in 0..600 {
                let tried = (1..=limit)
                    .take_while(|&size| cost(kind, size) <= room)
                    .last();
                for (first, factor) in [(1, 2.0), (20, 1.1), (500, 2.0)] {
                    let fits = |size| Ok::<_, Infallible>(cost(kind, size) <= room);
                    let Ok(found) = largest(limit, first, (factor, 0.0), |_| true, fits);
                    let found = Some(found.fits).filter(|fits| *fits > 0);
                    assert_eq!(found, tried, "cost {kind}, limit {limit}, room {room}");
                }
            }
        }
    }
}

#[test]
fn a_good_first_guess_takes_few_questions() {
    let exact = (1_000_000_007 - 1_000) / 13;
    for (off, most) in [(1.0, 8), (0.8, 10), (1.3, 12)] {
        let mut questions = 0;
        let first = (exact as f64 * off) as usize;
        let Ok(found) = largest(
            1 << 40,
            first,
            (1.1, 0.01),
            |_| true,
            |size| {
                questions += 1;
                Ok::<_, Infallible>(1_000 + 13 * size <= 1_000_000_007)
            },
        );
        let found = found.fits;
        assert!(found <= exact && found as f64 >= exact as f64 * 0.99);
        assert!(questions <= most, "{questions} from {off}");
    }
}

/// Whatever the time: each question may be the last.
#[test]
fn a_search_that_ends_early_keeps_what_it_found() {
    let fits = |size| Ok::<_, Infallible>(size <= 700);
    for allowed in 0..12 {
        let mut left = allowed;
        let mut told: Vec<Bounds> = Vec::new();
        let go_on = |bounds: &Bounds| {
            told.push(*bounds);
            left -= 1;
            left >= 0
        };
        let Ok(found) = largest(10_000, 1, (1.5, 0.0), go_on, fits);
        assert!(!found.complete, "{found:?}");
        assert!(found.fits <= 700 && 700 < found.below, "{found:?}");
        assert_eq!(told.len(), allowed as usize + 1);
        // Bounds only come closer.
        assert!(
            told.is_sorted_by(|a, b| a.fits <= b.fits && a.below >= b.below),
            "{told:?}"
        );
        assert_eq!(told.last().map(|last| last.fits), Some(found.fits));
    }
    let Ok(found) = largest(10_000, 1, (1.5, 0.0), |_| true, fits);
    assert_eq!((found.fits, found.below, found.complete), (700, 701, true));
}
