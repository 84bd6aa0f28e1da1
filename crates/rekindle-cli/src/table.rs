//! Tables for people: no lines, numbers to the right.

use std::ops::Range;

use comfy_table::{CellAlignment, Table, presets::NOTHING};

/// An empty table with this header; the columns in `numbers` are aligned to the right.
pub fn table<const N: usize>(header: [&str; N], numbers: Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header);
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
