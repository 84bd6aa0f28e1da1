//! Tensors of every rank, and everything that is made of them, flow between stages.

use crate::compare;
use burn::{
    module::{Module, Param},
    tensor::{Bool, Device, Distribution, Int, Tensor},
};
use rekindle::{
    Layer, Sequential, TensorTree,
    tensor_tree::{TensorMapper, TensorVisitor},
};

#[derive(Clone)]
struct Ranks {
    one: Tensor<1>,
    two: [Tensor<2>; 2],
    three: Option<Tensor<3>>,
    four: Vec<Tensor<4>>,
    five: (Tensor<5>, Tensor<5, Int>),
    six: Tensor<6>,
    mask: Tensor<6, Bool>,
    name: &'static str,
}

rekindle::impl_tensor_tree!(Ranks { one, two, three, four, five, six, mask; name });

/// Every tensor times one parameter, plus the sum of the tensor of the next rank.
#[derive(Module, Debug)]
struct Scale {
    factor: Param<Tensor<1>>,
}

impl Scale {
    fn scale<const D: usize>(&self, tensor: Tensor<D>, from: Tensor<1>) -> Tensor<D> {
        (tensor * self.factor.val().reshape([1; D])).tanh() + from.reshape([1; D])
    }
}

impl Layer for Scale {
    type Input = Ranks;
    type Output = Ranks;

    fn forward(&self, input: Ranks) -> Ranks {
        let [first, second] = input.two;
        let (five, numbers) = input.five;
        let sum_of_six = input.six.clone().mask_fill(input.mask.clone(), 0.0).mean();
        let sum_of_five = (five.clone() * numbers.clone().float()).mean();
        Ranks {
            one: self.scale(input.one, first.clone().mean()),
            two: [
                self.scale(first, second.clone().mean()),
                self.scale(second, sum_of_five),
            ],
            three: input.three.map(|three| {
                let from = three.clone().mean();
                self.scale(three, from)
            }),
            four: input
                .four
                .into_iter()
                .map(|four| {
                    let from = four.clone().mean();
                    self.scale(four, from)
                })
                .collect(),
            five: (self.scale(five, sum_of_six.clone()), numbers),
            six: self.scale(input.six, sum_of_six),
            mask: input.mask,
            name: input.name,
        }
    }
}

fn input() -> Ranks {
    let device = Device::flex().autodiff();
    fn random<const D: usize>(device: &Device) -> Tensor<D> {
        Tensor::random([2; D], Distribution::Default, device)
    }
    Ranks {
        one: random(&device),
        two: [random(&device), random(&device)],
        three: Some(random(&device)),
        four: vec![random(&device), random(&device), random(&device)],
        five: (
            random(&device),
            Tensor::arange(0..32, &device).reshape([2; 5]),
        ),
        six: random(&device),
        mask: random::<6>(&device).greater_elem(0.5),
        name: "ranks",
    }
}

/// Every output counts, so that every tensor has a gradient.
fn loss(output: Ranks) -> Tensor<1> {
    assert_eq!(output.name, "ranks");
    let [first, second] = output.two;
    let four = output.four.into_iter().map(Tensor::mean);
    let three = output.three.map(Tensor::mean);
    let others = four.chain(three).reduce(|sum, mean| sum + mean);
    let sum = output.one.mean() + first.mean() * second.mean() + output.five.0.mean();
    match others {
        Some(others) => sum + others * output.six.mean(),
        None => unreachable!("four has tensors"),
    }
}

/// A factor that a whole piece uses gets its gradients in another order of adding: three uses and more.
const TOLERANCE: f32 = 1e-6;

#[test]
fn every_rank_is_checkpointed() {
    let device = Device::flex().autodiff();
    let input = input();
    let scale = |_| Scale {
        factor: Param::from_tensor(Tensor::<1>::full([1], 0.7, &device)),
    };
    let model = Sequential::new((0..4).map(scale).collect());
    for segments in 1..=4 {
        let what = format!("{segments} segments");
        let plain = compare::plain(&model, &input, &device, segments, loss);
        let trace = compare::checkpointed(&model, &input, &device, segments, loss);
        compare::assert_same(&what, &plain, &trace, TOLERANCE);
    }
}

/// Tensors of each kind and rank, in the order in which they were met.
#[derive(Default)]
struct Met(Vec<(&'static str, usize)>);

impl TensorVisitor for Met {
    fn float<const D: usize>(&mut self, _tensor: &Tensor<D>) {
        self.0.push(("float", D));
    }
    fn int<const D: usize>(&mut self, _tensor: &Tensor<D, Int>) {
        self.0.push(("int", D));
    }
    fn bool<const D: usize>(&mut self, _tensor: &Tensor<D, Bool>) {
        self.0.push(("bool", D));
    }
}

impl TensorMapper for Met {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(("float", D));
        tensor
    }
}

#[test]
fn fields_come_in_the_order_they_are_named() {
    let ranks = [1, 2, 2, 3, 4, 4, 4, 5, 5, 6, 6];
    let kinds = "float float float float float float float float int float bool";
    let expected: Vec<_> = kinds.split(' ').zip(ranks).collect();
    let (mut visited, mut mapped) = (Met::default(), Met::default());
    let input = input();
    TensorTree::visit(&input, &mut visited);
    assert_eq!(visited.0, expected);
    let _ = TensorTree::map(input, &mut mapped);
    let floats: Vec<_> = expected
        .into_iter()
        .filter(|(kind, _)| *kind == "float")
        .collect();
    assert_eq!(mapped.0, floats);
}
