//! Finds a device's own error in the nested error messages of the layers above it.

/// The innermost cause of a burn error message (the last of its `Caused by:` lines), else its first line. In a nested
/// message, line breaks are escaped.
#[must_use]
pub fn innermost_cause(message: &str) -> &str {
    let lines = || message.lines().flat_map(|line| line.split("\\n"));
    let causes = lines().zip(lines().skip(1));
    let causes = causes.filter(|(line, _)| line.trim().ends_with("Caused by:"));
    let cause = causes.map(|(_, cause)| cause.trim()).last();
    cause.or(lines().next()).unwrap_or_default()
}

/// The failure, if the driver reports that a device can do no more work for this process: the driver's call, the
/// error's name and its description.
#[must_use]
pub fn device_fault(message: &str) -> Option<String> {
    let (call, status) = innermost_cause(message).split_once(" failed with status ")?;
    let end = status.find(|letter: char| !letter.is_ascii_digit());
    let status: u32 = status[..end.unwrap_or(status.len())].parse().ok()?;
    Some(match driver_words(status) {
        Some(said) => format!("{said} in `{call}`"),
        None => format!("error {status} in `{call}`"),
    })
}

/// The compiler's error about a kernel that it rejected, if the message contains one. The kernel's source is left out.
#[must_use]
pub fn refused_kernel(message: &str) -> Option<String> {
    let lines = message.lines().flat_map(|line| line.split("\\n"));
    let mut lines = lines.map(str::trim);
    lines.find(|line| line.ends_with("[Compilation Error]"))?;
    let said = lines.take_while(|line| *line != "[Source]");
    let said: Vec<&str> = said.filter(|line| !line.is_empty()).collect();
    Some(said.join("; "))
}

/// Whether a matrix kernel asked for a tile that is larger than Hopper's copy engine (TMA) takes: a defect of cubek-matmul
/// 0.3.1 (`docs/upstream.md`, 11).
#[must_use]
pub fn tile_too_large(message: &str) -> bool {
    innermost_cause(message).contains("Tile shape must be non-zero and <= 256")
}

#[cfg(feature = "cuda")]
fn driver_words(status: u32) -> Option<String> {
    let (name, words) = rekindle_cuda::error_words(status)?;
    Some(format!("{name} ({words})"))
}

#[cfg(not(feature = "cuda"))]
fn driver_words(_status: u32) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cubecl 0.11.3 writes it.
    const POISONED: &str = "\
Error while reading data: use `try_into_data` instead to catch the error at runtime: The device is poisoned
Caused by:
  Several failures at once
Caused by:
  The device was poisoned during launch
Caused by:
  cuLaunchKernel failed with status 719
Backtrace:
No backtrace available
Asked at:
No backtrace available";

    #[test]
    fn a_fault_is_told_in_the_drivers_words() {
        assert_eq!(
            innermost_cause(POISONED),
            "cuLaunchKernel failed with status 719"
        );
        let fault = device_fault(POISONED).expect("a fault");
        // Without a driver, its number alone.
        assert!(
            fault.contains("719") || fault.starts_with("CUDA_ERROR_LAUNCH_FAILED ("),
            "{fault}"
        );
        assert!(fault.ends_with("in `cuLaunchKernel`"), "{fault}");
        let within = format!("bytes: host access failed: Read({POISONED:?})");
        assert_eq!(device_fault(&within), Some(fault));
    }

    #[test]
    fn of_a_kernel_that_is_refused_the_compilers_words_are_told() {
        let message = "\
A compilation error happened during launch
Caused by:
  An error caused the compilation to fail
Caused by:
  [Compilation Error]\u{20}
    default_program(2): catastrophic error: cannot open source file \"mma.h\"
    1 catastrophic error detected

[Source]\u{20}\u{20}
extern \"C\" __global__ void kernel() {}

Backtrace:
No backtrace available";
        let words = "default_program(2): catastrophic error: cannot open source file \"mma.h\"; 1 catastrophic error detected";
        assert_eq!(refused_kernel(message).as_deref(), Some(words));
        let within = format!("bytes: host access failed: Read({message:?})");
        let within = refused_kernel(&within).expect("the same");
        assert!(within.starts_with("default_program(2)"), "{within}");
        assert_eq!(device_fault(message), None);
        assert_eq!(refused_kernel(POISONED), None);
    }

    #[test]
    fn a_tile_that_is_too_large_is_told_from_other_launch_errors() {
        let message = "\
The bytes were never written (failure #2632, still claiming 59 buffer(s))
Caused by:
  A launch error happened
Caused by:
  An unknown error happened during launch
Caused by:
  Tile shape must be non-zero and <= 256
Backtrace
No backtrace available";
        assert!(tile_too_large(message));
        assert!(!tile_too_large(POISONED));
    }

    #[test]
    fn other_messages_are_no_faults() {
        let memory = "Error\nCaused by:\n  out of device memory allocating 512 bytes\nNo backtrace";
        assert_eq!(
            innermost_cause(memory),
            "out of device memory allocating 512 bytes"
        );
        for message in [memory, "index out of bounds\nat line 3", ""] {
            assert_eq!(device_fault(message), None, "{message}");
        }
        assert_eq!(
            innermost_cause("index out of bounds\nat line 3"),
            "index out of bounds"
        );
    }
}
