//! The page of a sweep.

use maud::html;

use super::{figure, page};
use crate::{
    failure::Failure,
    plot,
    started::Started,
    sweep::{SweepRecord, table::MARK},
};

/// The page.
pub fn sweep(record: &SweepRecord, started: Option<&Started>) -> Result<String, Failure> {
    let body = html! {
        p.soft { (record.heading()) }
        @if record.interrupted {
            p.bad { "This sweep is not finished: " (record.rows.len()) " of " (record.rows_asked) " rows are done." }
        }
        h2 { "Frontier" }
        (figure(plot::frontier::picture(record), "no run of this sweep succeeded")?)
        h2 { "Runs" }
        (record.table().html())
        p.soft { (MARK) }
        @for message in record.messages() { p { (message) } }
    };
    Ok(page(&format!("Sweep of {}", record.config), started, &body))
}
