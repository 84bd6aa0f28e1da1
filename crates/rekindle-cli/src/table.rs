//! Tables for people: no lines, numbers to the right.

use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};

/// An empty table with this header; the columns in `numbers` are aligned to the right.
pub fn table<const N: usize>(header: [&str; N], numbers: Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    // Cells wrap where a terminal is narrower; a pipe has no width.
    table.set_content_arrangement(ContentArrangement::Dynamic);
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

/// A table, and a word where the terminal is narrower than it.
pub fn shown(table: &Table) -> String {
    let mut unbounded = table.clone();
    unbounded.set_content_arrangement(ContentArrangement::Disabled);
    let lines = unbounded.lines();
    let needs = lines.map(|line| line.chars().count()).max().unwrap_or(0);
    match table.width() {
        Some(width) if needs > usize::from(width) => format!(
            "{table}\n(this table is {needs} columns wide, the terminal {width}: cells are wrapped)"
        ),
        _ => table.to_string(),
    }
}
