//! Numbers and tables as a page has them.

use maud::{Markup, html};
use rekindle_plan::{Bytes, Seconds};

use crate::table::thousands;

/// Bytes for people, with all digits behind them.
pub fn bytes(bytes: Bytes) -> Markup {
    html! { data value=(bytes.0) title={ (thousands(bytes.0)) " bytes" } { (bytes) } }
}

/// The same where there may be none.
pub fn bytes_or_dash(bytes: Option<Bytes>) -> Markup {
    match bytes {
        Some(bytes) => self::bytes(bytes),
        None => html! { "-" },
    }
}

/// Seconds for people, with all digits behind them.
pub fn seconds(seconds: Seconds) -> Markup {
    html! { data value=(seconds.0) title={ (seconds.0) " s" } { (seconds) } }
}

/// Words for people, with `code` between backticks.
pub fn prose(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A table whose columns after the first `words` are numbers.
pub fn table(header: &[&str], words: usize, rows: &[Vec<Markup>]) -> Markup {
    let class = |column: usize| (column >= words).then_some("number");
    html! {
        div.scroll {
            table {
                thead { tr { @for (column, title) in header.iter().enumerate() { th class=[class(column)] { (title) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (column, cell) in row.iter().enumerate() { td class=[class(column)] { (cell) } } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_prose_are_code() {
        let words = prose("`--compare` measures <it>").into_string();
        assert_eq!(words, "<code>--compare</code> measures &lt;it&gt;");
    }

    #[test]
    fn all_digits_are_behind_what_is_shown() {
        let cell = bytes(Bytes(40_605_367)).into_string();
        assert_eq!(
            cell,
            r#"<data value="40605367" title="40,605,367 bytes">38.7 MiB</data>"#
        );
    }
}
