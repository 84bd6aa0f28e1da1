//! An estimate for people.

use rekindle::record::Update;

use super::{Column, Estimate};
use crate::{
    failure::advised,
    table::{self, Cell, several, thousands},
    terminal,
};

impl Estimate {
    /// The verdict, the table, and what to know of it.
    pub fn text(&self) -> String {
        let batch = match self.micro_batch {
            all if all == self.batch => format!("batch {all}"),
            part => format!("batch {} in parts of {part}", self.batch),
        };
        let about = format!(
            "{} parameters in {}, {batch}, {}; the process's own memory comes on top.",
            thousands(self.param_count),
            several(self.stages, "stage"),
            self.dtype,
        );
        let mut sentences = vec![about];
        if self.plain.plan.update == Update::InBackward {
            sentences.push("Parameters are updated in the backward pass.".into());
        }
        if self.on_gpu {
            sentences.push("Bytes are live buffers: a GPU's pools and driver take more.".into());
        }
        let sentences: Vec<_> = sentences
            .iter()
            .map(|one| terminal::wrapped(one, ""))
            .collect();
        let verdict = terminal::wrapped(&self.verdict(), "");
        format!(
            "{verdict}\n\n{}\n\n{}\n",
            self.table(),
            sentences.join("\n")
        )
    }

    fn verdict(&self) -> String {
        let Some(limit) = &self.limit else {
            return format!("The plain run takes {}.", self.plain.plan.predicted_peak);
        };
        let of = match limit.of.as_str() {
            "budget" => format!("the budget of {}", limit.bytes),
            device => format!("the {} of {device}", limit.bytes),
        };
        let fits = |column: &&Column| column.fits == Some(true);
        let plans = [&self.segments, &self.plan].into_iter().flatten();
        let fastest = plans
            .filter(fits)
            .min_by(|a, b| a.plan.slowdown().total_cmp(&b.plan.slowdown()));
        match (fastest, self.smallest_budget_bytes) {
            _ if self.plain.fits == Some(true) => format!("The plain run fits {of}."),
            (Some(fastest), _) => format!(
                "Fits {of} at {:.2}x the plain step time, by {}.",
                fastest.plan.slowdown(),
                fastest.name()
            ),
            (None, Some(smallest)) => {
                let smallest = advised(smallest);
                format!("No plan fits {of}; the smallest is `--budget {smallest}`.")
            }
            (None, None) => format!("This plan does not fit {of}."),
        }
    }

    fn table(&self) -> table::Table {
        let header = "|peak|parameters|optimizer|gradients|activations|step|fits";
        let mut table = table::table(header, 1..7);
        let rows = [
            Some(&self.plain),
            self.segments.as_ref(),
            self.plan.as_ref(),
        ];
        for row in rows.into_iter().flatten() {
            let peak = &row.peak;
            table.add_row([
                Cell::from(row.name()),
                Cell::bytes(row.plan.predicted_peak),
                Cell::bytes(peak.parameters_bytes),
                Cell::bytes(peak.optimizer_bytes),
                Cell::bytes(peak.gradients_bytes),
                Cell::bytes(peak.activations_bytes),
                format!("{:.2}x", row.plan.slowdown()).into(),
                Cell::text(row.fits.map(|fits| if fits { "yes" } else { "no" }.into())),
            ]);
        }
        table
    }
}

impl Column {
    fn name(&self) -> String {
        match self.plan.segments.as_ref().map(Vec::len) {
            Some(1) => "plain".into(),
            Some(segments) => format!("{segments} segments"),
            None => format!("plan `{}`", self.plan.planner),
        }
    }
}
