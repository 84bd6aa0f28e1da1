//! Which points no other point beats: the Pareto front of memory and time.

/// For each point of memory and time, whether no other takes at most as much of both and less of one. Points that are
/// `None` take no part. Costs O(n^2) for the few dozen points of a sweep.
pub fn front(points: &[Option<(u64, f64)>]) -> Vec<bool> {
    let beats = |a: (u64, f64), b: (u64, f64)| a.0 <= b.0 && a.1 <= b.1 && a != b;
    points
        .iter()
        .map(|point| {
            point.is_some_and(|point| !points.iter().flatten().any(|&other| beats(other, point)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_on_the_front_unless_another_is_as_small_and_as_fast() {
        let points = [
            Some((100, 1.0)), // the fastest
            Some((50, 1.2)),
            Some((50, 1.3)), // as small as the one before, and slower
            None,            // did not run
            Some((60, 1.2)), // as fast as the second, and larger
            Some((20, 2.0)), // the smallest
            Some((20, 2.0)), // its equal
        ];
        assert_eq!(
            front(&points),
            [true, true, false, false, false, true, true]
        );
    }

    /// On a grid of all points with small coordinates the front is what lies on the least sum of a monotone staircase:
    /// here checked against the definition that along rising memory the time falls strictly.
    #[test]
    fn along_the_front_time_falls_as_memory_rises() {
        for seed in 0..500u64 {
            let value = |index: u64, salt: u64| {
                (seed * 7919 + index * 104_729 + salt * 1_299_709) % 1_000 * 37 % 23
            };
            let points: Vec<_> = (0..9)
                .map(|index| Some((value(index, 1), value(index, 2) as f64)))
                .collect();
            let marks = front(&points);
            let mut kept: Vec<(u64, f64)> = points
                .iter()
                .zip(&marks)
                .filter(|(_, mark)| **mark)
                .filter_map(|(point, _)| *point)
                .collect();
            kept.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            kept.dedup();
            assert!(!kept.is_empty());
            assert!(
                kept.windows(2)
                    .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1)
            );
            // Whatever is not marked is beaten by something that is.
            for (point, mark) in points.iter().flatten().zip(&marks) {
                assert!(*mark || kept.iter().any(|by| by.0 <= point.0 && by.1 <= point.1));
            }
        }
    }
}
