//! Allocations and frees of each action in a run's first steps.

use maud::{Markup, html};
use rekindle_plan::Bytes;
use rekindle_train::tracker::{Blocks, TrackedMoment};

use crate::{
    table::{self, Cell, Table, several},
    track::{HEADER, line},
};

/// Actions of a step that a page has room for, and sizes of blocks of an action.
const MOST_MOMENTS: usize = 300;
const MOST_SIZES: usize = 4;

/// The section of a run that was tracked.
pub fn track(moments: &[TrackedMoment]) -> Markup {
    html! {
        h2 { "Allocations and frees" }
        p.soft { (HEADER) }
        @for step in moments.chunk_by(|a, b| a.step == b.step) {
            details {
                summary {
                    "Step " (step[0].step)
                    @if step.len() > MOST_MOMENTS { ": the " (MOST_MOMENTS) " of " (several(step.len(), "action")) " that change most" }
                }
                (table(step).html())
            }
        }
    }
}

fn bytes(blocks: &[Blocks]) -> Bytes {
    blocks.iter().map(|blocks| blocks.bytes).sum()
}

fn table(step: &[TrackedMoment]) -> Table {
    let changed = |moment: &TrackedMoment| bytes(&moment.appeared) + bytes(&moment.went);
    let mut changes: Vec<Bytes> = step.iter().map(changed).collect();
    changes.sort_unstable_by(|a, b| b.cmp(a));
    let least = changes.get(MOST_MOMENTS - 1).copied().unwrap_or_default();
    let header = ["action", "layer", "+", "allocated", "-", "freed", "in use"];
    let mut table = table::table(header, 6..7);
    for moment in step.iter().filter(|moment| changed(moment) >= least) {
        table.add_row([
            Cell::from(&moment.moment),
            Cell::text(moment.layer.clone()),
            Cell::bytes(Some(bytes(&moment.appeared)).filter(|all| !all.is_zero())),
            sizes(&moment.appeared).into(),
            Cell::bytes(Some(bytes(&moment.went)).filter(|all| !all.is_zero())),
            sizes(&moment.went).into(),
            Cell::bytes(moment.in_use_bytes),
        ]);
    }
    table
}

/// The largest blocks, in words.
fn sizes(blocks: &[Blocks]) -> String {
    let mut sizes: Vec<String> = blocks
        .iter()
        .take(MOST_SIZES)
        .map(|one| line(one).trim().to_owned())
        .collect();
    if blocks.len() > MOST_SIZES {
        sizes.push(several(blocks.len() - MOST_SIZES, "other size"));
    }
    sizes.join("; ")
}
