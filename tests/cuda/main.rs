//! The program on CUDA: on a GPU, or on the stand-in for its driver that `CUDA_STANDIN` names.

#[path = "../support/history.rs"]
mod history;
#[path = "../support/standin.rs"]
mod standin;

mod memory;
mod start;
