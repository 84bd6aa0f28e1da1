//! The parts of a peak.

use std::fmt::Write;

use rekindle_plan::{Action, Bytes, Chain};
use rekindle_train::session::Planned;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Estimate, Known};
use crate::table::{self, Table};

/// The bytes of the moment that holds most.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Breakdown {
    /// Parameters.
    pub parameters_bytes: Bytes,
    /// Gradients of parameters that exist at that moment.
    pub gradients_bytes: Bytes,
    /// The optimizer's state.
    pub optimizer_bytes: Bytes,
    /// Activations that wait for the backward pass, and those that were made again in it.
    pub activations_bytes: Bytes,
    /// Gradients of activations, and what kernels hold for a while.
    pub temporaries_bytes: Bytes,
    /// Input and targets.
    pub data_bytes: Bytes,
    /// Frozen parameters, running statistics, and what kernels and tables keep.
    pub other_bytes: Bytes,
    /// The sum.
    pub total_bytes: Bytes,
    /// The moment of the peak, in words.
    pub at: String,
}

impl Breakdown {
    /// The peak of a plan.
    pub fn new(known: &Known<'_>, planned: &Planned) -> Self {
        let estimate = &known.estimate;
        let summed_bytes = known.summed_bytes;
        let (place, parts) = planned.at_peak;
        let parameters = estimate.gradient_bytes;
        let data = estimate.input_bytes;
        let state = estimate.state_bytes;
        Self {
            parameters_bytes: parameters,
            gradients_bytes: parts.parameter_gradients + summed_bytes,
            optimizer_bytes: state,
            activations_bytes: parts.activations + parts.graphs,
            temporaries_bytes: parts.gradients + parts.temporary,
            data_bytes: data,
            other_bytes: parts.fixed - parameters - data - state - summed_bytes,
            total_bytes: planned.peak,
            at: moment(planned.actions.get(place).copied(), &planned.chain),
        }
    }

    /// The parts by name, in the order of tables and bars.
    fn parts(&self) -> [(&'static str, Bytes); 7] {
        [
            ("parameters", self.parameters_bytes),
            ("gradients", self.gradients_bytes),
            ("optimizer", self.optimizer_bytes),
            ("activations", self.activations_bytes),
            ("temporaries", self.temporaries_bytes),
            ("data", self.data_bytes),
            ("x other", self.other_bytes),
        ]
    }
}

fn moment(action: Option<Action>, chain: &Chain) -> String {
    match action {
        Some(Action::Forward(stage) | Action::ForwardKeep(stage)) => {
            format!("the forward of {}", chain.stages[stage.0].name)
        }
        Some(Action::ForwardTracked { stage, .. }) => {
            format!("the forward of {}", chain.stages[stage.0].name)
        }
        Some(Action::Backward(stage)) => format!("the backward of {}", chain.stages[stage.0].name),
        Some(Action::Loss) => "the loss".into(),
        Some(Action::Optimize) | None => "the optimizer's step".into(),
    }
}

/// The name of the second column.
fn plan_name(estimate: &Estimate) -> Option<String> {
    let plan = estimate.plan.as_ref()?;
    Some(match plan.segments {
        Some(1) => "plan".into(),
        Some(segments) => format!("{segments} segments"),
        None => plan.planner.clone(),
    })
}

/// Parts by row, plain and under the plan.
pub fn table(estimate: &Estimate) -> Table {
    let title = if estimate.micro_batch == estimate.batch {
        format!("peak at batch {}, {}", estimate.batch, estimate.dtype)
    } else {
        let (all, part) = (estimate.batch, estimate.micro_batch);
        format!("peak at batch {all} in parts of {part}, {}", estimate.dtype)
    };
    let mut table = match plan_name(estimate) {
        Some(plan) => table::table([title.as_str(), "plain", &plan], 1..3),
        None => table::table([title.as_str(), "plain"], 1..2),
    };
    let peaks = || {
        let plan = estimate.plan.as_ref().map(|plan| &plan.peak);
        [Some(&estimate.plain.peak), plan].into_iter().flatten()
    };
    for (row, (name, _)) in estimate.plain.peak.parts().iter().enumerate() {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(peaks().map(|peak| peak.parts()[row].1.to_string()));
        table.add_row(cells);
    }
    let mut row = |name: &str, cell: &dyn Fn(&Breakdown) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(peaks().map(cell));
        table.add_row(cells);
    };
    row("total", &|peak| peak.total_bytes.to_string());
    row("the same in MB (10^6 bytes)", &|peak| {
        peak.total_bytes.decimal()
    });
    if let Some(plan) = &estimate.plan {
        table.add_row([
            "step time, estimated".to_owned(),
            "1.00x".to_owned(),
            format!("{:.2}x", plan.step_ratio),
        ]);
    }
    table
}

/// Cells of the longest bar, and characters beside a bar.
const BAR: usize = 60;
const BESIDE_BAR: usize = 20;
/// Background colours of the parts, as SGR numbers.
const COLOURS: [u8; 7] = [44, 45, 46, 42, 43, 47, 100];

/// A bar for each column, on one scale; the letters are those that the rows begin with.
pub fn bars(estimate: &Estimate, width: usize, colours: bool) -> String {
    let mut text = String::new();
    let cells = width.saturating_sub(BESIDE_BAR).clamp(1, BAR) as u128;
    let plan = estimate.plan.as_ref().map(|plan| ("plan", &plan.peak));
    let longest = plan.map_or(Bytes(0), |(_, peak)| peak.total_bytes);
    let scale = longest.max(estimate.plain.peak.total_bytes).0.max(1);
    for (name, peak) in [Some(("plain", &estimate.plain.peak)), plan]
        .into_iter()
        .flatten()
    {
        let _ = write!(text, " {name:<6}");
        let (mut sum, mut drawn) = (0_u64, 0);
        for ((part, bytes), colour) in peak.parts().into_iter().zip(COLOURS) {
            sum = sum.saturating_add(bytes.0);
            // Ends are rounded, not lengths, so that bars end where totals do.
            let end = (u128::from(sum) * cells + u128::from(scale) / 2) / u128::from(scale);
            let cells = (end as usize).saturating_sub(drawn);
            drawn = end as usize;
            let letters = part[..1].repeat(cells);
            if colours && cells > 0 {
                let _ = write!(text, "\x1b[30;{colour}m{letters}\x1b[0m");
            } else {
                text.push_str(&letters);
            }
        }
        let _ = writeln!(text, " {}", peak.total_bytes);
    }
    text
}

/// Notes on when the peaks occur, and on the meaning of terms.
pub fn notes(estimate: &Estimate) -> String {
    let mut text = format!("The plain run peaks in {}", estimate.plain.peak.at);
    if let Some(plan) = &estimate.plan {
        let _ = write!(text, ", the plan in {}", plan.peak.at);
    }
    text.push_str(
        ". Temporaries: gradients of activations, and temporary buffers of kernels. Other: running statistics, and \
         memory that kernels and tables keep. The process's own memory is not included.",
    );
    if estimate.on_gpu {
        text.push_str(" These are live buffers: a GPU's pools and its driver take more.");
    }
    text
}
