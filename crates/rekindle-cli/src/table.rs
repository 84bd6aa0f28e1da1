//! Tables in one style for terminals and pages.
//!
//! Columns without a value are left out. Numbers are right-aligned.

use std::{
    fmt::{self, Display},
    ops::Range,
};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets::NOTHING};
use indicatif::HumanCount;
use maud::{Markup, Render, html};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::record::Slowdown;

use crate::terminal;

/// A cell: the displayed value, and the exact number with its unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    text: String,
    exact: Option<(String, String)>,
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
    fn exact(shown: impl ToString, value: impl ToString, unit: &str) -> Self {
        Self {
            text: shown.to_string(),
            exact: Some((value.to_string(), unit.to_owned())),
        }
    }

    /// Bytes, if there are any.
    pub fn bytes(bytes: impl Into<Option<Bytes>>) -> Self {
        let cell = |bytes: Bytes| Self::exact(bytes, bytes.0, "bytes");
        bytes.into().map(cell).unwrap_or_default()
    }

    /// Seconds, if there are any.
    pub fn seconds(seconds: impl Into<Option<Seconds>>) -> Self {
        let cell = |seconds: Seconds| Self::exact(seconds, seconds.0, "s");
        seconds.into().map(cell).unwrap_or_default()
    }

    /// A measured quotient of step times: its range, if noise does not hide which is longer.
    pub fn slowdown(slowdown: Slowdown) -> Self {
        let [least, most] = slowdown.range;
        let text = match slowdown.is_known() {
            true => format!("{least:.2}-{most:.2}"),
            false => "about 1".into(),
        };
        Self::exact(text, slowdown.times, "x").between(Some(slowdown.range))
    }

    /// The same with the least and the most that was measured, for the pointer.
    pub fn between(mut self, range: Option<[impl Display; 2]>) -> Self {
        if let (Some((_, unit)), Some([least, most])) = (&mut self.exact, range) {
            *unit += &format!(", {least} to {most}");
        }
        self
    }

    /// A text, if there is one.
    pub fn text(text: Option<String>) -> Self {
        text.map(Self::from).unwrap_or_default()
    }
}

impl Render for Cell {
    fn render(&self) -> Markup {
        match &self.exact {
            Some((value, unit)) => {
                html! { data value=(value) title={ (value) " " (unit) } { (self.text) } }
            }
            None => html! { (self.text) },
        }
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<String>,
    numbers: Range<usize>,
    rows: Vec<Vec<Cell>>,
}

/// An empty table with this header, whose columns have bars between them; those in `numbers` are aligned to the right.
pub fn table(header: &str, numbers: Range<usize>) -> Table {
    Table {
        header: header.split('|').map(str::to_owned).collect(),
        numbers,
        rows: Vec::new(),
    }
}

impl Table {
    /// Adds a row; cells that it lacks are empty.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item: Into<Cell>>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), Cell::default());
        self.rows.push(row);
    }

    /// Whether a column has a value.
    fn has(&self, column: usize) -> bool {
        self.rows.iter().any(|row| !row[column].text.is_empty())
    }

    /// For terminals, with so many characters between columns.
    fn spaced(&self, between: u16, arrangement: ContentArrangement) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        // A pipe has no width.
        if terminal::columns().is_none() {
            table.force_no_tty();
        }
        table.set_content_arrangement(arrangement);
        table.set_header(&self.header);
        let texts = |row: &Vec<Cell>| row.iter().map(|cell| cell.text.clone()).collect::<Vec<_>>();
        table.add_rows(self.rows.iter().map(texts));
        for index in 0..self.header.len() {
            let Some(column) = table.column_mut(index) else {
                continue;
            };
            column.set_padding((0, between));
            if !self.has(index) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
            if self.numbers.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        // Tables pad their last column, and nothing follows it.
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// As HTML: exact bytes and seconds are shown under the pointer.
    pub fn html(&self) -> Markup {
        let columns = || (0..self.header.len()).filter(|&column| self.has(column));
        let class = |column: usize| self.numbers.contains(&column).then_some("number");
        html! {
            div.scroll {
                table {
                    thead { tr { @for column in columns() { th class=[class(column)] { (self.header[column]) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr { @for column in columns() { td class=[class(column)] { (row[column]) } } }
                        }
                    }
                }
            }
        }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = terminal::columns().map_or(terminal::width(), usize::from);
        let wide = self.spaced(2, ContentArrangement::Disabled);
        if wide.lines().all(|line| line.chars().count() <= room) {
            return f.write_str(&wide);
        }
        // Cells wrap where a terminal is narrower still.
        f.write_str(&self.spaced(1, ContentArrangement::Dynamic))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_a_value_are_left_out_and_wide_tables_are_denser() {
        let mut table = table("stage|bytes|pools", 1..3);
        table.add_row(["a", "1024", ""]);
        assert_eq!(table.to_string(), "stage  bytes\na       1024");
        table.add_row(["a".repeat(74).as_str(), "1", ""]);
        let dense = table.to_string();
        assert!(dense.lines().all(|line| line.len() <= 80), "{dense}");
    }

    #[test]
    fn pages_have_all_digits_behind_what_is_shown() {
        assert_eq!(
            Cell::bytes(Bytes(40_605_367)).render().into_string(),
            r#"<data value="40605367" title="40605367 bytes">38.7 MiB</data>"#
        );
    }
}
