//! Values made of tensors: batches, auxiliary output, and what flows between the stages of a chain.
//!
//! A [`TensorTree`] is a tensor of any rank, or a tuple, option, vector or array of trees, or a struct of them with
//! [`impl_tensor_tree!`](crate::impl_tensor_tree). Its tensors are [visited](TensorTree::visit) or
//! [replaced](TensorTree::map) in a fixed order. That is enough to record a step with it, to detach it, to turn it into a
//! fresh leaf, to read its gradient, and to seed a backward pass with a gradient. Integer and boolean tensors pass
//! through without a gradient.

use burn::{
    module::Module,
    tensor::{Bool, Device, Int, Tensor},
};

/// A value made of tensors.
///
/// Implementations must pass the same tensors in the same order in [`visit`](Self::visit) and [`map`](Self::map).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made of tensors that a step can replace",
    note = "tensors, and tuples, options, vectors and arrays of them are; for a struct of your own write \
            `rekindle::impl_tensor_tree!(Name {{ tensors, of, it; other, fields }});`"
)]
pub trait TensorTree: Clone + Send + 'static {
    /// Passes every tensor to the visitor, in order.
    fn visit<V: TensorVisitor>(&self, visitor: &mut V);

    /// Replaces every tensor by the mapper's result, in order.
    #[must_use]
    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self;
}

/// Visits the tensors of a tree.
pub trait TensorVisitor {
    /// A float tensor.
    fn float<const D: usize>(&mut self, tensor: &Tensor<D>);
    /// An integer tensor.
    fn int<const D: usize>(&mut self, _tensor: &Tensor<D, Int>) {}
    /// A boolean tensor.
    fn bool<const D: usize>(&mut self, _tensor: &Tensor<D, Bool>) {}
}

/// Makes a type an [`TensorVisitor`] that does the same with tensors of every kind.
macro_rules! visit_alike {
    ($visitor:ty, |$self:ident, $tensor:ident| $body:block) => {
        impl $crate::tensor_tree::TensorVisitor for $visitor {
            fn float<const D: usize>(&mut $self, $tensor: &burn::tensor::Tensor<D>) $body

            fn int<const D: usize>(&mut $self, $tensor: &burn::tensor::Tensor<D, burn::tensor::Int>) $body

            fn bool<const D: usize>(&mut $self, $tensor: &burn::tensor::Tensor<D, burn::tensor::Bool>) $body
        }
    };
}
pub(crate) use visit_alike;

/// Replaces the tensors of a tree. By default, integer and boolean tensors are unchanged.
pub trait TensorMapper {
    /// A float tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
    /// An integer tensor.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    /// A boolean tensor.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

/// Makes a type a [`TensorMapper`] that does the same with tensors of every kind.
macro_rules! map_alike {
    ($mapper:ty, |$self:ident, $tensor:ident| $body:block) => {
        impl $crate::tensor_tree::TensorMapper for $mapper {
            fn float<const D: usize>(&mut $self, $tensor: burn::tensor::Tensor<D>) -> burn::tensor::Tensor<D> $body

            fn int<const D: usize>(&mut $self, $tensor: burn::tensor::Tensor<D, burn::tensor::Int>) -> burn::tensor::Tensor<D, burn::tensor::Int> $body

            fn bool<const D: usize>(&mut $self, $tensor: burn::tensor::Tensor<D, burn::tensor::Bool>) -> burn::tensor::Tensor<D, burn::tensor::Bool> $body
        }
    };
}
pub(crate) use map_alike;

impl<const D: usize> TensorTree for Tensor<D> {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        visitor.float(self);
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }
}

impl<const D: usize> TensorTree for Tensor<D, Int> {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        visitor.int(self);
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.int(self)
    }
}

impl<const D: usize> TensorTree for Tensor<D, Bool> {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        visitor.bool(self);
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        mapper.bool(self)
    }
}

impl<A: TensorTree> TensorTree for Option<A> {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        if let Some(inner) = self {
            inner.visit(visitor);
        }
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        self.map(|inner| inner.map(mapper))
    }
}

impl<A: TensorTree> TensorTree for Vec<A> {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        for inner in self {
            inner.visit(visitor);
        }
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|inner| inner.map(mapper)).collect()
    }
}

impl<A: TensorTree, const N: usize> TensorTree for [A; N] {
    fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
        for inner in self {
            inner.visit(visitor);
        }
    }

    fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
        self.map(|inner| inner.map(mapper))
    }
}

/// Makes a struct a [`TensorTree`]: a batch of your own, for example.
///
/// The struct must be `Clone` and have no generic parameters. Name all its fields: first the trees, then, after a
/// semicolon, the fields that pass through unchanged. A missing field is a compile error.
///
/// ```
/// use burn::prelude::*;
///
/// /// What the layers of a decoder pass on.
/// #[derive(Clone)]
/// struct Carry {
///     tokens: Tensor<2, Int>,
///     hidden: Tensor<3>,
///     skip: Option<Tensor<3>>,
///     position: usize,
/// }
///
/// rekindle::impl_tensor_tree!(Carry { tokens, hidden, skip; position });
/// ```
#[macro_export]
macro_rules! impl_tensor_tree {
    ($name:ident { $($field:ident),* $(,)? $(; $($plain:ident),* $(,)?)? }) => {
        impl $crate::TensorTree for $name {
            fn visit<V>(&self, visitor: &mut V)
            where
                V: $crate::tensor_tree::TensorVisitor,
            {
                let Self { $($field,)* $($($plain: _,)*)? } = self;
                $($crate::TensorTree::visit($field, visitor);)*
            }

            fn map<M>(self, mapper: &mut M) -> Self
            where
                M: $crate::tensor_tree::TensorMapper,
            {
                let Self { $($field,)* $($($plain,)*)? } = self;
                $(let $field = $crate::TensorTree::map($field, mapper);)*
                Self { $($field,)* $($($plain,)*)? }
            }
        }
    };
}

macro_rules! tuple_tree {
    ($($name:ident),+) => {
        impl<$($name: TensorTree),+> TensorTree for ($($name,)+) {
            #[expect(non_snake_case, reason = "one name serves as type and as variable")]
            fn visit<V: TensorVisitor>(&self, visitor: &mut V) {
                let ($($name,)+) = self;
                $($name.visit(visitor);)+
            }

            #[expect(non_snake_case, reason = "one name serves as type and as variable")]
            fn map<M: TensorMapper>(self, mapper: &mut M) -> Self {
                let ($($name,)+) = self;
                ($($name.map(mapper),)+)
            }
        }
    };
}

tuple_tree!(A1);
tuple_tree!(A1, A2);
tuple_tree!(A1, A2, A3);
tuple_tree!(A1, A2, A3, A4);
tuple_tree!(A1, A2, A3, A4, A5);
tuple_tree!(A1, A2, A3, A4, A5, A6);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7, A8);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7, A8, A9);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7, A8, A9, A10);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11);
tuple_tree!(A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12);

impl TensorTree for () {
    fn visit<V: TensorVisitor>(&self, _visitor: &mut V) {}

    fn map<M: TensorMapper>(self, _mapper: &mut M) -> Self {}
}

/// The device that a layer runs on: the device of its input, else of its parameters.
pub(crate) fn device_of<A: TensorTree, L: Module>(input: &A, layer: &L) -> Option<Device> {
    struct Find(Option<Device>);
    visit_alike!(Find, |self, tensor| {
        self.0.get_or_insert_with(|| tensor.device());
    });
    let mut find = Find(None);
    input.visit(&mut find);
    find.0.or_else(|| layer.devices().into_iter().next())
}
