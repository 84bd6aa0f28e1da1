//! Nodes of burn's graph.

use burn::tensor::DispatchTensor;
use burn_dispatch::{BackendTensor, DispatchTensorKind};

/// The node of burn's graph that a tracked tensor of any backend is.
pub(in crate::record) fn node(tensor: &DispatchTensor) -> Option<u64> {
    let DispatchTensorKind::Autodiff(tracked) = &tensor.kind else {
        return None;
    };
    let node = match &**tracked {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => tensor.id(),
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(BackendTensor::Autodiff(tensor)) => tensor.id(),
        DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => tensor.id(),
        _ => return None,
    };
    Some(node.value)
}
