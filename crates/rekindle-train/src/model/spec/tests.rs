use serde_json::{Value, json};

use super::*;

fn read(list: Value) -> Vec<LayerSpec> {
    serde_json::from_value(list).expect("a list of layers")
}

fn unfolded(list: Value) -> Result<Vec<LayerSpec>, String> {
    let mut layers = Vec::new();
    let mut written = read(list).into_iter();
    written.try_for_each(|layer| layer.unfold(&mut layers))?;
    Ok(layers)
}

#[test]
fn groups_unfold_and_layers_are_written_as_they_are_read() {
    let layers = unfolded(json!([
        "relu",
        { "repeat": { "times": 2, "layers": ["tanh", { "linear": { "out": 3 } }] } },
        { "repeat": { "times": 2, "layers": [
            { "residual": [{ "repeat": { "times": 2, "layers": ["gelu"] } }] },
        ] } },
    ]))
    .expect("a list");
    let linear = LayerSpec::Linear { out: 3, bias: true };
    let residual = LayerSpec::Residual(vec![LayerSpec::Gelu; 2]);
    assert_eq!(
        layers,
        [
            LayerSpec::Relu,
            LayerSpec::Tanh,
            linear.clone(),
            LayerSpec::Tanh,
            linear,
            residual.clone(),
            residual,
        ]
    );
    let written = serde_json::to_value(&layers).expect("JSON");
    assert_eq!(read(written), layers);
}

#[test]
fn no_list_unfolds_to_more_layers_than_planners_take() {
    let list = |times: usize| {
        let residual = json!({ "residual": ["relu"] });
        let many = json!({ "repeat": { "times": 100, "layers": [residual] } });
        json!([{ "repeat": { "times": times, "layers": [many] } }])
    };
    assert_eq!(unfolded(list(100)).expect("a list").len(), 10_000);
    let refused = unfolded(list(101)).expect_err("20,200 layers");
    assert!(refused.contains("at most 20000 layers"), "{refused}");
    let group = |times: u64| json!([{ "repeat": { "times": times, "layers": ["relu"] } }]);
    assert!(unfolded(group(u64::MAX)).is_err());
    let refused = unfolded(group(0)).expect_err("no turn");
    assert_eq!(refused, "`times` must be at least 1");
}
