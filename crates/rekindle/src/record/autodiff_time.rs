//! What burn's autodiff takes in a plain step and a recorded one does not: it builds its graph anew in every step, and
//! walks it.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use burn::{
    module::Param,
    tensor::{Device, Tensor},
};
use rekindle_plan::{Bytes, Seconds};

use super::{
    RecordError, bridge,
    cost::Costs,
    given::{given, started},
    places::Place,
    program::{Prepared, Turn, plain_order},
    update::Update,
};

/// Operations of the forward pass, on one number each, and how often they run: the quickest run counts.
const OPERATIONS: usize = 32;
const RUNS: usize = 20;

/// Seconds per operation of a step on the processor, beyond those of the interpreter. Measured once per process.
pub(super) fn per_operation(device: &Device) -> Seconds {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    Seconds(*MEASURED.get_or_init(|| measured(device).unwrap_or_default()))
}

fn measured(device: &Device) -> Result<f64, RecordError> {
    let model = Param::from_tensor(Tensor::<1>::ones([1], device));
    let step = |model: &Param<Tensor<1>>, ()| (0..OPERATIONS).fold(model.val(), |x, _| x * 0.5);
    let places = Place::of(&model);
    let (recording, ()) = bridge::take(&model, &places, &(), step, Update::After)?;
    let graph = Costs::estimated(&recording, true).graph(&recording, Bytes::ZERO);
    let prepared = Prepared::new(&recording, plain_order(&graph)?, Vec::new());
    let given = given(&recording, &model, &());
    let [mut plain, mut interpreted] = [Duration::MAX; 2];
    for _ in 0..RUNS {
        let start = Instant::now();
        drop(step(&model, ()).backward());
        plain = plain.min(start.elapsed());
        let start = Instant::now();
        let mut interpreter = started(&recording, given.clone())?;
        for (turn, ready) in prepared.turns(&recording) {
            if let Turn::Run(run) = turn {
                interpreter.run(run.operation());
                run.finish(interpreter.as_mut());
            }
            ready.hand_out(interpreter.as_mut());
        }
        interpreted = interpreted.min(start.elapsed());
    }
    let more = plain.saturating_sub(interpreted).as_secs_f64();
    Ok(more / recording.operations.len() as f64)
}
