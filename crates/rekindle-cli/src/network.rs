//! Parses the link between ranks, and describes the cost of the exchange over it in words.

use std::{fmt::Write, str::FromStr};

use rekindle::{
    record::{Rate, StepExchange},
    size::Size,
};
use rekindle_plan::{Bytes, Seconds};

use crate::table::several;

/// A link: `12GB/s`, `25Gb/s` (bits), or with the latency of a message `12GB/s,5us`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkChoice(pub Rate);

/// The error of a text that is not a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a link: write bytes or bits per second, and the latency of a message after a comma, for example 12GB/s, \
     25Gb/s or 12GB/s,5us"
)]
pub struct LinkParseError {
    text: String,
}

impl FromStr for LinkChoice {
    type Err = LinkParseError;

    fn from_str(text: &str) -> Result<Self, LinkParseError> {
        let wrong = || LinkParseError { text: text.into() };
        let (rate, latency) = match text.split_once(',') {
            Some((rate, latency)) => (rate, Some(latency)),
            None => (text, None),
        };
        let rate = rate.trim().strip_suffix("/s").ok_or_else(wrong)?;
        let latency_s = latency.map_or(Some(0.0), |latency| {
            scaled(
                latency,
                &[
                    ("ns", 1e-9),
                    ("us", 1e-6),
                    ("µs", 1e-6),
                    ("ms", 1e-3),
                    ("s", 1.0),
                ],
            )
        });
        // The units of sizes, and with a lower-case `b` for bits.
        let bits = [("kb", 1e3), ("Mb", 1e6), ("Gb", 1e9), ("Tb", 1e12)];
        let bytes_per_s = match (scaled(rate, &bits), rate.parse()) {
            (Some(bits), _) => Some(bits / 8.0),
            (None, Ok(Size::Bytes(bytes))) => Some(bytes.0 as f64),
            _ => None,
        };
        let rate = bytes_per_s.filter(|rate| *rate > 0.0).zip(latency_s);
        let (bytes_per_s, latency_s) = rate.ok_or_else(wrong)?;
        Ok(Self(Rate {
            latency_s: Seconds(latency_s),
            bytes_per_s,
        }))
    }
}

/// A number with one of these units, of which the first that the text ends with counts.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let mut fitting = units.iter().filter_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?.trim().parse::<f64>().ok()?;
        Some(number * factor)
    });
    fitting.find(|number| number.is_finite() && *number >= 0.0)
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

/// The link of an exchange, in words.
pub fn link(exchange: &StepExchange) -> String {
    let how = if exchange.link_measured {
        "measured"
    } else {
        "given"
    };
    format!("{} ({how})", in_words(exchange.ring.link))
}

/// What the exchange adds to a step, in words.
pub fn exchange(exchange: &StepExchange) -> String {
    let taken = &exchange.taken;
    let mut text = format!(
        "adds {} to the step: {} of waiting, {} of copying; {} in {}, {} in all",
        taken.added(),
        taken.waited_s,
        taken.staged_s,
        taken.bytes,
        several(taken.buckets, "all-reduce"),
        taken.network_s,
    );
    if taken.means > 0 {
        let means = several(taken.means, "mean");
        let _ = write!(text, "; {} of {means} over ranks", taken.means_s);
    }
    if taken.parameter_bytes > Bytes::ZERO {
        let (time, bytes) = (taken.parameters_s, taken.parameter_bytes);
        let _ = write!(text, "; {time} of sending {bytes} of parameters");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_in_bytes_or_bits_with_a_latency() {
        let link = |text: &str| {
            text.parse()
                .map(|LinkChoice(rate)| (rate.bytes_per_s, rate.latency_s.0))
        };
        assert_eq!(link("12GB/s"), Ok((12e9, 0.0)));
        assert_eq!(link("25Gb/s, 2 us"), Ok((3.125e9, 2e-6)));
        assert_eq!(link("1.5GiB/s,0.5ms"), Ok((1.5 * f64::from(1 << 30), 5e-4)));
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
            assert_eq!(link(text), Err(LinkParseError { text: text.into() }));
        }
    }
}
