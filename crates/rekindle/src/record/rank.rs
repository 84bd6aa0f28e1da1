//! Tensors whose number of dimensions is known only at run time.

/// Evaluates an expression with the number of dimensions of a [`DispatchTensor`](burn::tensor::DispatchTensor) as a
/// constant. burn's optimizers and records support 1 to 8 dimensions.
macro_rules! of_rank {
    ($tensor:expr, $rank:ident => $value:expr) => {
        $crate::record::rank::of_rank!(@ burn_backend::TensorMetadata::rank($tensor), $rank => $value)
    };
    (@ $number:expr, $rank:ident => $value:expr) => {
        $crate::record::rank::of_rank!(@ $number, $rank => $value; 1, 2, 3, 4, 5, 6, 7, 8)
    };
    (@ $of:expr, $rank:ident => $value:expr; $($number:literal),*) => {
        match $of {
            $($number => {
                const $rank: usize = $number;
                $value
            })*
            rank => panic!("a tensor of rank {rank}"),
        }
    };
}

pub(super) use of_rank;
