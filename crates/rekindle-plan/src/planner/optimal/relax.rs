//! Rows of times, and the one operation on them that takes all the time.

use pulp::Arch;

use super::outline::Outline;
use super::time::Time;

/// The row of a window: infinite below the first feasible slot, `times` from there, and the least time from where it is
/// saturated.
#[derive(Clone, Copy)]
pub(super) struct Row<'a, T> {
    pub(super) outline: &'a Outline<T>,
    pub(super) times: &'a [T],
}

impl<T: Time> Row<'_, T> {
    pub(super) fn at(&self, slot: usize) -> T {
        if slot < self.outline.first() {
            T::INFINITY
        } else {
            let index = slot - self.outline.first();
            self.times.get(index).copied().unwrap_or(self.outline.least)
        }
    }

    /// The times from `slot` on, before they are constant.
    fn from(&self, slot: usize) -> &[T] {
        &self.times[(slot - self.outline.first()).min(self.times.len())..]
    }
}

/// `times[i] = min(times[i], time + row(start + i - shift))`. The row is feasible from `start` on.
pub(super) fn relax<T: Time>(
    times: &mut [T],
    start: usize,
    time: T,
    (row, shift): (Row<'_, T>, usize),
) {
    let from = row.from(start - shift);
    Arch::new().dispatch(
        #[inline(always)]
        || least_of_row(times, time, from, row.outline.least),
    );
}

/// `times[i] = min(times[i], time + right(start + i - shift) + left(start + i - grads))`, in pieces in which each row
/// is an array or constant. Both rows are feasible from `start` on.
#[inline(always)]
pub(super) fn relax_both<T: Time>(
    times: &mut [T],
    start: usize,
    time: T,
    (right, shift): (Row<'_, T>, usize),
    (left, grads): (Row<'_, T>, usize),
) {
    let right_times = right.from(start - shift);
    let left_times = left.from(start - grads);
    let both = right_times.len().min(left_times.len()).min(times.len());
    let (falling, rest) = times.split_at_mut(both);
    let rows = right_times[..both].iter().zip(&left_times[..both]);
    for (best, (&right, &left)) in falling.iter_mut().zip(rows) {
        *best = best.least(time + right + left);
    }
    if right_times.len() > both {
        let constant = time + left.outline.least;
        least_of_row(rest, constant, &right_times[both..], right.outline.least);
    } else {
        let constant = time + right.outline.least;
        least_of_row(rest, constant, &left_times[both..], left.outline.least);
    }
}

#[inline(always)]
fn least_of_row<T: Time>(times: &mut [T], time: T, row: &[T], afterwards: T) {
    let falling = row.len().min(times.len());
    let (times, rest) = times.split_at_mut(falling);
    for (best, &row) in times.iter_mut().zip(row) {
        *best = best.least(time + row);
    }
    relax_constant(rest, time + afterwards);
}

#[inline(always)]
pub(super) fn relax_constant<T: Time>(times: &mut [T], constant: T) {
    for best in times {
        *best = best.least(constant);
    }
}
