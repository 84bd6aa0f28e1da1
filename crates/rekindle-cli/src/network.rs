//! The link between ranks: as it is typed, and in words.

use rekindle::{record::Rate, size::Size};
use rekindle_plan::Seconds;

/// Reads a link: `12GB/s`, `25Gb/s` (bits), or with the latency of a message `12GB/s,5us`.
pub fn link(text: &str) -> Result<Rate, String> {
    let wrong = || {
        format!(
            "`{text}` is not a link: write a rate and a latency, such as 12GB/s, 25Gb/s or 12GB/s,5us"
        )
    };
    let (rate, latency) = text.split_once(',').unwrap_or((text, "0s"));
    let rate = rate.trim().strip_suffix("/s").ok_or_else(wrong)?;
    let latency = humantime::parse_duration(latency.trim()).map_err(|_| wrong())?;
    // The units of sizes, with a lower-case `b` for bits.
    let (size, parts) = match rate.strip_suffix('b') {
        Some(bits) => (format!("{bits}B"), 8.0),
        None => (rate.to_owned(), 1.0),
    };
    match size.parse() {
        Ok(Size::Bytes(bytes)) => Ok(Rate {
            latency_s: Seconds(latency.as_secs_f64()),
            bytes_per_s: bytes.0 as f64 / parts,
        }),
        _ => Err(wrong()),
    }
}

/// A link in words.
pub fn in_words(link: Rate) -> String {
    // Link speeds are given in powers of ten.
    let rate = match link.bytes_per_s {
        rate if rate < 1e9 => format!("{:.2} MB/s", rate / 1e6),
        rate => format!("{:.2} GB/s", rate / 1e9),
    };
    match link.latency_s {
        Seconds::ZERO => rate,
        latency => format!("{rate}, {latency}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn links_are_in_bytes_or_bits_with_a_latency() {
        let link = |text: &str| {
            let rate = super::link(text).ok()?;
            Some((rate.bytes_per_s, rate.latency_s.0))
        };
        assert_eq!(link("12GB/s"), Some((12e9, 0.0)));
        assert_eq!(link("25Gb/s, 2 us"), Some((3.125e9, 2e-6)));
        let half_more = 1.5 * f64::from(1 << 30);
        assert_eq!(link("1.5GiB/s,500us"), Some((half_more, 5e-4)));
        for text in [
            "12",
            "12GB",
            "GB/s",
            "12GB/s,5",
            "12GB/s,-1us",
            "0Gb/s",
            "80%/s",
            "12GB/s,5us,6us",
        ] {
            assert_eq!(link(text), None, "{text}");
        }
    }
}
