//! Rows of times, and the one operation on them that takes all the time.
//!
//! Rows are taken in lanes of [`LANES`] times, without a remainder: each row carries so many more times than it needs,
//! and an operation may reach a little further than it was asked to. All it writes there is true as well.

use pulp::Simd;

use super::outline::Outline;
use super::time::Time;

/// Times that are taken together: a whole number of vectors on every machine.
const LANES: usize = 16;

/// The row of a window: infinite below the first feasible slot, `times` from there, and the least time from where it is
/// saturated.
#[derive(Clone, Copy)]
pub(super) struct Row<'a, T> {
    pub(super) outline: &'a Outline<T>,
    /// The falling times and, after them, [`LANES`] times more.
    pub(super) times: &'a [T],
}

/// The times of a row about which nothing is known but where it ends.
pub(super) fn unknown_times<T: Time>(outline: &Outline<T>) -> Vec<T> {
    let mut times = vec![T::INFINITY; outline.falling() + LANES];
    times[outline.falling()..].fill(outline.least);
    times
}

impl<'a, T: Time> Row<'a, T> {
    pub(super) fn at(&self, slot: usize) -> T {
        if slot < self.outline.first() {
            T::INFINITY
        } else {
            let index = slot - self.outline.first();
            self.times.get(index).copied().unwrap_or(self.outline.least)
        }
    }

    /// The times from `slot` on, and how many of them fall.
    #[inline(always)]
    fn from(&self, slot: usize) -> (&'a [T], usize) {
        let index = (slot - self.outline.first()).min(self.outline.falling());
        (&self.times[index..], self.outline.falling() - index)
    }
}

/// `times[i] = min(times[i], time + row(slot + i))`. The row is feasible from `slot` on.
pub(super) fn relax<T: Time>(times: &mut [T], time: T, (row, slot): (Row<'_, T>, usize)) {
    let (row_times, falling) = row.from(slot);
    let falling = falling.min(times.len());
    for (best, &row) in times.iter_mut().zip(&row_times[..falling]) {
        *best = best.least(time + row);
    }
    relax_constant(&mut times[falling..], time + row.outline.least);
}

/// `times[i] = min(times[i], time + right(slot + i) + left(slot + i))` for i below `count`, each row with its own slot, in
/// pieces in which each row falls or is constant. Both rows are feasible from their slots on.
#[inline(always)]
pub(super) fn relax_both<T: Time, S: Simd>(
    simd: S,
    (times, count): (&mut [T], usize),
    time: T,
    (right, right_slot): (Row<'_, T>, usize),
    (left, left_slot): (Row<'_, T>, usize),
) {
    let (right_times, right_falling) = right.from(right_slot);
    let (left_times, left_falling) = left.from(left_slot);
    let both = whole_lanes(right_falling.min(left_falling).min(count));
    let either = whole_lanes(right_falling.max(left_falling).min(count));
    let rows = (&right_times[..both], &left_times[..both]);
    T::relax_sums(simd, &mut times[..both], time, rows);
    if either > both {
        let (constant, falling) = if right_falling > left_falling {
            (time + left.outline.least, right_times)
        } else {
            (time + right.outline.least, left_times)
        };
        T::relax_row(
            simd,
            &mut times[both..either],
            constant,
            &falling[both..either],
        );
    }
    if count > either {
        let constant = time + right.outline.least + left.outline.least;
        relax_constant(&mut times[either..count], constant);
    }
}

/// `times[i] = min(times[i], constant)`.
#[inline(always)]
pub(super) fn relax_constant<T: Time>(times: &mut [T], constant: T) {
    for best in times {
        *best = best.least(constant);
    }
}

fn whole_lanes(count: usize) -> usize {
    count.next_multiple_of(LANES)
}
