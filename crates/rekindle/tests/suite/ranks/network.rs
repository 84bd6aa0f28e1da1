//! What ranks hold for the network, and what it takes of a step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{
    module::Module,
    optim::{AdamConfig, SgdConfig},
    tensor::Device,
};
use rekindle::{
    meter::{HostMeter, Meter, Phase},
    record::RecordError,
    reduce::{Link, Reducer, in_process, part},
};
use rekindle_plan::Bytes;

use super::{Task, WIDE, Wide, each};

#[test]
fn what_is_exchanged_is_in_the_budget() {
    own_process!();
    let device = Device::flex().autodiff();
    let meter: Arc<dyn Meter> = Arc::new(HostMeter::new().expect("installed"));
    let mut model = Wide::model(&device);
    drop(model.valid());
    let batch = Wide::batch(512, &device);
    for in_backward in [false, true] {
        let mut optimizer = AdamConfig::new().init();
        let recorded = || {
            let recorded = rekindle::record(&model, &batch, Wide::loss).expect("recorded");
            let recorded = match in_backward {
                false => recorded.with_optimizer(&optimizer),
                true => recorded.with_update_in_backward(&optimizer),
            };
            let alone = in_process(1, None).remove(0);
            recorded.with_meter(meter.clone()).with_reducer(alone)
        };
        let smallest = match recorded().within(Bytes(1)) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{:?}", other.err()),
        };
        let budget = smallest + Bytes(1 << 20);
        let step = recorded().within(budget).expect("planned");
        for _ in 0..2 {
            meter.start_interval();
            let predicted = if in_backward {
                let output = step.run_updating(&mut model, batch.clone(), 1e-3, &mut optimizer);
                output.expect("run").predicted_peak
            } else {
                let output = step.run(&model, batch.clone()).expect("run");
                model = optimizer.step(1e-3, model, output.gradients);
                output.predicted_peak
            };
            let peak = meter.read().peak_in_use_bytes;
            eprintln!("in backward {in_backward}: {peak}, predicted {predicted}, budget {budget}");
            assert!(peak <= budget && peak <= predicted);
        }
    }
}

/// Prints what a slow link takes of a step beside what is predicted: with buckets that are complete at equal
/// distances, all but the last are hidden by the rest of the backward pass, as far as that lasts.
#[test]
fn a_slow_link_changes_no_loss() {
    const RANKS: usize = 2;
    let link = Link {
        latency: Duration::from_micros(100),
        bytes_per_second: 200e6,
    };
    let device = Device::flex().autodiff();
    let model = Wide::model(&device);
    drop(model.valid());
    let batch = Wide::batch(64, &device);
    let run = |link: Option<Link>| {
        let mut results = each(in_process(RANKS, link), |rank| {
            let own = Wide::part(&batch, part(64, rank.rank(), RANKS));
            let model = model.valid().train();
            let recorded = rekindle::record(&model, &own, Wide::loss).expect("recorded");
            let recorded = recorded.with_optimizer(&SgdConfig::new().init());
            let step = recorded.with_reducer(rank).plain().expect("planned");
            drop(step.run(&model, own.clone()).expect("run"));
            let started = Instant::now();
            let output = step.run(&model, own).expect("run");
            let time = started.elapsed();
            let backward = output
                .phases
                .iter()
                .find(|one| one.phase == Phase::Backward);
            let backward = backward.map_or(Duration::ZERO, |phase| {
                Duration::from_secs_f64(phase.seconds_s)
            });
            (
                output.loss.into_scalar::<f32>(),
                time,
                backward,
                output.waited,
            )
        });
        results.remove(0)
    };
    let (loss, plain, backward, waited) = run(None);
    let (slow_loss, slow, _, slow_waited) = run(Some(link));
    assert_eq!(loss.to_bits(), slow_loss.to_bits());
    let one = link.all_reduce(WIDE * WIDE * size_of::<f32>(), RANKS);
    let backward = backward.saturating_sub(waited);
    let predicted = plain + (one * 3).saturating_sub(backward * 3 / 4) + one;
    eprintln!(
        "{plain:?} without a link, {slow:?} with ({slow_waited:?} of it waiting), predicted {predicted:?}"
    );
}
