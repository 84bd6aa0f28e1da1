//! Tables in one style for terminals and pages.
//!
//! Columns without a value are left out. Numbers are right-aligned.

use std::{
    fmt::{self, Write},
    ops::Range,
};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets::NOTHING};
use indicatif::HumanCount;
use maud::{Markup, Render, html};
use rekindle_plan::{Bytes, Seconds};

use crate::terminal;

/// A cell: the displayed value, and the exact value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    text: String,
    /// The number, and the same with its unit.
    exact: Option<[String; 2]>,
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.to_string(),
            exact: None,
        }
    }
}

impl Cell {
    /// Bytes, if there are any.
    pub fn bytes(bytes: impl Into<Option<Bytes>>) -> Self {
        let cell = |bytes: Bytes| Self {
            text: bytes.to_string(),
            exact: Some([bytes.0.to_string(), format!("{} bytes", thousands(bytes.0))]),
        };
        bytes.into().map(cell).unwrap_or_default()
    }

    /// Seconds, if there are any.
    pub fn seconds(seconds: impl Into<Option<Seconds>>) -> Self {
        let cell = |seconds: Seconds| Self {
            text: seconds.to_string(),
            exact: Some([seconds.0.to_string(), format!("{} s", seconds.0)]),
        };
        seconds.into().map(cell).unwrap_or_default()
    }

    /// A text, if there is one.
    pub fn text(text: Option<String>) -> Self {
        text.map(Self::from).unwrap_or_default()
    }
}

impl Render for Cell {
    fn render(&self) -> Markup {
        match &self.exact {
            Some([value, title]) => html! { data value=(value) title=(title) { (self.text) } },
            None => html! { (self.text) },
        }
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<String>,
    numbers: Range<usize>,
    dense: bool,
    rows: Vec<Vec<Cell>>,
}

/// An empty table with this header; the columns in `numbers` are aligned to the right.
pub fn table<const N: usize>(header: [&str; N], numbers: Range<usize>) -> Table {
    Table {
        header: header.map(str::to_owned).to_vec(),
        numbers,
        dense: false,
        rows: Vec::new(),
    }
}

/// Leaves one character between columns where there are many, and aligns those in `numbers` to the right.
pub fn dense(table: &mut Table, numbers: Range<usize>) {
    table.dense = true;
    table.numbers = numbers;
}

impl Table {
    /// Adds a row; cells that it lacks are empty.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item: Into<Cell>>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), Cell::default());
        self.rows.push(row);
    }

    /// Columns with a value, of which there is at least one.
    fn columns(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let full = |row: &Vec<Cell>, column: usize| !row[column].text.is_empty();
        (0..self.header.len()).filter(move |&column| self.rows.iter().any(|row| full(row, column)))
    }

    /// For terminals, without some of the columns.
    fn terminal(&self, hidden: &[usize], arrangement: ContentArrangement) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        // Cells wrap where a terminal is narrower; a pipe has no width.
        if terminal::columns().is_none() {
            table.force_no_tty();
        }
        table.set_content_arrangement(arrangement);
        table.set_header(&self.header);
        table.add_rows(
            self.rows
                .iter()
                .map(|row| row.iter().map(|cell| &cell.text)),
        );
        for index in 0..self.header.len() {
            let Some(column) = table.column_mut(index) else {
                continue;
            };
            if hidden.contains(&index) || !self.columns().any(|shown| shown == index) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
            if self.numbers.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if self.dense {
                column.set_padding((0, 1));
            }
        }
        // Tables pad their last column, and nothing follows it.
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn natural_width(&self, hidden: &[usize]) -> usize {
        let text = self.terminal(hidden, ContentArrangement::Disabled);
        let widths = text.lines().map(|line| line.chars().count());
        widths.max().unwrap_or(0)
    }

    /// As HTML: exact bytes and seconds are shown under the pointer.
    pub fn html(&self) -> Markup {
        let class = |column: usize| self.numbers.contains(&column).then_some("number");
        html! {
            div.scroll {
                table {
                    thead { tr { @for column in self.columns() { th class=[class(column)] { (self.header[column].trim()) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr class=[(!row[0].text.is_empty()).then_some("first")] {
                                @for column in self.columns() { td class=[class(column)] { (row[column]) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.terminal(&[], ContentArrangement::Dynamic))
    }
}

/// A table that fits the terminal: if that is too narrow, first drops the `dispensable` columns one after another, then
/// wraps cells. A line below the table says so.
pub fn shown(table: &Table, dispensable: &[usize]) -> String {
    match terminal::columns() {
        Some(width) => fitted(table, dispensable, usize::from(width)),
        None => table.to_string(),
    }
}

/// The same for so many columns.
pub fn fitted(table: &Table, dispensable: &[usize], width: usize) -> String {
    let enough = |&count: &usize| table.natural_width(&dispensable[..count]) <= width;
    let count = (0..dispensable.len()).find(enough);
    let hidden = &dispensable[..count.unwrap_or(dispensable.len())];
    let mut text = table.terminal(hidden, ContentArrangement::Dynamic);
    if !hidden.is_empty() {
        let title = |&column: &usize| table.header[column].trim().replace('\n', " ");
        let titles: Vec<String> = hidden.iter().map(title).collect();
        let _ = write!(
            text,
            "\n(not shown in {width} columns: {})",
            titles.join(", ")
        );
    }
    let needs = table.natural_width(hidden);
    if needs > width {
        let _ = write!(
            text,
            "\n(this table is {needs} columns wide, the terminal {width}: cells are wrapped)"
        );
    }
    text
}

/// `1 stage`, `2 stages`.
pub fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(count as u64))
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    HumanCount(number).to_string()
}

/// `0.125` as `12%`.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_can_be_spared_go_first_and_empty_ones_always() {
        let mut table = table(["stage", "bytes", "pools", "seconds"], 1..4);
        table.add_row(["a long name", "1024", "", "0.5"]);
        let wide = fitted(&table, &[3], 40);
        assert!(!wide.contains('(') && !wide.contains("pools"), "{wide}");
        let narrow = fitted(&table, &[3], 24);
        assert!(!narrow.contains("0.5"), "{narrow}");
        assert!(
            narrow.ends_with("(not shown in 24 columns: seconds)"),
            "{narrow}"
        );
        let narrower = fitted(&table, &[3], 12);
        assert!(
            narrower.ends_with("the terminal 12: cells are wrapped)"),
            "{narrower}"
        );
    }

    #[test]
    fn pages_have_all_digits_behind_what_is_shown() {
        assert_eq!(
            Cell::bytes(Bytes(40_605_367)).render().into_string(),
            r#"<data value="40605367" title="40,605,367 bytes">38.7 MiB</data>"#
        );
    }
}
