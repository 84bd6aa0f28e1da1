//! `rekindle plan --explain`: what a plan's peak is made of, and how often stages run.

use rekindle_train::session::Planned;

use crate::table::{self, Cell, Table};

/// The parts of the peak in bytes.
pub(super) fn peak(plan: &Planned) -> Table {
    let (action, parts) = plan.at_peak();
    let title = format!("at the peak, `{action}`");
    let mut table = table::table([title.as_str(), "bytes"], 1..2);
    for (part, bytes) in [
        ("parameters, data, optimizer state", parts.fixed),
        ("kept activations", parts.activations),
        ("live segment", parts.graphs),
        ("gradients of activations", parts.gradients),
        ("gradients of parameters", parts.parameter_gradients),
        ("temporaries of the action", parts.temporary),
    ] {
        table.add_row([Cell::from(part), Cell::bytes(bytes)]);
    }
    table
}

/// How many stages run forward how often.
pub(super) fn forwards(plan: &Planned) -> Table {
    let mut table = table::table(["forwards", "stages"], 0..2);
    let forwards = &plan.staged.forwards;
    let most = forwards.iter().max().copied().unwrap_or_default();
    for times in 1..=most {
        let stages = forwards.iter().filter(|&&count| count == times).count();
        if stages > 0 {
            table.add_row([Cell::from(times), stages.into()]);
        }
    }
    table
}
