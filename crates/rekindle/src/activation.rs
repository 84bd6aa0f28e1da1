//! Values that flow between stages.
//!
//! An [`Activation`] is anything made of tensors: a tensor of any rank, tuples, options, vectors and arrays of
//! activations, and structs of them by [`impl_activation!`](crate::impl_activation). The executor never looks inside one; it asks it to [`visit`](Activation::visit) or
//! [`map`](Activation::map) its tensors in a fixed order, and that is enough to detach an activation, to make it a
//! fresh leaf, to read its gradient and to seed a backward with one. Integer and boolean tensors pass through
//! without a gradient.

use burn::tensor::{Bool, Int, Tensor, backend::Backend};

/// A value that flows between stages, made of tensors.
///
/// Implementations must hand over the same tensors in the same order in [`visit`](Self::visit) and
/// [`map`](Self::map).
pub trait Activation<B: Backend>: Clone + Send + 'static {
    /// Shows every tensor to the visitor, in order.
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V);

    /// Replaces every tensor by what the mapper makes of it, in order.
    #[must_use]
    fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self;
}

/// Sees the tensors of an activation.
pub trait ActivationVisitor<B: Backend> {
    /// A float tensor.
    fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>);
    /// An integer tensor.
    fn int<const D: usize>(&mut self, _tensor: &Tensor<B, D, Int>) {}
    /// A boolean tensor.
    fn bool<const D: usize>(&mut self, _tensor: &Tensor<B, D, Bool>) {}
}

/// Replaces the float tensors of an activation.
pub trait ActivationMapper<B: Backend> {
    /// A float tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D>;
}

impl<B: Backend, const D: usize> Activation<B> for Tensor<B, D> {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        visitor.float(self);
    }

    fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }
}

impl<B: Backend, const D: usize> Activation<B> for Tensor<B, D, Int> {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        visitor.int(self);
    }

    fn map<M: ActivationMapper<B>>(self, _mapper: &mut M) -> Self {
        self
    }
}

impl<B: Backend, const D: usize> Activation<B> for Tensor<B, D, Bool> {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        visitor.bool(self);
    }

    fn map<M: ActivationMapper<B>>(self, _mapper: &mut M) -> Self {
        self
    }
}

impl<B: Backend, A: Activation<B>> Activation<B> for Option<A> {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        if let Some(inner) = self {
            inner.visit(visitor);
        }
    }

    fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self {
        self.map(|inner| inner.map(mapper))
    }
}

impl<B: Backend, A: Activation<B>> Activation<B> for Vec<A> {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        for inner in self {
            inner.visit(visitor);
        }
    }

    fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|inner| inner.map(mapper)).collect()
    }
}

impl<B: Backend, A: Activation<B>, const N: usize> Activation<B> for [A; N] {
    fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
        for inner in self {
            inner.visit(visitor);
        }
    }

    fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self {
        self.map(|inner| inner.map(mapper))
    }
}

/// Makes a struct an [`Activation`], so that it can flow between stages.
///
/// The struct has the backend for its one generic parameter and is `Clone`. Name all its fields: those that are
/// activations, then, after a semicolon, any that are to be carried along as they are. A field left out does not
/// compile.
///
/// ```
/// use burn::prelude::*;
///
/// /// What the decoder's layers hand on.
/// #[derive(Clone)]
/// struct Carry<B: Backend> {
///     tokens: Tensor<B, 2, Int>,
///     hidden: Tensor<B, 3>,
///     skip: Option<Tensor<B, 3>>,
///     position: usize,
/// }
///
/// rekindle::impl_activation!(Carry { tokens, hidden, skip; position });
/// ```
#[macro_export]
macro_rules! impl_activation {
    ($name:ident { $($field:ident),* $(,)? $(; $($plain:ident),* $(,)?)? }) => {
        impl<B: $crate::activation::private::Backend> $crate::Activation<B> for $name<B> {
            fn visit<V>(&self, visitor: &mut V)
            where
                V: $crate::activation::ActivationVisitor<B>,
            {
                let Self { $($field,)* $($($plain: _,)*)? } = self;
                $($crate::Activation::<B>::visit($field, visitor);)*
            }

            fn map<M>(self, mapper: &mut M) -> Self
            where
                M: $crate::activation::ActivationMapper<B>,
            {
                let Self { $($field,)* $($($plain,)*)? } = self;
                $(let $field = $crate::Activation::<B>::map($field, mapper);)*
                Self { $($field,)* $($($plain,)*)? }
            }
        }
    };
}

/// What [`impl_activation!`](crate::impl_activation) names.
#[doc(hidden)]
pub mod private {
    pub use burn::tensor::backend::Backend;
}

macro_rules! tuple_activation {
    ($($name:ident),+) => {
        impl<B: Backend, $($name: Activation<B>),+> Activation<B> for ($($name,)+) {
            #[expect(non_snake_case, reason = "one name serves as type and as variable")]
            fn visit<V: ActivationVisitor<B>>(&self, visitor: &mut V) {
                let ($($name,)+) = self;
                $($name.visit(visitor);)+
            }

            #[expect(non_snake_case, reason = "one name serves as type and as variable")]
            fn map<M: ActivationMapper<B>>(self, mapper: &mut M) -> Self {
                let ($($name,)+) = self;
                ($($name.map(mapper),)+)
            }
        }
    };
}

tuple_activation!(A1);
tuple_activation!(A1, A2);
tuple_activation!(A1, A2, A3);
tuple_activation!(A1, A2, A3, A4);

impl<B: Backend> Activation<B> for () {
    fn visit<V: ActivationVisitor<B>>(&self, _visitor: &mut V) {}

    fn map<M: ActivationMapper<B>>(self, _mapper: &mut M) -> Self {}
}
