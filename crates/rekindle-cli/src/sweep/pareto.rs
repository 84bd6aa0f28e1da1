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
}
