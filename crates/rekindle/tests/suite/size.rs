//! Sizes as they are typed.

use rekindle::size::{Size, SizeError};
use rekindle_plan::Bytes;

fn bytes(text: &str) -> Result<Size, SizeError> {
    text.parse()
}

#[test]
fn a_size_is_typed_as_it_was() {
    for typed in [
        "512MiB",
        "1500MB",
        "60%",
        "80%-of-device",
        "62914561B",
        "3GiB",
        "64KiB",
    ] {
        let size = bytes(typed).expect("a size");
        assert_eq!(size.to_string(), typed);
    }
}

#[test]
fn both_families_of_units_are_known() {
    for (text, expected) in [
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1.5GB", 1_500_000_000),
        ("300000B", 300_000),
        ("7 kB", 7_000),
        ("64kib", 64 << 10),
    ] {
        assert_eq!(bytes(text), Ok(Size::Bytes(Bytes(expected))), "{text}");
    }
    assert_eq!(bytes("60%"), Ok(Size::Percent(60.0)));
    assert_eq!(bytes("80%-of-device"), Ok(Size::OfDevice(80.0)));
}

#[test]
fn what_is_no_size_says_how_to_write_one() {
    let no_room = "a size of 0 leaves no room";
    let not_a_size = "is not a size: write for example 512MiB";
    for (texts, said) in [
        (&["12"][..], "`12` has no unit: write `12MiB`"),
        (&["0B", "0%", "0%-of-device"], no_room),
        (&["120%", "120%-of-device"], "120% is more than the whole"),
        (&["lots", "", "-3MiB", "NaN", "inf", "512M"], not_a_size),
        (&["64Mb", "2Gib", "-5%", "NaN%", "5%-of-gpu"], not_a_size),
    ] {
        for text in texts {
            let error = bytes(text).expect_err("no size").to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

#[test]
fn a_share_needs_a_whole() {
    let (plain, device) = (Some(Bytes(300)), Some(Bytes(900)));
    for (share, expected) in [(Size::Percent(50.0), 150), (Size::OfDevice(50.0), 450)] {
        assert_eq!(share.of(plain, device), Ok(Bytes(expected)));
        assert!(share.of(None, None).is_err());
    }
}
