//! Recorded steps against the plain burn loop: the same numbers under every plan, inside every budget.

mod models;
mod parity;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
