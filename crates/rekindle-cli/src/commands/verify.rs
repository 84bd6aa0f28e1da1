//! `rekindle verify`: the plain run and checkpointed runs, compared value by value.

use rekindle::{
    Dtype,
    device::DeviceId,
    train::verify::{Comparison, Verification, VerifyError, verify},
};
use serde_json::json;

use crate::{
    args::VerifyArgs,
    config::{self, Overrides},
    exit,
    failure::{Failure, Outcome},
    output, table,
};

/// Format tag of the document that `--json` writes.
const FORMAT: &str = "rekindle-verify/1";

/// Largest relative difference that is put down to rounding on a GPU, where the fastest kernel is chosen anew and
/// sums may be taken in another order. On the processor nothing is tolerated.
const GPU_TOLERANCE: f64 = 1e-3;

/// The same for types that hardly have that many digits: units in the last place.
const GPU_ULPS: f64 = 8.0;

fn gpu_tolerance(dtype: Dtype) -> f64 {
    GPU_TOLERANCE.max(GPU_ULPS * dtype.epsilon())
}

/// Compares, and fails if anything differs.
pub fn run(args: &VerifyArgs) -> Outcome {
    let config = config::load(
        &args.config.config,
        &Overrides {
            steps: Some(args.steps),
            ..Overrides::from(&args.config.replace)
        },
    )?;
    let device = args.device.unwrap_or_default().resolve()?;
    let data = config.open_data()?;
    let verification = Verification {
        model: &config.model,
        data: &*data.train,
        settings: &config.training,
        segments: &args.segments,
    };
    note!(
        "comparing {} steps with the plain run on {} ({})",
        args.steps,
        device.device,
        device.name
    );
    let tolerance = match device.device {
        DeviceId::Cpu => 0.0,
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => gpu_tolerance(config.training.dtype),
    };
    let comparisons = verify(&verification, device.device, &mut |comparison| {
        note!(
            "{} segments: {}",
            comparison.segments,
            verdict(comparison, tolerance)
        );
    })?;
    let failed = comparisons
        .iter()
        .filter(|comparison| !passes(comparison, tolerance))
        .count();
    if args.json {
        output::json(&json!({
            "format": FORMAT,
            "device": device.device.to_string(),
            "steps": args.steps,
            "tolerance": tolerance,
            "passed": failed == 0,
            "comparisons": comparisons,
        }))?;
    } else {
        output::text(&table(&comparisons, tolerance))?;
    }
    if failed > 0 {
        return Err(Failure {
            code: exit::OTHER,
            report: miette::miette!(
                "{failed} of {} runs differ from the plain run",
                comparisons.len()
            ),
        });
    }
    Ok(())
}

fn passes(comparison: &Comparison, tolerance: f64) -> bool {
    let largest = comparison
        .loss
        .max(comparison.gradients)
        .max(comparison.state);
    comparison.identical || (largest <= tolerance && tolerance > 0.0)
}

fn verdict(comparison: &Comparison, tolerance: f64) -> &'static str {
    match (comparison.identical, passes(comparison, tolerance)) {
        (true, _) => "identical",
        (false, true) => "same within rounding",
        (false, false) => "DIFFERS",
    }
}

fn table(comparisons: &[Comparison], tolerance: f64) -> String {
    let mut table = table::table(
        [
            "segments",
            "loss",
            "gradients",
            "parameters and statistics",
            "",
        ],
        0..4,
    );
    for comparison in comparisons {
        table.add_row([
            comparison.segments.to_string(),
            format!("{:.1e}", comparison.loss),
            format!("{:.1e}", comparison.gradients),
            format!("{:.1e}", comparison.state),
            verdict(comparison, tolerance).to_owned(),
        ]);
    }
    format!("{table}\n")
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Data(error) => error.into(),
            VerifyError::Plan(error) => error.into(),
            VerifyError::Device(error) => error.into(),
            VerifyError::Build(_) | VerifyError::Train(_) => Self::other(error),
        }
    }
}
