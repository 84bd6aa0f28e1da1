//! Finds where an outline next reads or makes something. Cost: O(1) per query, amortised over a walk.

/// Never again.
pub(super) const NEVER: u32 = u32::MAX;

/// Places in the outline, by tensor or by operation, each list with a cursor.
pub(super) struct Places {
    places: Vec<u32>,
    next: Vec<u32>,
    ends: Vec<u32>,
}

impl Places {
    pub(super) fn new(count: usize, pairs: impl Iterator<Item = (usize, u32)> + Clone) -> Places {
        let mut ends = vec![0_u32; count];
        for (index, _) in pairs.clone() {
            ends[index] += 1;
        }
        let mut total = 0;
        let mut next = Vec::with_capacity(count);
        for end in &mut ends {
            next.push(total);
            total += *end;
            *end = total;
        }
        let mut fill = next.clone();
        let mut places = vec![0; total as usize];
        for (index, place) in pairs {
            places[fill[index] as usize] = place;
            fill[index] += 1;
        }
        Places { places, next, ends }
    }

    /// The first place after `now`; `now` never falls.
    pub(super) fn after(&mut self, index: usize, now: u32) -> u32 {
        let end = self.ends[index];
        let cursor = &mut self.next[index];
        while *cursor < end && self.places[*cursor as usize] <= now {
            *cursor += 1;
        }
        if *cursor < end {
            self.places[*cursor as usize]
        } else {
            NEVER
        }
    }
}
