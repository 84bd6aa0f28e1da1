//! `rekindle profile`: the measured chain.

use rekindle_plan::{Bytes, Chain, Request, graph::Link};
use rekindle_train::{
    device::{DeviceId, DeviceInfo},
    session::{self, Job, ScheduleRequest, Subject},
};

use super::{plan_graph::plan_elsewhere, train};
use crate::{
    args::{MeasureArgs, ProfileArgs},
    config::{self, Config, Overrides},
    failure::{Failure, Outcome},
    output,
    progress::Progress,
    summary, table, terminal,
};

/// Measures, and writes the chain.
pub fn run(args: &ProfileArgs) -> Outcome {
    let config = config::load(&args.config.config, &Overrides::from(&args.config.replace))?;
    let device = train::device(args.measure.device, &config).resolve()?;
    let count = config.count(args.measure.count);
    let step = measured(
        &args.measure,
        &config,
        &device,
        |job| Job { count, ..job },
        |job, subject| Ok(subject.measured_step(job)),
    )?;
    let text = step.to_json().map_err(Failure::other)?;
    if let Some(path) = &args.output {
        output::file(path, &text)?;
    }
    if args.json {
        output::text(&format!("{text}\n"))
    } else {
        output::text(&format!("{}{}", table(&step.chain), link(step.link())))
    }
}

/// Measures the training step of a config on a device, for the job that `complete` returns, and passes both to `then`.
pub fn measured<T>(
    args: &MeasureArgs,
    config: &Config,
    device: &DeviceInfo,
    complete: impl for<'a> FnOnce(Job<'a>) -> Job<'a>,
    then: impl FnOnce(&Job<'_>, Subject) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let data = config.open_data()?;
    let schedule = ScheduleRequest::Plan(Request::default());
    let job = Job {
        eval: data.eval.as_deref(),
        planner: (device.device == DeviceId::Cpu).then_some(plan_elsewhere),
        host: train::host(args, &config.run, device)?,
        ..Job::new(&config.model, &*data.train, &config.training, schedule)
    };
    let job = complete(job.on(device));
    note!("on {} ({})", device.device, device.name);
    let mut progress = Progress::new(0, config.training.batch);
    let subject = session::measure(&job, device.device, &mut progress);
    progress.finish()?;
    then(&job, subject?)
}

/// The link to host memory, where there is one.
fn link(link: Option<&Link>) -> String {
    match link {
        Some(link) => format!("Link to host memory: {}.\n", summary::link(link)),
        None => String::new(),
    }
}

fn table(chain: &Chain) -> String {
    let mut table = table::table(
        [
            "stage",
            "forward",
            "backward",
            "output",
            "saved",
            "temp",
            "gradients",
        ],
        1..7,
    );
    // Neighbouring stages that were measured together have the same costs and share a row.
    let mut rows: Vec<(usize, usize)> = Vec::new();
    let same = |a: usize, b: usize| {
        let (a, b) = (&chain.stages[a], &chain.stages[b]);
        (a.forward_s, a.backward_s, a.saved_bytes) == (b.forward_s, b.backward_s, b.saved_bytes)
    };
    for stage in 0..chain.stages.len() {
        match rows.last_mut() {
            Some((first, count)) if same(*first, stage) => *count += 1,
            _ => rows.push((stage, 1)),
        }
    }
    for (first, count) in rows {
        let stage = &chain.stages[first];
        let name = match count {
            1 => stage.name.clone(),
            _ => format!("{} x {count}", stage.name),
        };
        let temp = stage
            .forward_temp_bytes
            .max(stage.tracked_temp_bytes)
            .max(stage.backward_temp_bytes);
        table.add_row([
            name,
            stage.forward_s.to_string(),
            stage.backward_s.to_string(),
            stage.output_bytes.to_string(),
            stage.saved_bytes.to_string(),
            temp.to_string(),
            stage.grad_bytes.to_string(),
        ]);
    }
    let saved: Bytes = chain.stages.iter().map(|stage| stage.saved_bytes).sum();
    let gradients = chain.grad_bytes();
    let text = format!(
        "A plain step keeps {saved} for its backward pass, in {}; gradients {gradients}; fixed {}; input {}; optimizer state {}, \
         its step {}; loss {} + {}.",
        table::several(chain.stages.len(), "stage"),
        chain.fixed_bytes,
        chain.input_bytes,
        chain.optimizer.state_bytes,
        chain.optimizer.step_s,
        chain.loss.forward_s,
        chain.loss.backward_s,
    );
    format!("{table}\n\n{}\n", terminal::wrapped(&text, ""))
}
