//! `rekindle profile`: the measured chain.

use rekindle_plan::{Bytes, Chain, Request};
use rekindle_train::{
    data::Split,
    device::{DeviceId, DeviceInfo},
    session::{self, Engine, Job, ScheduleRequest},
};

use super::{plan_graph::plan_elsewhere, train};
use crate::{
    args::ProfileArgs,
    config::{self, Config},
    failure::{Failure, Outcome},
    output,
    progress::Progress,
    summary,
    table::several,
    terminal,
};

/// Measures, and writes the chain.
pub fn run(args: &ProfileArgs) -> Outcome {
    output::check_spared(args.output.as_deref(), [&args.config.config])?;
    let config = config::load(&args.config.training(args.measure.clone()))?;
    let device = config.device().resolve()?;
    let data = config.open_data()?;
    let job = job(&config, &device, &data)?;
    let step = measured(&job, &device)?.measured_step(&job);
    let text = step.to_json().map_err(Failure::other)?;
    if let Some(path) = &args.output {
        output::named_file(path, &text)?;
    }
    if args.answer.json {
        output::text(&format!("{text}\n"))
    } else {
        output::text(&table(&step.chain))
    }
}

/// The training of a config on a device, of which one step is to be measured.
pub fn job<'a>(
    config: &'a Config,
    device: &'a DeviceInfo,
    data: &'a Split,
) -> Result<Job<'a>, Failure> {
    let schedule = ScheduleRequest::Plan(Request::default());
    Ok(Job {
        device: Some(device),
        eval: data.eval.as_deref(),
        planner: (device.device == DeviceId::Cpu).then_some(plan_elsewhere),
        host: train::host(&config.run, device)?,
        count: config.count(),
        ..Job::new(&config.model, &*data.train, &config.training, schedule)
    })
}

/// Measures the job's step.
pub fn measured(job: &Job<'_>, device: &DeviceInfo) -> Result<Engine, Failure> {
    note!("on {} ({})", device.device, device.name);
    let mut progress = Progress::new(0, job.settings.batch);
    let measured = session::measure(job, device.device, &mut |event| progress.tell(event));
    progress.finish()?;
    Ok(measured?)
}

fn table(chain: &Chain) -> String {
    let saved: Bytes = chain.stages.iter().map(|stage| stage.saved_bytes).sum();
    let text = format!(
        "A plain step keeps {saved} of {}; gradients {}, fixed {}, optimizer state {}.",
        several(chain.stages.len(), "stage"),
        chain.grad_bytes(),
        chain.fixed_bytes,
        chain.optimizer.state_bytes,
    );
    format!(
        "{}\n\n{}\n",
        summary::stages(&chain.stages),
        terminal::wrapped(&text, "")
    )
}
