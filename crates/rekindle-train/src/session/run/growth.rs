//! Whether memory in use grows with the steps, and which phase it stays behind from.

use rekindle_plan::Bytes;

use crate::record::MemoryGrowth;
use rekindle::meter::{Leftovers, Meter};

/// Growth that is worth a look: tables and threads' scratch come and go by so much.
const NOTICED: Bytes = Bytes(64 << 10);

/// Watches what is in use after each step.
pub(super) struct GrowthWatch {
    /// Steps until all is there that is made once.
    settles: usize,
    /// What is in use then, and beyond what a look is due.
    due: Option<(Bytes, Bytes)>,
    look: Option<Leftovers>,
    /// What the last look found, if anything.
    pub(super) found: Option<MemoryGrowth>,
}

impl GrowthWatch {
    /// Takes what is in use after so many steps for what should be in use after all later ones.
    pub(super) fn new(settles: usize) -> Self {
        Self {
            settles,
            due: None,
            look: None,
            found: None,
        }
    }

    /// A step is over. Whether a look was finished that found something.
    pub(super) fn stepped(&mut self, step: usize, meter: &dyn Meter) -> bool {
        if let Some(look) = &mut self.look {
            let Some(left) = look.stepped() else {
                return false;
            };
            self.look = None;
            self.found = (!left.is_empty()).then_some(MemoryGrowth {
                last_step: step,
                left,
            });
            return self.found.is_some();
        }
        let memory = meter.read();
        let in_use = memory.in_use_bytes;
        match self.due {
            None if self.settles > 1 => self.settles -= 1,
            None => self.due = Some((in_use, in_use + NOTICED)),
            // Buffers of pools are not told apart.
            Some((settled, due)) if in_use > due && memory.reserved_bytes.is_none() => {
                self.due = Some((settled, in_use + (in_use - settled)));
                self.look = Leftovers::start().ok();
            }
            Some(_) => {}
        }
        false
    }
}
