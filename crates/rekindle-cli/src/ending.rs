//! How a command ends: what it reports, and its exit code.

use rekindle_train::device::seal_kernels;

use crate::{
    error_document, exit,
    failure::{Failure, Outcome},
};

/// Says why a command failed: for people, and as JSON where that was asked for.
pub fn report(failure: &Failure) {
    complain!("{:?}", failure.report);
    error_document::write(failure);
}

/// Ends the process.
pub fn end(outcome: Outcome) -> ! {
    let code = match outcome {
        Ok(()) => exit::DONE,
        Err(failure) => {
            report(&failure);
            failure.code
        }
    };
    seal_kernels();
    std::process::exit(code);
}
