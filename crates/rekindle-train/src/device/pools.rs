//! What cubecl's memory pools take beyond live buffers.

use rekindle_plan::{Bytes, Chain};

/// cubecl pads every buffer to a multiple of this.
const PADDING_BYTES: u64 = 512;
/// Buffers of one stage at once: its parameters, their gradients and an optimizer's moments, and what its graph saves.
const BUFFERS_PER_STAGE: u64 = 16;

/// Most bytes that the pools reserve beyond live buffers while a schedule of `chain` runs, provided that free buffers
/// are given back before an action that would not fit (see [`Room`](rekindle::executor::Room)): padding, and one
/// activation that a queue frees late. A plan adds it to the live buffers, so that a budget on reserved bytes covers
/// both.
///
/// What is free between two actions needs no term: pools of exact sizes give all of it back. Nor does what is free
/// inside an action, since profiles measure its temporary bytes as the growth of such pools.
#[must_use]
pub fn pool_overhead(chain: &Chain) -> Bytes {
    let padding = chain.stages.len() as u64 * BUFFERS_PER_STAGE * PADDING_BYTES;
    let outputs = chain.stages.iter().map(|stage| stage.output_bytes);
    outputs.max().unwrap_or_default() + Bytes(padding)
}
