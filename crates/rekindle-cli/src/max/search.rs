//! The largest size that fits, where what a size needs never falls as it grows.

use rekindle_plan::Bytes;

/// The largest size from 1 to `limit` that needs at most `room`; `None` if not even 1 does.
///
/// Sizes double until one does not fit; then the gap is narrowed by interpolation and halving in turns. A need that
/// grows about evenly takes O(log size) questions before the gap and a few inside it, any other twice as many as halving.
///
/// # Errors
/// The first that `need` returns.
pub fn largest<E>(
    limit: usize,
    room: Bytes,
    mut need: impl FnMut(usize) -> Result<Bytes, E>,
) -> Result<Option<usize>, E> {
    if limit == 0 {
        return Ok(None);
    }
    // The largest known to fit, and what it needs.
    let mut low = (1, need(1)?);
    if low.1 > room {
        return Ok(None);
    }
    let mut high = loop {
        if low.0 == limit {
            return Ok(Some(limit));
        }
        let size = low.0.saturating_mul(2).min(limit);
        let needs = need(size)?;
        if needs > room {
            break (size, needs);
        }
        low = (size, needs);
    };
    let mut halve = false;
    while high.0 - low.0 > 1 {
        let gap = high.0 - low.0;
        let share = (room.0 - low.1.0) as f64 / (high.1.0 - low.1.0) as f64;
        let step = if halve {
            gap / 2
        } else {
            (gap as f64 * share).round() as usize
        };
        halve = !halve;
        let size = low.0 + step.clamp(1, gap - 1);
        let needs = need(size)?;
        if needs > room {
            high = (size, needs);
        } else {
            low = (size, needs);
        }
    }
    Ok(Some(low.0))
}

/// Sizes that are measured before an answer is taken as it is.
const MEASUREMENTS: usize = 6;

/// The largest size whose measured need is within `room`, found from what is counted: measurements say by how much the
/// count is off, and the corrected count says which size to measure next. `None` if none of the sizes that were measured
/// fits. The answer was measured itself; that the next size does not fit is measured, or counted and corrected.
///
/// # Errors
/// The first that a need returns.
pub fn corrected<E>(
    limit: usize,
    room: Bytes,
    first: usize,
    counted: impl Fn(usize) -> Result<Bytes, E>,
    mut measured: impl FnMut(usize) -> Result<Bytes, E>,
) -> Result<Option<usize>, E> {
    // Fits, and is known not to.
    let (mut low, mut high) = (0, limit.saturating_add(1));
    let mut size = first.clamp(1, limit.max(1));
    let mut before = None;
    for _ in 0..MEASUREMENTS {
        let now = (counted(size)?, measured(size)?);
        let fits = now.1 <= room;
        if fits {
            low = size;
        } else {
            high = size;
        }
        if high - low <= 1 {
            break;
        }
        let next = largest(limit, as_counted(room, now, before), &counted)?.unwrap_or(1);
        if fits && next <= size {
            break;
        }
        before = Some(now);
        size = next.clamp(low + 1, high - 1);
    }
    Ok((low > 0).then_some(low))
}

/// What would be counted where `room` is measured, by one or two pairs of counted and measured bytes: the line through
/// both, or what is off as it is.
fn as_counted(room: Bytes, now: (Bytes, Bytes), before: Option<(Bytes, Bytes)>) -> Bytes {
    let point = |(counted, measured): (Bytes, Bytes)| (counted.0 as f64, measured.0 as f64);
    let (counted, measured) = point(now);
    let slope = before
        .map(point)
        .map_or(1.0, |before| (measured - before.1) / (counted - before.0));
    let slope = if slope.is_finite() && slope > 0.0 {
        slope
    } else {
        1.0
    };
    Bytes((counted + (room.0 as f64 - measured) / slope) as u64)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Costs that rise in different ways: evenly, in steps, ever faster, hardly.
    fn cost(kind: usize, size: usize) -> Bytes {
        let size = size as u64;
        Bytes(match kind {
            0 => 100 + 7 * size,
            1 => 64 * size.div_ceil(16),
            2 => size * size,
            3 => size.ilog2().into(),
            _ => 5,
        })
    }

    #[test]
    fn the_search_finds_what_trying_every_size_finds() {
        for kind in 0..5 {
            for limit in [0, 1, 2, 3, 50, 127] {
                for room in 0..600 {
                    let room = Bytes(room);
                    let tried = (1..=limit)
                        .take_while(|&size| cost(kind, size) <= room)
                        .last();
                    let found = largest(limit, room, |size| Ok::<_, Infallible>(cost(kind, size)));
                    assert_eq!(found, Ok(tried), "cost {kind}, limit {limit}, room {room}");
                }
            }
        }
    }

    #[test]
    fn a_need_that_grows_evenly_takes_few_questions() {
        let mut questions = 0;
        let found = largest(1 << 40, Bytes(1_000_000_007), |size| {
            questions += 1;
            Ok::<_, Infallible>(Bytes(1_000 + 13 * size as u64))
        });
        assert_eq!(found, Ok(Some((1_000_000_007 - 1_000) / 13)));
        assert!(questions < 36, "{questions}");
    }

    #[test]
    fn a_count_that_is_off_is_corrected_by_what_is_measured() {
        let truth = |size: usize| Bytes(5_000 + 130 * size as u64);
        for room in [5_000, 5_130, 6_000, 20_000, 1_000_000] {
            let room = Bytes(room);
            for per_size in [90, 130, 200] {
                let counted = |size: usize| Ok::<_, Infallible>(Bytes(per_size * size as u64));
                let first = largest(1 << 20, room, counted).ok().flatten().unwrap_or(1);
                let mut measurements = 0;
                let found = corrected(1 << 20, room, first, counted, |size| {
                    measurements += 1;
                    Ok(truth(size))
                });
                let Ok(found) = found;
                let exact = room.0.checked_sub(5_000).map(|rest| rest as usize / 130);
                match (found, exact.filter(|&size| size > 0)) {
                    (None, None) => {}
                    (Some(found), Some(exact)) => {
                        assert!(truth(found) <= room, "it fits");
                        assert!(
                            found <= exact && found + 1 + exact / 50 >= exact,
                            "{found} of {exact}"
                        );
                    }
                    other => panic!("{other:?} for {room}, counted {per_size}"),
                }
                assert!(measurements <= MEASUREMENTS);
            }
        }
    }
}
