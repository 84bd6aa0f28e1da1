//! What every picture keeps to: its texts can be read, in both themes.

use std::collections::HashSet;

/// The width of a letter, as a share of its height: an average of Arial.
const LETTER: f64 = 0.52;

/// The value of a tag's attribute.
pub fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    value.split('"').next()
}

/// A text, and its left, top, right and bottom in pixels.
type Text<'a> = (&'a str, [f64; 4]);

fn number(tag: &str, name: &str) -> Option<f64> {
    attribute(tag, name)?.parse().ok()
}

/// The texts of a picture, those of ticks apart by axis.
fn texts(svg: &str) -> Vec<(Text<'_>, Option<&str>)> {
    let usual = number(svg, "font-size").expect("pixels");
    let mut texts = Vec::new();
    let mut moved = (0.0, 0.0);
    for piece in svg.split('<') {
        let (tag, text) = piece.split_once('>').unwrap_or_default();
        match tag.split(' ').next() {
            Some("g") => {
                let by = attribute(tag, "transform").expect("moved");
                let by = by.trim_start_matches("translate(").trim_end_matches(')');
                let (x, y) = by.split_once(' ').expect("a pair");
                moved = (x.parse().expect("pixels"), y.parse().expect("pixels"));
            }
            Some("/g") => moved = (0.0, 0.0),
            Some("text") => {
                let at = |name: &str| number(tag, name).unwrap_or_default();
                let size = number(tag, "font-size").unwrap_or(usual);
                let width = LETTER * size * text.chars().count() as f64;
                let anchor = attribute(tag, "text-anchor");
                let left = match anchor {
                    Some("middle") => width / 2.0,
                    Some("end") => width,
                    _ => 0.0,
                };
                let x = moved.0 + at("x") + at("dx") - left;
                let y = moved.1 + at("y") + at("dy");
                let place = [x, y - 0.75 * size, x + width, y + 0.2 * size];
                texts.push(((text, place), anchor));
            }
            _ => {}
        }
    }
    texts
}

/// Panics if texts of a picture cover each other or go past its edges, if ticks of an axis share a label, or if a colour has no other for
/// dark screens.
pub fn check(svg: &str) {
    let [width, height] = ["width", "height"].map(|name| number(svg, name).expect("pixels"));
    assert!(width <= 600.0, "read on a telephone at half its size");
    let texts = texts(svg);
    assert!(texts.len() > 15, "{texts:?}");
    for (index, ((text, [left, top, right, bottom]), _)) in texts.iter().enumerate() {
        let inside = *left >= 0.0 && *top >= 0.0 && *right <= width && *bottom <= height;
        assert!(inside, "`{text}` is not inside");
        for ((other, place), _) in &texts[index + 1..] {
            let apart = place[2] <= *left || *right <= place[0];
            let apart = apart || place[3] <= *top || *bottom <= place[1];
            assert!(apart, "`{text}` and `{other}` cover each other");
        }
    }
    for axis in ["middle", "end"] {
        let ticks = texts.iter().filter(|(_, anchor)| *anchor == Some(axis));
        let labels: Vec<&str> = ticks.map(|((text, _), _)| *text).collect();
        let different: HashSet<&&str> = labels.iter().collect();
        assert!(
            labels.len() >= 4 && different.len() == labels.len(),
            "{labels:?}"
        );
    }
    for of in ["fill", "stroke"] {
        for piece in svg.split(&format!(" {of}=\"#")).skip(1) {
            let colour = piece.split('"').next().expect("a colour");
            let dark = format!("[{of}=\"#{colour}\"]{{{of}:#");
            assert!(
                svg.contains(&dark),
                "#{colour} has no colour for dark screens"
            );
        }
    }
}
