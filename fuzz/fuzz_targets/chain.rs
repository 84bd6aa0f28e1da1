//! Chain files: what is read can be written, and read again.
#![no_main]

use rekindle_plan::Chain;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(chain) = Chain::from_json(text) {
        let again = chain.to_json().and_then(|text| Chain::from_json(&text));
        assert_eq!(again, Ok(chain));
    }
});
