//! Memory is counted, and random numbers are drawn in order, for a whole process: a test of either has one to itself.

use std::{env, process::Command};

/// Set for the process that a test has to itself.
const ALONE: &str = "REKINDLE_TEST_ALONE";

/// Goes on in a process of the test's own, with two threads for kernels on every machine: the test returns here once it is
/// over there, and fails if it failed there.
macro_rules! own_process {
    () => {
        fn here() {}
        if $crate::own_process::ran_elsewhere(std::any::type_name_of_val(&here)) {
            return;
        }
    };
}

/// Runs the test that holds the function of this name (`crate::module::test::here`), unless this process is its own.
pub fn ran_elsewhere(function: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return false;
    }
    let (_, test) = function.split_once("::").expect("a crate's");
    let (test, _) = test.rsplit_once("::").expect("a function's");
    let output = Command::new(env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(ALONE, "1")
        .env("RAYON_NUM_THREADS", "2")
        // Unoptimised, kernels' launch code can overflow the default stack of a device's thread.
        .env("RUST_MIN_STACK", "268435456")
        // burn loads the state of optimizers to its default device.
        .env("BURN_DEVICE", "flex")
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed");
    assert!(
        said.contains("1 passed"),
        "{test} is not the name of a test"
    );
    true
}
