//! The largest sizes, for people.

use std::fmt::Write;

use rekindle_plan::Bytes;
use rekindle_train::fit::ScheduleKind;

use super::record::{Difference, Largest, MaxRecord};
use crate::{table, terminal};

impl MaxRecord {
    /// Heading, table, what made the difference, and how to run it.
    pub fn text(&self) -> String {
        let heading = terminal::wrapped(&self.heading(), "");
        let mut text = format!(
            "{heading}\nVaried: {}.\nSteps take at most {}x the plain step (`--slowdown`).\n\n",
            self.varied.what, self.slowdown
        );
        if !self.largest.is_empty() {
            let _ = writeln!(text, "{}\n", self.table());
        }
        let counted = self
            .not_measured_because
            .as_ref()
            .map(|why| format!("Counted from shapes, not measured: {why}."));
        let notes = [self.update_note(), self.limit_note(), counted];
        for note in [Some(self.verdict())].into_iter().chain(notes).flatten() {
            let _ = writeln!(text, "{}", terminal::wrapped(&note, ""));
        }
        if let Some(run) = &self.run {
            let _ = writeln!(text, "\nRun it:\n  {run}");
        }
        if let Some(confirmed) = &self.confirmed {
            let note = format!(
                "Confirmed by running it: {} {}, peak predicted {}, measured {} ({:+.1}%), which {} {}; a step took {}.",
                self.lever_name(),
                confirmed.size,
                confirmed.predicted_peak_bytes,
                confirmed.measured_peak_bytes,
                100.0
                    * (confirmed.predicted_peak_bytes.0 as f64
                        / confirmed.measured_peak_bytes.0.max(1) as f64
                        - 1.0),
                if confirmed.fits {
                    "is within"
                } else {
                    "EXCEEDS"
                },
                self.budget_bytes,
                confirmed.measured_step_s,
            );
            let _ = writeln!(text, "\n{}", terminal::wrapped(&note, ""));
        }
        text
    }

    fn lever_name(&self) -> &'static str {
        self.varied.lever.name()
    }

    fn heading(&self) -> String {
        let batch = match self.batch {
            Some(batch) => format!(", at batch {batch}"),
            None => String::new(),
        };
        let of = if self.budget_asked {
            ""
        } else if self.device == "cpu" {
            ", all that is free"
        } else {
            ", all that the device has"
        };
        format!(
            "The largest {} of {}{batch}, in {} on {}{of}.",
            self.lever_name(),
            self.config,
            self.budget_bytes,
            self.device,
        )
    }

    fn table(&self) -> String {
        let mut table = table::table(
            [
                "",
                self.lever_name(),
                "peak",
                "weights, state",
                "gradients",
                "activations",
                "x plain",
            ],
            1..7,
        );
        for way in ScheduleKind::ALL {
            match self.of(way) {
                Some(largest) => table.add_row(cells(largest)),
                None => table.add_row([way.name(), "none"]),
            }
        }
        table::dense(&mut table, 1..7);
        table.to_string()
    }

    fn verdict(&self) -> String {
        let name = self.lever_name();
        let (plain, plan) = (self.of(ScheduleKind::Plain), self.of(ScheduleKind::Plan));
        match (self.lever, plain, plan) {
            (Difference::Checkpointing, Some(plain), Some(plan)) => format!(
                "Checkpointing makes the difference: {} of the plain run's peak are activations, and a plan that drops \
                 and recomputes them reaches {:.1} times the {name}.",
                share(plain.activation_bytes, plain.predicted_peak_bytes),
                plan.size as f64 / plain.size as f64,
            ),
            (Difference::Checkpointing, None, Some(plan)) => format!(
                "Checkpointing makes the difference: plain, not even {name} 1 fits; a plan reaches {}.",
                plan.size
            ),
            (Difference::UpdateInBackward, _, Some(plan)) => format!(
                "Updating weights in the backward pass makes the difference, as each gradient is freed at once: a plan reaches \
                 {name} {}, with updates after the step {}.",
                plan.size,
                self.with_other_update
                    .map_or("none".into(), |size| format!("about {size}")),
            ),
            (Difference::Limit, Some(plain), _) => format!(
                "The limit is {}, not memory: {name} {} fits without checkpointing.",
                self.varied.limited_by, plain.size
            ),
            (Difference::None, Some(plain), _) => format!(
                "Checkpointing makes no difference: {} of the plain run's peak are activations; parameters, their \
                 gradients and the optimizer's state are there whatever is recomputed.",
                share(plain.activation_bytes, plain.predicted_peak_bytes),
            ),
            _ => format!(
                "Not even {name} 1 fits {}, plain or under any plan.",
                self.budget_bytes
            ),
        }
    }

    fn update_note(&self) -> Option<String> {
        let size = self.update_would_help()?;
        let reached = self.of(ScheduleKind::Plan).map_or(0, |plan| plan.size);
        let further = match reached {
            0 => String::new(),
            reached => format!(", {:.1} times as far", size as f64 / reached as f64),
        };
        Some(format!(
            "What would help: `--update in-backward` updates weights during the backward pass, so that each gradient is \
             freed at once. It would reach about {} {size}{further}.",
            self.lever_name(),
        ))
    }

    fn limit_note(&self) -> Option<String> {
        let plan = self.of(ScheduleKind::Plan)?;
        (plan.size >= self.varied.limit && self.lever != Difference::Limit).then(|| {
            format!(
                "The limit is {}, not memory: a plan fits {} {}.",
                self.varied.limited_by,
                self.lever_name(),
                plan.size
            )
        })
    }
}

fn cells(largest: &Largest) -> [String; 7] {
    let way = match (largest.way, largest.segments) {
        (ScheduleKind::Segments, Some(segments)) if segments > 1 => {
            format!("{segments} equal segments")
        }
        (way, _) => way.name().to_owned(),
    };
    [
        way,
        largest.size.to_string(),
        largest.predicted_peak_bytes.to_string(),
        largest.fixed_bytes.to_string(),
        largest.gradient_bytes.to_string(),
        largest.activation_bytes.to_string(),
        match largest.way {
            ScheduleKind::Plain => "1.00x".into(),
            _ => format!("{:.2}x", 1.0 + largest.overhead),
        },
    ]
}

fn share(part: Bytes, of: Bytes) -> String {
    table::percent(part.0 as f64 / of.0.max(1) as f64)
}
