use serde_json::{Value, json};

use super::*;

fn read(list: Value) -> Result<Vec<LayerSpec>, serde_json::Error> {
    unfolded_layers(list)
}

#[test]
fn names_and_groups_unfold() {
    let layers = read(json!([
        "relu",
        { "repeat": 2, "layers": ["tanh", { "type": "linear", "out": 3 }] },
        { "repeat": 2, "type": "residual", "layers": [{ "repeat": 2, "layers": ["gelu"] }] },
    ]))
    .expect("a list");
    let linear = LayerSpec::Linear { out: 3, bias: true };
    let residual = LayerSpec::Residual {
        layers: vec![LayerSpec::Gelu; 2],
    };
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
    // What is written is read again.
    let written = serde_json::to_value(&layers).expect("JSON");
    assert_eq!(read(written).expect("a list"), layers);
}

#[test]
fn no_list_unfolds_to_more_layers_than_planners_take() {
    let list = |times: usize| {
        let residual = json!({ "repeat": 100, "type": "residual", "layers": ["relu"] });
        json!([{ "repeat": times, "layers": [residual] }])
    };
    assert_eq!(read(list(100)).expect("a list").len(), 10_000);
    let refused = read(list(101)).expect_err("20,200 layers").to_string();
    assert!(refused.contains("at most 20000 layers"), "{refused}");
    assert!(read(json!([{ "repeat": u64::MAX, "type": "relu" }])).is_err());
}
