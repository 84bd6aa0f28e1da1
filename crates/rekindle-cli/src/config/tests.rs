use std::time::Duration;

use rekindle_plan::Bytes;
use rekindle_train::{
    model::spec::{LayerSpec, Padding, PoolSpec},
    run_dir::SnapshotEvery,
    settings::{Clip, LearningRate, LossKind, OptimizerSettings},
    update::UpdateChoice,
};

use super::*;
use crate::mutated;
use rekindle::size::Size;

const SYNTHETIC: &str =
    "[data]\ntype = \"synthetic\"\nshape = [1, 8, 8]\ntarget = { classes = 3 }\n";

fn config(text: &str) -> Config {
    match parse(text, Path::new("folder"), &Overrides::default()) {
        Ok(config) => config,
        Err(mistake) => panic!("{mistake:?}"),
    }
}

/// The message, the marked text and the help of a config that is refused.
fn problem(text: &str) -> (String, String, String) {
    match parse(text, Path::new(""), &Overrides::default()) {
        Err(Mistake::File(problem)) => (
            problem.message,
            text[problem.span].to_owned(),
            problem.help.unwrap_or_default(),
        ),
        Err(Mistake::Arguments(message)) => panic!("{message}"),
        Ok(_) => panic!("nothing was wrong with {text}"),
    }
}

/// A model of these layers, ended so that it fits the synthetic data.
fn with_layers(layers: &str) -> String {
    format!(
        "{SYNTHETIC}[model]\nlayers = [{layers} \"flatten\", {{ type = \"linear\", out = 3 }}]\n"
    )
}

fn with_train(lines: &str) -> String {
    format!("{}[train]\n{lines}\n", with_layers(""))
}

#[test]
fn what_is_left_out_has_the_usual_value() {
    let config = config(
        "[data]\ntype = 'text'\nfiles = ['a.txt']\nwindow = 4\n\
         [model]\nlayers = [{ type = 'embedding', dim = 8 }, 'flatten', { type = 'linear', out = 256 }]",
    );
    assert_eq!(config.model.input, SampleShape::tokens([4]));
    assert_eq!(
        config.model.layers[0],
        LayerSpec::Embedding { vocab: 256, dim: 8 }
    );
    assert_eq!(
        config.model.layers[2],
        LayerSpec::Linear {
            out: 256,
            bias: true
        }
    );
    assert_eq!(config.data.eval_split, 0.1);
    let Source::Text { files, .. } = &config.data.source else {
        panic!("text was asked for");
    };
    assert_eq!(files, &[Path::new("folder").join("a.txt")]);
    assert_eq!((config.training.steps, config.training.batch), (100, 32));
    assert_eq!(config.training.loss, LossKind::CrossEntropy);
    assert_eq!(
        config.training.optimizer,
        OptimizerSettings::Adam {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.0
        }
    );
    assert_eq!(
        config.training.learning_rate,
        LearningRate::Constant { rate: 1e-3 }
    );
    assert_eq!(config.run, RunKeys::default());
}

#[test]
fn every_layer_is_read() {
    let layers = config(&with_layers(
        "{ type = 'conv2d', out = 4, kernel = 3, padding = 'same' },
         { type = 'conv2d', out = 4, kernel = [3, 1], stride = 1, padding = [1, 0], bias = false },
         { type = 'batch_norm', momentum = 0.2 },
         { type = 'residual', layers = ['relu', 'gelu', { type = 'residual', layers = ['tanh'] }] },
         { type = 'max_pool2d', kernel = 2 },
         { type = 'avg_pool2d', kernel = 3, stride = 1, padding = 1 },
         { type = 'zero_pad', padding = [1, 2] },
         { type = 'layer_norm' }, { type = 'dropout', p = 0.1 }, 'sigmoid', 'softmax',
         { type = 'reshape', shape = [6, 32] },",
    ))
    .model
    .layers;
    let conv = |kernel, padding, bias| LayerSpec::Conv2d {
        out: 4,
        kernel,
        stride: [1, 1],
        padding,
        bias,
    };
    let norm = LayerSpec::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.2,
    };
    let residual = |layers: Vec<LayerSpec>| LayerSpec::Residual { layers };
    let inner = residual(vec![LayerSpec::Tanh]);
    let pool = |kernel, stride, padding| PoolSpec {
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
    };
    let padding = [1, 1, 2, 2];
    let wanted = [
        conv([3, 3], Padding::Same, true),
        conv([3, 1], Padding::Explicit([1, 0]), false),
        norm,
        residual(vec![LayerSpec::Relu, LayerSpec::Gelu, inner]),
        LayerSpec::MaxPool2d(pool(2, 2, 0)),
        LayerSpec::AvgPool2d(pool(3, 1, 1)),
        LayerSpec::ZeroPad { padding },
    ];
    assert_eq!(layers[..7], wanted);
    assert_eq!(layers.len(), 14);
}

#[test]
fn groups_and_layers_repeat() {
    let layers = config(&with_layers(
        "'flatten', { repeat = 3, layers = [{ type = 'linear', out = 8 }, { repeat = 2, type = 'relu' }] },",
    ))
    .model
    .layers;
    assert_eq!(layers.len(), 1 + 3 * 3 + 2);
    assert_eq!(layers[8..10], [LayerSpec::Relu, LayerSpec::Relu]);
}

#[test]
fn training_and_run_are_read() {
    let config = config(
        &(with_train(
            "optimizer = { type = 'sgd', momentum = 0.9 }\nclip = { type = 'global_norm', max = 1 }\n\
             learning_rate = { type = 'warmup_cosine', rate = 0.1, warmup_steps = 5, final_rate = 0.01 }\neval_every = 7\nupdate = 'in-backward'",
        ) + "[run]\nbudget = '1.5GB'\nplanner = 'optimal'\ndevice = 'cuda:1'"),
    );
    let training = config.training;
    assert_eq!(
        training.optimizer,
        OptimizerSettings::Sgd {
            momentum: 0.9,
            weight_decay: 0.0
        }
    );
    assert_eq!(training.clip, Some(Clip::GlobalNorm { max: 1.0 }));
    assert_eq!(
        training.learning_rate,
        LearningRate::WarmupCosine {
            rate: 0.1,
            warmup_steps: 5,
            final_rate: 0.01
        }
    );
    assert_eq!(training.eval_every, Some(7));
    assert_eq!(training.update, UpdateChoice::InBackward);
    assert_eq!(config.run.budget, Some(Size::Bytes(Bytes(1_500_000_000))));
    assert_eq!(config.run.device.as_deref(), Some("cuda:1"));
}

#[test]
fn arguments_replace_what_the_config_says() {
    let text = "[data]\ntype = 'mnist'\nfolder = 'm'\n\
                [model]\ninput = [1, 4, 4]\nlayers = ['flatten', { type = 'linear', out = 10 }]";
    let load = |replace: ReplaceArgs| parse(text, Path::new(""), &Overrides::from(&replace));
    let synthetic = load(ReplaceArgs {
        data: Some("synthetic".into()),
        batch: Some(3),
        ..ReplaceArgs::default()
    })
    .expect("a config that loads");
    assert_eq!(synthetic.training.batch, 3);
    assert_eq!(
        synthetic.data.source.sample_shape(),
        SampleShape::float([1, 4, 4])
    );
    let moved = load(ReplaceArgs {
        data_dir: Some("other".into()),
        ..ReplaceArgs::default()
    })
    .expect("a config that loads");
    assert_eq!(
        moved.data.source,
        Source::Mnist {
            folder: "other".into()
        }
    );
    let zero = load(ReplaceArgs {
        batch: Some(0),
        ..ReplaceArgs::default()
    });
    assert!(matches!(zero, Err(Mistake::Arguments(_))));
}

/// What is wrong, a line each: where the text stands, the text, the message, the marked part, and the help (`-`: none) where
/// it is compared.
const REFUSED: &str = r#"
layer | { type = 'liner', out = 3 }, | unknown layer type `liner` | 'liner' | did you mean `linear`?
layer | { type = 'linear', outs = 3 }, | unknown key `outs` in layer `linear` | outs | did you mean `out`, which is required here?
layer | { type = 'dropout', q = 0.1 }, | unknown key `q` in layer `dropout` | q | known keys here: repeat, type, p; docs/config.md describes them
layer | 'linear', | layer `linear` has no `out` | 'linear' | -
layer | { tpye = 'relu' }, | unknown key `tpye` in a layer | tpye | did you mean `type`, which is required here?
layer | { repeat = 2, layer = ['relu'] }, | unknown key `layer` in a layer | layer | did you mean `layers`, which is required here?
target | { clases = 3 } | unknown key `clases` in `target` | clases | did you mean `classes`, which is required here?
model | [modle] | unknown key `modle` in the config | modle | did you mean `model`, which is required here?
train | clip = { type = 'norm', maxx = 1 } | unknown key `maxx` in `clip` | maxx | did you mean `max`, which is required here?
train | step = 3 | unknown key `step` in [train] | step | did you mean `steps`?
train | optimizer = 'addam' | `optimizer` must be sgd, adam or adamw | 'addam' | did you mean `adam`?
end | [trian] | unknown key `trian` in the config | trian | did you mean `train`?

layer | 3, | `layers` must be a table or a name in quotes | 3
layer | { repeat = 2 }, | a layer has no `type` | { repeat = 2 }
layer | { type = 'conv2d', out = 3, kernel = [1, 2, 3] }, | `kernel` must be a whole number or a pair of them | [1, 2, 3]
layer | { type = 'zero_pad', padding = [1, 2, 3] }, | `padding` must be a whole number, [rows, columns] or [top, bottom, left, right] | [1, 2, 3]
layer | { type = 'max_pool2d', kernel = 2, padding = 'same' }, | `padding` must be valid | 'same'
target | { classes = 3, values = 1 } | `target` must be one of { classes = N }, { token_classes = N } and { values = N } | { classes = 3, values = 1 }
target | { type = 'regression', classes = 3 } | `target` has no `values` | { type = 'regression', classes = 3 }
train | optimizer = { momentum = 0.9 } | `optimizer` has no `type` | { momentum = 0.9 }
train | learning_rate = 'fast' | `learning_rate` must be a number above 0 or a table | 'fast'
end | [run]\nbudget = 512 | `budget` must be a size such as "2GiB" | 512

train | batch = 4\naccumulate = 3 | `accumulate` is 3, which does not divide the batch of 4 | 3
train | learning_rate = { type = 'warmup_cosine', rate = 1e-3, final_rate = 1e-2 } | `final_rate` must be at least 0 and at most `rate` | 1e-2
layer | { type = 'embedding', dim = 3 }, | layer `embedding` has no `vocab`, and the data has no token ids to count | { type = 'embedding', dim = 3 }
layers | 'flatten', { type = 'linear', out = 2 } | the model gives [2], but cross_entropy needs one number for each of the data's 3 classes: [3] | { type = 'linear', out = 2 } | end with { type = "linear", out = 3 }
layers | 'relu' | the model gives [1, 8, 8], but cross_entropy needs one number for each of the data's 3 classes: [3] | 'relu' | end with { type = "flatten" }, { type = "linear", out = 3 }
train | loss = 'mean_squared_error' | `loss` must be cross_entropy: the data's targets are classes | 'mean_squared_error'
model | [model]\ninput = [1, 4, 4] | `input` must be [1, 8, 8], the shape of the data's samples | [1, 4, 4]
end | [run]\nsegments = 2\nbudget = '1GiB' | [run] has both `segments` and `budget` | '1GiB'
end | [run]\nplan = 'a.json'\nplanner = 'optimal' | [run] has both `plan` and `planner` | 'optimal'

train | steps = 0 | `steps` must be at least 1 | 0
train | steps = -3 | `steps` must be a whole number that is not negative | -3
train | batch = 1.5 | `batch` must be a whole number | 1.5
train | dtype = 'fp16' | `dtype` must be f32, f16 or bf16 | 'fp16'
train | batch = '8' | `batch` must be a whole number | '8'
train | learning_rate = nan | `learning_rate` must be a number above 0 | nan
train | learning_rate = -inf | `learning_rate` must be a number above 0 | -inf
train | learning_rate = -1e-3 | `learning_rate` must be a number above 0 | -1e-3
train | learning_rate = 1e999 | `learning_rate` must be a number above 0 | 1e999
train | optimizer = { type = 'adam', betas = [0.9, 1.0] } | `betas` must be at least 0 and below 1 | 1.0
train | optimizer = { type = 'sgd', momentum = -0.1 } | `momentum` must be at least 0 and below 1 | -0.1
train | clip = { type = 'norm', max = 0 } | `max` must be a number above 0 | 0
train | seed = -1 | `seed` must be a whole number that is not negative | -1
train | eval_every = 0 | `eval_every` must be at least 1 | 0
layer | 'flatten', { repeat = 0, type = 'relu' }, | `repeat` must be at least 1 | 0
"#;

#[test]
fn what_is_wrong_is_named_and_marked() {
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let text = columns[1].replace("\\n", "\n");
        let config = match columns[0] {
            "layer" => with_layers(&text),
            "layers" => format!("{SYNTHETIC}[model]\nlayers = [{text}]\n"),
            "train" => with_train(&text),
            "target" => with_layers("").replace("{ classes = 3 }", &text),
            "model" => with_layers("").replace("[model]", &text),
            _ => with_layers("") + &text,
        };
        let (message, marked, help) = problem(&config);
        assert_eq!([&message, &marked], columns[2..4], "{line}");
        let wanted = columns.get(4).map(|help| help.trim_start_matches('-'));
        assert_eq!(wanted.unwrap_or(&help), help, "{line}");
    }
}

/// Each key whose schema says that its default follows from others may be left out.
#[test]
fn defaults_follow_from_other_keys() {
    let layers = config(&with_layers(
        "{ type = 'residual', layers = [{ repeat = 2, layers = [{ type = 'max_pool2d', kernel = 1 }] }] },",
    ))
    .model
    .layers;
    let pool = LayerSpec::MaxPool2d(PoolSpec {
        kernel: [1, 1],
        stride: [1, 1],
        padding: [0, 0],
    });
    let residual = LayerSpec::Residual {
        layers: vec![pool.clone(), pool],
    };
    assert_eq!(layers[0], residual);

    let training = |lines: &str| config(&with_train(lines)).training;
    let rate = |lines: &str| training(lines).learning_rate;
    assert_eq!(
        rate("optimizer = 'sgd'"),
        LearningRate::Constant { rate: 1e-2 }
    );
    assert_eq!(
        rate("optimizer = 'adamw'\nlearning_rate = { type = 'constant' }"),
        LearningRate::Constant { rate: 1e-3 }
    );
    assert_eq!(
        rate("steps = 60\nlearning_rate = { type = 'warmup_cosine' }"),
        LearningRate::WarmupCosine {
            rate: 1e-3,
            warmup_steps: 3,
            final_rate: 0.0
        }
    );
    let values = with_layers("").replace("classes = 3", "values = 3");
    assert_eq!(config(&values).training.loss, LossKind::MeanSquaredError);
    assert_eq!(training("seed = 18446744073709551615").seed, u64::MAX);
}

#[test]
fn shapes_are_checked_through_groups_and_residuals() {
    let (message, marked, _) = problem(&with_layers(
        "'flatten', { repeat = 2, layers = ['relu', { type = 'max_pool2d', kernel = 2 }] },",
    ));
    assert!(
        message.starts_with("layer 2 (max_pool2d) got [64]: it needs"),
        "{message}"
    );
    assert_eq!(marked, "{ type = 'max_pool2d', kernel = 2 }");

    let (message, marked, _) = problem(&with_layers(
        "{ type = 'residual', layers = ['relu', { type = 'conv2d', out = 1, kernel = 9 }] },",
    ));
    assert!(message.contains("does not fit"), "{message}");
    assert_eq!(marked, "{ type = 'conv2d', out = 1, kernel = 9 }");
}

#[test]
fn schedules_of_other_forms_say_what_they_are() {
    let run = |lines: &str| problem(&format!("{}[run]\n{lines}\n", with_layers("")));
    let (message, marked, _) = run("budget = '512'");
    assert!(
        message.starts_with("`budget`: `512` has no unit"),
        "{message}"
    );
    assert_eq!(marked, "'512'");
    assert!(run("device = 'gpu'").0.starts_with("`device`: "));
    assert!(run("planner = 'best'").0.starts_with("`planner`: "));
}

#[test]
fn snapshots_are_taken_by_steps_or_time() {
    let text = |lines: &str| format!("{}[run]\n{lines}\n", with_layers(""));
    let keys = |lines: &str| {
        let run = config(&text(lines)).run;
        (run.snapshot_every, run.keep_snapshots)
    };
    assert_eq!(keys(""), (None, None));
    assert_eq!(
        keys("snapshot_every = 500\nkeep_snapshots = 4"),
        (Some(SnapshotEvery::Steps(500)), Some(4))
    );
    let half_an_hour = SnapshotEvery::Time(Duration::from_secs(1_800));
    assert_eq!(keys("snapshot_every = '30min'").0, Some(half_an_hour));
    let refused = |line: &str| problem(&text(line)).0;
    assert_eq!(
        refused("snapshot_every = '10 minutes'"),
        "`snapshot_every`: \"10 minutes\" is not a time such as \"90s\", \"10min\" or \"2h\""
    );
    assert_eq!(
        refused("snapshot_every = 0"),
        "`snapshot_every` must be at least 1"
    );
    assert_eq!(
        refused("keep_snapshots = 0"),
        "`keep_snapshots` must be at least 1"
    );
}

#[test]
fn what_is_not_toml_is_marked() {
    for text in ["[data", "a = ", "[data]\n[data]", "x = 'é", "\u{0}"] {
        let (message, _, _) = problem(text);
        assert!(message.starts_with("not TOML: "), "{text:?}: {message}");
    }
    assert_eq!(problem("").0, "the config has no `data`");
    assert_eq!(problem("data = 3\nmodel = 3").0, "`data` must be a table");
}

/// Layers inside residuals count, and so do groups inside groups.
#[test]
fn a_model_has_no_more_layers_than_can_be_planned() {
    for layers in [
        "{ repeat = 30, layers = [{ repeat = 30, layers = [{ repeat = 30, layers = ['relu'] }] }] },",
        "{ repeat = 200, layers = [{ type = 'residual', layers = [{ repeat = 200, layers = ['relu'] }] }] },",
        "{ repeat = 20_001, type = 'relu' },",
        "{ repeat = 1000000000, layers = [{ repeat = 1000, type = 'relu' }] },",
    ] {
        let (message, _, _) = problem(&with_layers(layers));
        assert!(
            message.contains("a model has at most 20000 layers here"),
            "{message}"
        );
    }
    let deep = with_layers(
        "{ repeat = 4, layers = ['relu', { type = 'residual', layers = ['relu', 'tanh'] }] },",
    );
    let deeper = ReplaceArgs {
        depth: Some(5_001),
        ..ReplaceArgs::default()
    };
    let refused = parse(&deep, Path::new(""), &Overrides::from(&deeper));
    assert!(matches!(refused, Err(Mistake::Arguments(why)) if why.contains("20000 layers")));
}

const ALL: &str = include_str!("../../../../configs/parity/conv.toml");

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::with_cases(400)
    })]

    #[test]
    fn damaged_configs_are_read_or_refused(edits in mutated::edits()) {
        let bytes = mutated::edited(ALL.as_bytes(), &edits);
        let text = String::from_utf8_lossy(&bytes);
        if let Err(Mistake::File(problem)) = parse(&text, Path::new(""), &Overrides::default()) {
            // The place is one that the text has, and the report is drawn.
            assert!(text.get(problem.span.clone()).is_some(), "{problem:?}");
            let report = miette::Report::from(problem.in_file(Path::new("run.toml"), &text));
            assert!(!format!("{report:?}").contains('\u{7}'));
        }
    }
}
