//! An embedding whose weight the output's projection shares (Press & Wolf 2017, arXiv 1608.05859).
//!
//! Both are separate modules with the same parameter id: recordings sum their gradients. burn's clones
//! share a tensor only until one of them is updated, so a run unties them before an update and ties them again after
//! it: then the old weight is not kept beside the new one.

use burn::{module::Param, nn::Embedding, tensor::Tensor};

use super::stage::{Op, Stage};
use rekindle::sequential::Sequential;

/// Sets the weight of projections that share it to the embedding's weight.
pub(crate) fn tie(model: &mut Sequential<Stage>) {
    let embedding = model
        .layers()
        .iter()
        .flat_map(Stage::ops)
        .find_map(|op| match op {
            Op::Embedding(embedding) => Some(embedding.weight.clone()),
            _ => None,
        });
    if let Some(weight) = embedding {
        for_each(model, |tied| tied.weight = weight.clone());
    }
}

/// Leaves the weight only in the embedding: no forward may run until they are [tied](tie) again.
pub(crate) fn untie(model: &mut Sequential<Stage>) {
    for_each(model, |tied| {
        let (id, device) = (tied.weight.id, tied.weight.device());
        tied.weight = Param::initialized(id, Tensor::empty([0, 0], &device));
    });
}

fn for_each(model: &mut Sequential<Stage>, mut change: impl FnMut(&mut Embedding)) {
    fn in_list(ops: &mut [Op], change: &mut dyn FnMut(&mut Embedding)) {
        for op in ops {
            match op {
                Op::Unembedding(tied) => change(tied),
                Op::Residual(layers) => in_list(layers, change),
                _ => {}
            }
        }
    }
    for stage in model.layers_mut() {
        in_list(stage.ops_mut(), &mut change);
    }
}
