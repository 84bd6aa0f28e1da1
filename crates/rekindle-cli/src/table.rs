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

/// Two characters between columns, none at the edges: for tables of many columns.
pub fn tight(table: &mut Table) {
    for column in 0..table.column_count() {
        if let Some(column) = table.column_mut(column) {
            column.set_padding((0, 2));
        }
    }
}
