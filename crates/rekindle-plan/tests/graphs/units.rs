//! Bytes, seconds, and the line through two times.
use rekindle_plan::graph::Rate;
use rekindle_plan::{Bytes, Seconds};

#[test]
fn prints_binary_units() {
    let cases = [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (8_000, "7.8 KiB"),
        (1_048_575, "1.0 MiB"),
        (136_524_595, "130.2 MiB"),
        (1_610_612_736, "1.50 GiB"),
        (u64::MAX, "16.00 EiB"),
    ];
    for (bytes, text) in cases {
        assert_eq!(Bytes(bytes).to_string(), text);
    }
}

#[test]
fn arithmetic_stops_at_the_ends() {
    assert_eq!(Bytes::MAX + Bytes(1), Bytes::MAX);
    assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
}

#[test]
fn prints_the_fitting_unit() {
    let cases = [
        (0.0, "0.00 s"),
        (1.42, "1.42 s"),
        (0.999_99, "1.00 s"),
        (0.0031, "3.1 ms"),
        (0.000_012, "12 µs"),
        (0.000_999_9, "1.0 ms"),
        (2e-9, "2 ns"),
    ];
    for (seconds, text) in cases {
        assert_eq!(Seconds(seconds).to_string(), text);
    }
}

#[test]
fn a_rate_is_the_line_through_two_times() {
    let small = (Bytes(1000), Seconds(0.25));
    let rate = Rate::of_times(small, (Bytes(5000), Seconds(0.5)));
    assert_eq!(rate.bytes_per_s, 16_000.0);
    assert_eq!(rate.latency_s, Seconds(0.1875));
    assert_eq!(rate.seconds(Bytes(5000)), Seconds(0.5));
}
