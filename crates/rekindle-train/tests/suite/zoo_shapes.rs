//! Shape inference: what it finds, and what it refuses.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rekindle_train::model::{
    shape::ShapeError,
    spec::{LayerSpec, ModelSpec, Padding, PoolSpec, SampleShape},
};

fn conv(out: usize, kernel: usize, padding: Padding) -> LayerSpec {
    LayerSpec::Conv2d {
        out,
        kernel: [kernel; 2],
        stride: [1, 1],
        padding,
        bias: true,
    }
}

fn linear(out: usize) -> LayerSpec {
    LayerSpec::Linear { out, bias: true }
}

fn pool(kernel: usize, padding: usize) -> LayerSpec {
    LayerSpec::MaxPool2d(PoolSpec {
        kernel: [kernel; 2],
        stride: Some([kernel; 2]),
        padding: [padding; 2],
    })
}

fn model(input: SampleShape, layers: Vec<LayerSpec>) -> ModelSpec {
    ModelSpec { input, layers }
}

fn refused(input: SampleShape, layer: LayerSpec) -> String {
    let error = model(input.clone(), vec![layer.clone()])
        .infer()
        .unwrap_err();
    assert_eq!(error.path, [0]);
    assert_eq!(error.kind, layer.kind());
    assert_eq!(error.got, input);
    error.problem
}

#[test]
fn deep_convolutions_count_their_parameters_layer_by_layer() {
    let same = |out| conv(out, 3, Padding::Same);
    let mut layers = vec![same(256), pool(2, 0), same(512), pool(2, 0)];
    layers.extend((0..22).map(|_| same(1024)));
    layers.extend([
        pool(2, 0),
        same(256),
        same(32),
        pool(2, 0),
        LayerSpec::Flatten,
        linear(4),
        linear(1),
    ]);
    let shape = model(SampleShape::float([1, 16, 16]), layers)
        .infer()
        .unwrap();

    let mut expected = vec![2_560, 0, 1_180_160, 0, 4_719_616];
    expected.extend([9_438_208; 21]);
    expected.extend([0, 2_359_552, 73_760, 0, 0, 132, 5]);
    let counts: Vec<u64> = shape.layers.iter().map(|layer| layer.param_count).collect();
    assert_eq!(counts, expected);
    assert_eq!(shape.param_count(), 206_538_153);
    assert_eq!(shape.layers[3].output, SampleShape::float([512, 4, 4]));
    assert_eq!(shape.output(), &SampleShape::float([1]));
}

#[test]
fn every_kind_maps_its_shape() {
    let image = SampleShape::float([3, 9, 7]);
    let pool = PoolSpec {
        kernel: [3, 2],
        stride: Some([2, 2]),
        padding: [1, 1],
    };
    let strided = LayerSpec::Conv2d {
        out: 8,
        kernel: [3, 5],
        stride: [2, 3],
        padding: Padding::Same,
        bias: false,
    };
    let cases = [
        (
            image.clone(),
            linear(5),
            SampleShape::float([3, 9, 5]),
            7 * 5 + 5,
        ),
        (
            image.clone(),
            strided,
            SampleShape::float([8, 5, 3]),
            8 * 3 * 3 * 5,
        ),
        (
            image.clone(),
            conv(4, 3, Padding::Explicit([0, 0])),
            SampleShape::float([4, 7, 5]),
            4 * 3 * 9 + 4,
        ),
        (
            image.clone(),
            conv(4, 3, Padding::Explicit([0, 2])),
            SampleShape::float([4, 7, 9]),
            4 * 3 * 9 + 4,
        ),
        (
            image.clone(),
            LayerSpec::MaxPool2d(pool),
            SampleShape::float([3, 5, 4]),
            0,
        ),
        (
            image.clone(),
            LayerSpec::AvgPool2d(pool),
            SampleShape::float([3, 5, 4]),
            0,
        ),
        (
            image.clone(),
            LayerSpec::Flatten,
            SampleShape::float([189]),
            0,
        ),
        (image.clone(), LayerSpec::Gelu, image.clone(), 0),
        (
            image.clone(),
            LayerSpec::Dropout { p: 0.0 },
            image.clone(),
            0,
        ),
        (image.clone(), LayerSpec::BatchNorm, image.clone(), 6),
        (image.clone(), LayerSpec::LayerNorm, image.clone(), 14),
        (
            SampleShape::tokens([6]),
            LayerSpec::Embedding { vocab: 256, dim: 4 },
            SampleShape::float([6, 4]),
            1024,
        ),
        (
            SampleShape::float([6, 4]),
            LayerSpec::Positions,
            SampleShape::float([6, 4]),
            6 * 4,
        ),
        (
            SampleShape::float([6, 4]),
            LayerSpec::Attention {
                heads: 2,
                causal: true,
            },
            SampleShape::float([6, 4]),
            4 * (4 * 4 + 4),
        ),
        (
            image.clone(),
            LayerSpec::Residual(vec![linear(9), linear(7)]),
            image,
            7 * 9 + 9 + 9 * 7 + 7,
        ),
    ];
    for (input, layer, output, params) in cases {
        let shape = model(input, vec![layer.clone()]).infer().unwrap();
        assert_eq!(shape.layers[0].output, output, "{layer:?}");
        assert_eq!(shape.layers[0].param_count, params, "{layer:?}");
    }
}

#[test]
fn an_error_inside_residuals_carries_the_whole_path() {
    let inner = LayerSpec::Residual(vec![LayerSpec::Relu, conv(3, 3, Padding::Same)]);
    let outer = LayerSpec::Residual(vec![inner]);
    let error = model(SampleShape::float([8]), vec![linear(4), outer])
        .infer()
        .unwrap_err();
    assert_eq!(error.path, [1, 0, 1]);
    assert_eq!(
        error.to_string(),
        "layer 1.0.1 (conv2d) got [4]: it needs [channels, height, width]; \
         take out the flatten, or use data of such a shape"
    );
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let image = || SampleShape::float([3, 8, 8]);
    let zero = |what| format!("`{what}` is 0; it must be at least 1");
    let no_stride = LayerSpec::Conv2d {
        out: 1,
        kernel: [3, 3],
        stride: [1, 0],
        padding: Padding::Same,
        bias: true,
    };
    assert_eq!(refused(image(), linear(0)), zero("out"));
    assert_eq!(refused(image(), conv(0, 3, Padding::Same)), zero("out"));
    assert_eq!(
        refused(image(), conv(1, 0, Padding::Explicit([0, 0]))),
        zero("kernel")
    );
    assert_eq!(refused(image(), no_stride), zero("stride"));
    assert_eq!(refused(image(), pool(0, 0)), zero("kernel"));
    let tokens = || SampleShape::tokens([4]);
    assert_eq!(
        refused(tokens(), LayerSpec::Embedding { vocab: 0, dim: 2 }),
        zero("vocab")
    );
    assert_eq!(
        refused(tokens(), LayerSpec::Embedding { vocab: 2, dim: 0 }),
        zero("dim")
    );

    let shared = |before: Vec<LayerSpec>| {
        let mut layers = before;
        layers.push(LayerSpec::Unembedding);
        model(SampleShape::tokens([4]), layers).infer()
    };
    let embedding = || LayerSpec::Embedding { vocab: 9, dim: 2 };
    let shape = shared(vec![embedding(), LayerSpec::Gelu]).unwrap();
    assert_eq!(*shape.output(), SampleShape::float([4, 9]));
    assert_eq!(shape.param_count(), 9 * 2, "counted once");
    for changed in [linear(3), LayerSpec::Flatten] {
        let problem = shared(vec![embedding(), changed]).unwrap_err().problem;
        assert!(
            problem.contains("it needs vectors of 2 values"),
            "{problem}"
        );
    }
    let none = refused(image(), LayerSpec::Unembedding);
    assert!(none.contains("there is none"), "{none}");

    let attention = |heads| LayerSpec::Attention {
        heads,
        causal: true,
    };
    let vectors = || SampleShape::float([6, 4]);
    assert_eq!(refused(vectors(), attention(0)), zero("heads"));
    let uneven = "3 heads do not divide 4 values; use a number of heads that does";
    assert_eq!(refused(vectors(), attention(3)), uneven);
    for layer in [LayerSpec::Positions, attention(1)] {
        let problem = refused(SampleShape::float([4]), layer);
        assert!(problem.contains("it needs "), "{problem}");
    }

    for p in [1.0, -0.1, f64::NAN, f64::INFINITY] {
        let problem = refused(image(), LayerSpec::Dropout { p });
        assert!(problem.contains("`p` is "), "{problem}");
    }
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let too_large = |kernel, padded| {
        format!(
            "a kernel of {kernel} does not fit in {padded}, the height and width with padding; use a smaller kernel, more \
             padding or less pooling before it"
        )
    };
    let image = || SampleShape::float([3, 2, 8]);
    assert_eq!(
        refused(image(), conv(1, 5, Padding::Explicit([1, 1]))),
        too_large("[5, 5]", "[4, 10]")
    );
    assert_eq!(
        refused(image(), conv(1, 2, Padding::Same)),
        "`same` padding needs an odd kernel, not [2, 2]; use an odd kernel or give the padding in numbers"
    );
    assert_eq!(
        refused(image(), pool(3, 2)),
        "padding [2, 2] is more than half the kernel [3, 3]; use less padding or a larger kernel"
    );
    assert_eq!(refused(image(), pool(3, 0)), too_large("[3, 3]", "[2, 8]"));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let image = || SampleShape::float([3, 2, 8]);
    assert_eq!(
        refused(image(), LayerSpec::Residual(vec![linear(4)])),
        "its layers turn this into [3, 2, 4]; `x + f(x)` needs equal shapes"
    );
    assert_eq!(
        refused(image(), LayerSpec::Residual(vec![])),
        "it has no layers; give it at least one"
    );
    assert_eq!(
        refused(image(), LayerSpec::Embedding { vocab: 4, dim: 4 }),
        "it needs token ids, not numbers; an embedding comes first, on an input of token ids"
    );
    for layer in [
        linear(4),
        LayerSpec::Relu,
        LayerSpec::Flatten,
        LayerSpec::Residual(vec![LayerSpec::Flatten]),
    ] {
        assert_eq!(
            refused(SampleShape::tokens([4]), layer),
            "it needs numbers, not token ids; put an embedding before it"
        );
    }
    for input in [SampleShape::float([4]), SampleShape::float([4, 4])] {
        for layer in [conv(1, 1, Padding::Same), pool(1, 0)] {
            assert!(refused(input.clone(), layer).contains("it needs "));
        }
    }
}

#[test]
fn the_model_itself_is_checked() {
    let error = |input, layers| -> ShapeError { model(input, layers).infer().unwrap_err() };
    let empty = error(SampleShape::float([4]), vec![]);
    assert_eq!(
        (empty.kind, &*empty.problem),
        ("model", "it has no layers; give it at least one")
    );
    assert!(empty.path.is_empty());
    let zero = error(SampleShape::float([4, 0]), vec![LayerSpec::Relu]);
    assert_eq!(
        zero.to_string(),
        "model got [4, 0]: `input` is 0; it must be at least 1"
    );
    for dims in [vec![], vec![1; 4]] {
        let rank = error(SampleShape::float(dims), vec![LayerSpec::Relu]);
        assert!(rank.problem.contains("it needs one to three dimensions"));
    }
    for dims in [vec![], vec![2, 3]] {
        let embedding = LayerSpec::Embedding { vocab: 9, dim: 2 };
        let rank = error(SampleShape::tokens(dims), vec![embedding]);
        let wanted = "it needs token ids in one dimension";
        assert!(rank.problem.starts_with(wanted), "{}", rank.problem);
    }
}

#[test]
fn sizes_beyond_any_machine_are_refused_without_overflow() {
    let most = usize::MAX;
    let too_large = |input: SampleShape, layer: LayerSpec| {
        let problem = refused(input, layer);
        assert!(problem.contains(" would hold more than "), "{problem}");
    };
    too_large(SampleShape::float([4]), linear(most));
    too_large(SampleShape::float([1 << 30]), linear(1 << 30));
    too_large(SampleShape::float([3, 8, 8]), conv(most, 3, Padding::Same));
    too_large(
        SampleShape::float([3, 8, 8]),
        conv(1, 3, Padding::Explicit([most, 0])),
    );
    too_large(
        SampleShape::tokens([8]),
        LayerSpec::Embedding {
            vocab: most,
            dim: most,
        },
    );
    too_large(
        SampleShape::tokens([8]),
        LayerSpec::Embedding {
            vocab: most,
            dim: 2,
        },
    );
    assert!(
        model(
            SampleShape::float([most, most, most]),
            vec![LayerSpec::Relu]
        )
        .infer()
        .is_err()
    );
}
