use std::time::Duration;

use rekindle_plan::Bytes;
use rekindle_train::{
    model::spec::{Padding, PoolSpec},
    run_dir::SnapshotEvery,
    settings::{OptimizerKind, RateSchedule, UpdateChoice},
};

use super::*;
use crate::{
    args::{MeasureArgs, ReplaceArgs},
    mutated,
};
use rekindle::size::Size;

const SYNTHETIC: &str = "[data]\nsynthetic = { shape = [1, 8, 8], target = { classes = 3 } }\n";

fn config(text: &str) -> Config {
    parse(text, Path::new("folder"), &TrainArgs::default()).expect("a config")
}

/// The message, the marked text and the help of a config that is refused.
fn problem(text: &str) -> (String, String, String) {
    let problem = parse(text, Path::new(""), &TrainArgs::default()).expect_err("a problem");
    (
        problem.message,
        text[problem.span.expect("a place")].to_owned(),
        problem.help.unwrap_or_default(),
    )
}

/// A model of these layers, ended so that it fits the synthetic data.
fn with_layers(layers: &str) -> String {
    format!("{SYNTHETIC}[model]\nlayers = [{layers} 'flatten', {{ linear = {{ out = 3 }} }}]\n")
}

fn with_train(lines: &str) -> String {
    format!("{}[train]\n{lines}\n", with_layers(""))
}

#[test]
fn what_is_left_out_has_the_usual_value() {
    let config = config(
        "[data]\ntext = { files = ['a.txt'], window = 4 }\n\
         [model]\nlayers = [{ embedding = { dim = 8 } }, 'flatten', { linear = { out = 256 } }]",
    );
    assert_eq!(config.model.input, SampleShape::tokens([4]));
    let embedding = LayerSpec::Embedding { vocab: 256, dim: 8 };
    let linear = LayerSpec::Linear {
        out: 256,
        bias: true,
    };
    assert_eq!(config.model.layers, [embedding, LayerSpec::Flatten, linear]);
    let Source::Text { files, .. } = &config.data else {
        panic!("text was asked for");
    };
    assert_eq!(files, &[Path::new("folder").join("a.txt")]);
    assert_eq!(config.training, TrainSettings::default().resolved());
    assert_eq!(config.run, RunKeys::default());
}

const LAYERS: &str = "{ conv2d = { out = 4, kernel = 3, padding = 'same' } },
    { conv2d = { out = 4, kernel = [3, 1], stride = 1, padding = [1, 0], bias = false } },
    'batch_norm',
    { residual = ['relu', 'gelu', { residual = ['tanh'] }] },
    { max_pool2d = { kernel = 2 } },
    { avg_pool2d = { kernel = 3, stride = 1, padding = 1 } },
    'layer_norm', { dropout = { p = 0.1 } },
    { repeat = { times = 2, layers = ['tanh', { repeat = { times = 2, layers = ['relu'] } }] } },";

#[test]
fn every_layer_is_read() {
    let layers = config(&with_layers(LAYERS)).model.layers;
    let conv = |kernel, padding, bias| LayerSpec::Conv2d {
        out: 4,
        kernel,
        stride: [1, 1],
        padding,
        bias,
    };
    let inner = LayerSpec::Residual(vec![LayerSpec::Tanh]);
    let pool = |kernel, stride: Option<usize>, padding| PoolSpec {
        kernel: [kernel; 2],
        stride: stride.map(|stride| [stride; 2]),
        padding: [padding; 2],
    };
    let wanted = [
        conv([3, 3], Padding::Same, true),
        conv([3, 1], Padding::Explicit([1, 0]), false),
        LayerSpec::BatchNorm,
        LayerSpec::Residual(vec![LayerSpec::Relu, LayerSpec::Gelu, inner]),
        LayerSpec::MaxPool2d(pool(2, None, 0)),
        LayerSpec::AvgPool2d(pool(3, Some(1), 1)),
        LayerSpec::LayerNorm,
        LayerSpec::Dropout { p: 0.1 },
        LayerSpec::Tanh,
        LayerSpec::Relu,
        LayerSpec::Relu,
    ];
    assert_eq!(layers[..11], wanted);
    assert_eq!(layers.len(), 11 + 3 + 2);
}

const TRAIN: &str = "optimizer = 'sgd'\nmomentum = 0.9\nclip_norm = 1\nlearning_rate = 0.1\n\
    schedule = 'warmup-cosine'\nwarmup_steps = 5\nfinal_rate = 0.01\neval_every = 7\n\
    eval_split = 0.2\nupdate = 'in-backward'\nloss_scale = 1024\nseed = 18446744073709551615";

const RUN: &str = "[run]\nbudget = '1.5GB'\nplanner = 'optimal'\ndevice = 'cuda:1'\n\
    snapshot_every = '30min'\nkeep_snapshots = 4";

#[test]
fn training_and_run_are_read() {
    let config = config(&(with_train(TRAIN) + RUN));
    let wanted = TrainSettings {
        optimizer: OptimizerKind::Sgd,
        momentum: 0.9,
        weight_decay: Some(0.0),
        clip_norm: Some(1.0),
        learning_rate: Some(0.1),
        schedule: RateSchedule::WarmupCosine,
        warmup_steps: Some(5),
        final_rate: 0.01,
        eval_every: Some(7),
        eval_split: 0.2,
        update: UpdateChoice::InBackward,
        loss_scale: rekindle_train::settings::LossScale::Fixed(1024.0),
        seed: u64::MAX,
        ..TrainSettings::default()
    };
    assert_eq!(config.training, wanted);
    let run = config.run;
    assert_eq!(run.budget, Some(Size::Bytes(Bytes(1_500_000_000))));
    assert_eq!(run.device, "cuda:1".parse().ok());
    let half_an_hour = SnapshotEvery::Time(Duration::from_secs(1_800));
    assert_eq!(run.snapshot_every, Some(half_an_hour));
    assert_eq!(run.keep_snapshots, Some(4));
    let steps = self::config(&(with_layers("") + "[run]\nsnapshot_every = 500\n"));
    assert_eq!(steps.run.snapshot_every, Some(SnapshotEvery::Steps(500)));
}

/// A run continues with what it keeps of its config and of what was typed, wherever that is read.
#[test]
fn a_whole_config_is_read_as_the_same() {
    let text = "[data]\ntext = { files = ['a.txt'], window = 4 }\n\
        [model]\nlayers = [{ embedding = { dim = 8 } }, 'flatten', { linear = { out = 256 } }]\n\
        [run]\nplan = 'plan.json'";
    let deep = "{ repeat = { times = 2, layers = ['relu'] } },";
    let typed = TrainArgs {
        steps: Some(7),
        measure: MeasureArgs {
            count: Some(Count::InUse),
            ..MeasureArgs::default()
        },
        ..TrainArgs::default()
    };
    for text in [
        text.to_owned(),
        with_layers(deep),
        with_layers(LAYERS),
        with_train(TRAIN) + RUN,
    ] {
        let before = parse(&text, Path::new("folder"), &typed).expect("a config");
        let whole = before.whole(&std::env::temp_dir()).expect("TOML");
        let again = config(&whole);
        assert_eq!(again.model, before.model, "{whole}");
        assert_eq!(again.written, before.written, "{whole}");
        assert_eq!(again.training, before.training, "{whole}");
        assert_eq!(again.count(), Count::InUse);
        // Its paths are absolute.
        let elsewhere = again.whole(Path::new("elsewhere")).expect("TOML");
        assert_eq!(elsewhere, whole);
    }
}

#[test]
fn defaults_follow_from_other_keys() {
    let rate = |lines: &str| {
        let training = config(&with_train(lines)).training;
        (
            training.learning_rate,
            training.warmup_steps,
            training.weight_decay,
        )
    };
    assert_eq!(rate("optimizer = 'sgd'"), (Some(1e-2), None, Some(0.0)));
    assert_eq!(rate("optimizer = 'adamw'"), (Some(1e-3), None, Some(1e-2)));
    assert_eq!(
        rate("steps = 60\nschedule = 'warmup-cosine'"),
        (Some(1e-3), Some(3), Some(0.0))
    );
}

/// Where it is written, what, the message (or how it starts, before `..`), the marked text, and the help or a part of it.
const REFUSED: &str = r#"
train | bacth = 4 | unknown key `bacth` | bacth | did you mean `batch`?
train | zzz = 4 | unknown key `zzz` | zzz | docs/config.md describes them
train | batch = 4\nbatch = 4 | duplicate key | batch
train | optimizer = 'addam' | unknown name `addam` | 'addam' | did you mean `adam`?
train | steps = 0 | `steps` must be at least 1 | 0
train | steps = -3 | invalid value: integer `-3`, expected a whole number | -3
train | batch = 1.5 | invalid type: floating point `1.5`, expected a whole number | 1.5
train | batch = '8' | invalid type: string "8", expected a whole number | '8'
train | dtype = 'fp16' | unknown name `fp16` | 'fp16' | did you mean `f16`?
train | learning_rate = nan | `learning_rate` must be a number above 0 | nan
train | learning_rate = -inf | `learning_rate` must be a number above 0 | -inf
train | learning_rate = 1e999 | floating-point number overflowed | 1e999
train | betas = [0.9, 1.0] | `betas` must be at least 0 and below 1 | [0.9, 1.0]
train | optimizer = 'sgd'\nmomentum = -0.1 | `momentum` must be at least 0 and below 1 | -0.1
train | momentum = 0.9 | `momentum` belongs to `optimizer = "sgd"` | 0.9
train | optimizer = 'sgd'\nepsilon = 1e-6 | `epsilon` belongs to `optimizer = "adam"` and `"adamw"` | 1e-6
train | warmup_steps = 9 | `warmup_steps` belongs to `schedule = "warmup-cosine"` | 9
train | schedule = 'warmup-cosine'\nfinal_rate = 1e-2 | `final_rate` must be at least 0 and at most `learning_rate` | 1e-2
train | batch = 4\naccumulate = 3 | `accumulate` does not divide the batch of 4 | 3
train | clip_norm = 0 | `clip_norm` must be a number above 0 | 0
train | loss_scale = 'dynamc' | expected a number above 0, "auto", "dynamic" or "none" | 'dynamc' | did you mean `dynamic`?
train | loss_scale = -1 | `loss_scale` must be a number above 0 | -1
train | loss_chunks = 2.5 | expected a number of chunks, "auto" or "whole" | 2.5
train | seed = -1 | invalid value: integer `-1`, expected a whole number | -1
train | eval_every = 0 | `eval_every` must be at least 1 | 0
train | eval_split = 1.0 | `eval_split` must be at least 0 and below 1 | 1.0
layer | { conv2d = { kernel = 3 } }, | missing field `out` | { kernel = 3 }
layer | { conv2d = { out = 3, kernal = 3 } }, | unknown key `kernal` | kernal | did you mean `kernel`?
layer | { conv2 = { out = 3, kernel = 3 } }, | unknown name `conv2` | conv2 | did you mean `conv2d`?
layer | 'rleu', | unknown name `rleu` | 'rleu' | did you mean `relu`?
layer | 'conv2d', | the name alone is not enough: it needs a value, `{ name = .. }` | 'conv2d'
layer | 'residual', | the name alone is not enough: it needs a value, `{ name = .. }` | 'residual'
layer | { layer_norm = { epsilon = 1e-3 } }, | it has no keys: its name alone is enough | { epsilon = 1e-3 }
layer | { linear = 3 }, | invalid type: integer `3`, expected a table of the layer's keys | 3
layer | { linear = { out = 3 }, bias = false }, | more than one key, but this table has exactly one | { linear = { out = 3 }, bias = false }
layer | { type = 'linear', out = 3 }, | more than one key, but this table has exactly one | { type = 'linear', out = 3 }
layer | { type = 'relu' }, | unknown name `type` | type
layer | { residual = ['relu', { tahn = {} }] }, | unknown name `tahn` | tahn | did you mean `tanh`?
layer | { conv2d = { out = 1, kernel = [3, 1, 1] } }, | expected a whole number, or a pair of them | [3, 1, 1]
layer | { conv2d = { out = 1, kernel = 3, padding = 'full' } }, | expected "same", a whole number, or a pair of them | 'full'
layer | 'relu', { repeat = { times = 0, layers = ['relu'] } }, | `times` must be at least 1 | { repeat = { times = 0, layers = ['relu'] } }
layer | { dropout = { p = 1.0 } }, | layer 0 (dropout) got [1, 8, 8]: `p` is 1; it must be at least 0 and less than 1 | { dropout = { p = 1.0 } }
layer | { embedding = { dim = 3 } }, | layer 0 (embedding) got [1, 8, 8]: it needs token ids, not numbers; an embedding comes first, on an input of token ids | { embedding = { dim = 3 } }
layers | 'flatten', { linear = { out = 2 } } | the model gives [2], but cross entropy needs one number for each of the data's 3 classes: [3] | { linear = { out = 2 } } | end with { linear = { out = 3 } }
layers | 'relu' | the model gives [1, 8, 8], but cross entropy needs one number for each of the data's 3 classes: [3] | 'relu' | end with "flatten", { linear = { out = 3 } }
model | [model]\ninput = [1, 4, 4] | `input` must be [1, 8, 8], the shape of the data's samples | [1, 4, 4] | leave `input` out: it follows from the data
data | { classs = 3 } | unknown name `classs` | classs | did you mean `classes`?
data | { classes = 3, values = 1 } | more than one key, but this table has exactly one | { classes = 3, values = 1 }
data | {} | no key, but this table has exactly one | {}
data | 3 | expected a name or a table | 3
data | { classes = 0 } | `target` must be at least 1 | { classes = 0 }
layer | 'flatten', { repeat = { times = 2, layers = ['relu', { max_pool2d = { kernel = 2 } }] } }, | layer 2 (max_pool2d) got [64]: it needs.. | { max_pool2d = { kernel = 2 } }
layer | { repeat = { times = 3, layers = ['tanh', 'relu'] } }, { residual = [{ repeat = { times = 2, layers = ['relu'] } }, { conv2d = { out = 1, kernel = 9 } }] }, | layer 6.2 (conv2d) got [1, 8, 8]: a kernel of [9, 9] does not fit.. | { conv2d = { out = 1, kernel = 9 } }
all | [data]\ntext = { files = ['a'], window = 4 }\n[model]\nlayers = [{ embedding = { vocab = 9, dim = 2 } }, 'flatten', { linear = { out = 256 } }] | `vocab` is 9, but must be at least 256.. | { embedding = { vocab = 9, dim = 2 } }
all | data = 3\nmodel = 3 | expected a name or a table | 3
end | [run]\nbudget = '512' | `512` has no unit: write `512MiB` (2^20 bytes), `512MB` (10^6), `512GiB`, `512B` or `512%` | '512'
end | [run]\nbudget = 512 | `512` has no unit: write `512MiB` (2^20 bytes), `512MB` (10^6), `512GiB`, `512B` or `512%` | 512
end | [run]\nsegments = 2\nbudget = '1GiB' | `budget` stands beside `segments`: keep one of the two | '1GiB'
end | [run]\nplan = 'a.json'\nplanner = 'optimal' | `planner` stands beside `plan`: keep one of the two | 'optimal'
end | [run]\nplanner = 'best' | unknown planner `best`: expected none, segments, optimal or auto | 'best'
end | [run]\ndevice = 'gpu' | unknown device `gpu`: expected auto, cpu, cuda, cuda:N, wgpu or wgpu:N | 'gpu'
end | [run]\nsegments = 0 | `segments` must be at least 1 | 0
end | [run]\nkeep_snapshots = 0 | `keep_snapshots` must be at least 1 | 0
end | [run]\nsnapshot_every = '10 steps' | "10 steps" is not a time such as "90s", "10min" or "2h" | '10 steps'
end | [runs]\nsegments = 2 | unknown key `runs` | runs | did you mean `run`?
"#;

#[test]
fn what_is_wrong_is_named_and_marked() {
    let mut wrong = String::new();
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let text = columns[1].replace("\\n", "\n");
        let config = match columns[0] {
            "layer" => with_layers(&text),
            "all" => text,
            "layers" => format!("{SYNTHETIC}[model]\nlayers = [{text}]\n"),
            "train" => with_train(&text),
            "data" => with_layers("").replace("{ classes = 3 }", &text),
            "model" => with_layers("").replace("[model]", &text),
            _ => with_layers("") + &text,
        };
        let (message, marked, help) = problem(&config);
        let helps = columns.get(4).is_none_or(|wanted| help.contains(wanted));
        let said = match columns[2].strip_suffix("..") {
            Some(start) => message.starts_with(start),
            None => message == columns[2],
        };
        if !said || marked != columns[3] || !helps {
            wrong += &format!("{line}\n  {message} | {marked} | {help}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_is_not_toml_is_marked() {
    for text in ["[data", "a = ", "[data]\n[data]", "x = 'é", "\u{0}"] {
        let (message, _, _) = problem(text);
        assert!(!message.is_empty(), "{text:?}");
    }
    assert_eq!(problem("").0, "missing field `data`");
}

/// Layers inside residuals count, and so do groups inside groups.
#[test]
fn a_model_has_no_more_layers_than_can_be_planned() {
    let group = |times: u64, layers: &str| {
        format!("{{ repeat = {{ times = {times}, layers = [{layers}] }} }}")
    };
    for layers in [
        group(30, &group(30, &group(30, "'relu'"))),
        group(200, &format!("{{ residual = [{}] }}", group(200, "'relu'"))),
        group(20_001, "'relu'"),
        group(1_000_000_000, &group(1_000, "'relu'")),
    ] {
        let (message, marked, _) = problem(&with_layers(&(layers.clone() + ",")));
        assert_eq!(message, "a model has at most 20000 layers here");
        assert_eq!(marked, layers);
    }
    let deep = with_layers(&(group(4, "'relu', { residual = ['relu', 'tanh'] }") + ","));
    let with_depth = |depth| {
        let replace = ReplaceArgs {
            depth: Some(depth),
            ..ReplaceArgs::default()
        };
        let typed = TrainArgs {
            replace,
            ..TrainArgs::default()
        };
        parse(&deep, Path::new(""), &typed)
    };
    let refused = with_depth(5_001);
    let refused = refused.expect_err("too deep");
    assert!(refused.span.is_none() && refused.message.contains("20000 layers"));
    let deeper = with_depth(5).expect("a config");
    assert_eq!(deeper.model.layers.len(), 12);
}

const ALL: &str = include_str!("../../../../configs/parity/conv.toml");

/// Sweeps, comparisons and reports read records.
#[test]
fn a_model_is_read_back_from_a_record() {
    let model = config(ALL).model;
    let record = serde_json::to_string(&model).expect("JSON");
    let read: ModelSpec = serde_json::from_str(&record).expect("a model");
    assert_eq!(read, model);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::with_cases(400)
    })]

    #[test]
    fn damaged_configs_are_read_or_refused(edits in mutated::edits()) {
        let bytes = mutated::edited(ALL.as_bytes(), &edits);
        let text = String::from_utf8_lossy(&bytes);
        if let Err(problem) = parse(&text, Path::new(""), &TrainArgs::default()) {
            // The place is one that the text has, and the report is drawn.
            let place = problem.span.clone().and_then(|span| text.get(span));
            assert!(place.is_some(), "{problem:?}");
            let report = problem.in_config(Path::new("run.toml"), &text).report();
            assert!(!format!("{report:?}").contains('\u{7}'));
        }
    }
}
