//! An estimate for people.

use std::fmt::Write;

use rekindle::record::Update;
use rekindle_plan::Bytes;
use rekindle_train::fit::Breakdown;

use super::{Estimate, layer_table};
use crate::{
    table::{self, Table},
    terminal,
};

impl Estimate {
    /// For people: so many levels of layers inside layers; `colours` paints the bars.
    pub fn text(&self, levels: usize, colours: bool) -> String {
        let mut text = format!("{}\n\n", layer_table::text(self, levels));
        let _ = writeln!(text, "{}\n", table(self));
        let _ = writeln!(text, "{}", bars(self, terminal::width(), colours));
        let _ = writeln!(text, "{}", terminal::wrapped(&notes(self), ""));
        if self.update == Update::InBackward {
            let _ = writeln!(text, "Parameters are updated in the backward pass.");
        }
        if let Some(budgets) = &self.budgets {
            let _ = writeln!(text, "\n{}", terminal::wrapped(&budgets.to_string(), ""));
        }
        if let Some(advice) = &self.advice {
            let _ = writeln!(text, "\n{advice}");
        }
        text
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
fn table(estimate: &Estimate) -> Table {
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

/// A bar for each column, on one scale, and what its letters mean.
fn bars(estimate: &Estimate, width: usize, colours: bool) -> String {
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
            let letters = letter(part).repeat(cells);
            if colours && cells > 0 {
                let _ = write!(text, "\x1b[30;{colour}m{letters}\x1b[0m");
            } else {
                text.push_str(&letters);
            }
        }
        let _ = writeln!(text, " {}", peak.total_bytes);
    }
    text.push_str(" Letters are the first of each row's name; x is other.\n");
    text
}

/// The letter of a part in a bar.
fn letter(part: &str) -> &str {
    match part {
        "other" => "x",
        part => &part[..1],
    }
}

/// When the peaks come, and what the words mean.
fn notes(estimate: &Estimate) -> String {
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
