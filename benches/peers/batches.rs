//! The batches of a run's first steps, as they train it, in a safetensors file for other programs.
//!
//! CONFIG is a config, or `config.toml` in a run's folder, which has all that was typed beside it. FILE gets `inputs`, of shape
//! `[steps, batch, ..]`, and `targets`: `[steps, predictions]` class ids, or `[steps, batch, values]` numbers.
//!
//! `cargo run --release --example batches -- CONFIG STEPS FILE`

use std::{env, error::Error, fs, path::Path};

use rekindle_train::{
    data::{Shuffled, batch::Numbers, open, settings::Source},
    settings::TrainSettings,
};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Config {
    data: Source,
    #[serde(default)]
    train: TrainSettings,
}

/// The values of one tensor, of all steps.
#[derive(Default)]
struct Values {
    dtype: &'static str,
    count: usize,
    bytes: Vec<u8>,
}

impl Values {
    fn extend(&mut self, numbers: &Numbers) {
        let (dtype, bytes): (_, Vec<u8>) = match numbers {
            Numbers::Floats(all) => ("F32", all.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Numbers::Ids(all) => ("I32", all.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        self.dtype = dtype;
        self.count += bytes.len() / 4;
        self.bytes.extend(bytes);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [config, steps, file] = arguments.as_slice() else {
        return Err("usage: batches CONFIG STEPS FILE".into());
    };
    let steps: usize = steps.parse()?;
    let text = fs::read_to_string(config)?;
    let Config { data, train } = toml::from_str(&text)?;
    // Paths of data start at the config's folder.
    let file = env::current_dir()?.join(file);
    if let Some(folder) = Path::new(config).parent().filter(|path| path.is_dir()) {
        env::set_current_dir(folder)?;
    }
    let dataset = open(&data, train.eval_split, train.seed)?.train;
    let order = Shuffled::new(dataset.len(), train.batch, train.seed)?;

    let (mut shape, mut inputs, mut targets) = (Vec::new(), Values::default(), Values::default());
    for step in 0..steps {
        let batch = dataset.batch(&order.samples(step, 0..train.batch));
        inputs.extend(&batch.inputs);
        targets.extend(&batch.targets);
        shape = batch.shape;
    }
    shape.insert(0, steps);
    let rows = match targets.dtype {
        "F32" => vec![steps, train.batch, targets.count / (steps * train.batch)],
        _ => vec![steps, targets.count / steps],
    };
    let middle = inputs.bytes.len();
    let end = middle + targets.bytes.len();
    let mut header = json!({
        "inputs": { "dtype": inputs.dtype, "shape": shape, "data_offsets": [0, middle] },
        "targets": { "dtype": targets.dtype, "shape": rows, "data_offsets": [middle, end] },
    })
    .to_string();
    // Values start at a multiple of 8.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let length = (header.len() as u64).to_le_bytes();
    let parts = [
        &length[..],
        header.as_bytes(),
        &inputs.bytes,
        &targets.bytes,
    ];
    fs::write(file, parts.concat())?;
    Ok(())
}
