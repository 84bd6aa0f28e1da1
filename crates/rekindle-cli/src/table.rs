//! Tables for people: no lines, numbers to the right.

use std::{fmt::Write, ops::Range};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets::NOTHING};

use crate::terminal;

/// An empty table with this header; the columns in `numbers` are aligned to the right.
pub fn table<const N: usize>(header: [&str; N], numbers: Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    // Cells wrap where a terminal is narrower; a pipe has no width.
    if terminal::columns().is_none() {
        table.force_no_tty();
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `1 stage`, `2 stages`.
pub fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(count as u64))
}

/// Leaves a column out.
pub fn hide(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_constraint(ColumnConstraint::Hidden);
    }
}

/// A table as the terminal can show it: where it is too narrow, first without the `dispensable` columns, one after the
/// other, then with cells that wrap. A line under it says so.
pub fn shown(table: &Table, dispensable: &[usize]) -> String {
    let shown = match table.width() {
        Some(width) => fitted(table, dispensable, usize::from(width)),
        None => table.to_string(),
    };
    // Tables pad their last column, and nothing follows it.
    let lines = shown.lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n")
}

/// The same for so many columns.
pub fn fitted(table: &Table, dispensable: &[usize], width: usize) -> String {
    let mut table = table.clone();
    let mut hidden = Vec::new();
    for &column in dispensable {
        if natural_width(&table) <= width {
            break;
        }
        let header = table
            .header()
            .and_then(|header| header.cell_iter().nth(column));
        hidden.extend(header.map(|cell| cell.content().trim().replace('\n', " ")));
        hide(&mut table, column);
    }
    let needs = natural_width(&table);
    let mut text = table.to_string();
    if !hidden.is_empty() {
        let _ = write!(
            text,
            "\n(not shown in {width} columns: {})",
            hidden.join(", ")
        );
    }
    if needs > width {
        let _ = write!(
            text,
            "\n(this table is {needs} columns wide, the terminal {width}: cells are wrapped)"
        );
    }
    text
}

fn natural_width(table: &Table) -> usize {
    let mut unbounded = table.clone();
    unbounded.set_content_arrangement(ContentArrangement::Disabled);
    let lines = unbounded.lines();
    lines
        .map(|line| line.trim_end().chars().count())
        .max()
        .unwrap_or(0)
}

/// Leaves one character between columns where there are many, and aligns those in `numbers` to the right.
pub fn dense(table: &mut Table, numbers: Range<usize>) {
    for column in 0..table.column_count() {
        if let Some(column) = table.column_mut(column) {
            column.set_padding((0, 1));
        }
    }
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{fitted, table, thousands};

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(100_000), "100,000");
        assert_eq!(thousands(1_048_576), "1,048,576");
        assert_eq!(thousands(206_538_153), "206,538,153");
    }

    #[test]
    fn columns_that_can_be_spared_go_first() {
        let mut table = table(["stage", "bytes", "seconds"], 1..3);
        table.add_row(["a long name", "1024", "0.5"]);
        assert!(!fitted(&table, &[2], 40).contains('('));
        let narrow = fitted(&table, &[2], 24);
        assert!(!narrow.contains("0.5"), "{narrow}");
        assert!(
            narrow.ends_with("(not shown in 24 columns: seconds)"),
            "{narrow}"
        );
        let narrower = fitted(&table, &[2], 12);
        assert!(
            narrower.ends_with("the terminal 12: cells are wrapped)"),
            "{narrower}"
        );
    }
}
