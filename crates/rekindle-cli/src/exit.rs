//! Exit codes. They are part of the command line's contract.

/// Done.
pub const DONE: i32 = 0;
/// Anything that has no code of its own.
pub const OTHER: i32 = 1;
/// Bad usage, or a config or input file that is wrong.
pub const USAGE: i32 = 2;
/// No plan fits the budget.
pub const NO_PLAN: i32 = 3;
/// Out of memory while running.
pub const OUT_OF_MEMORY: i32 = 4;
/// The system refused a file: missing, no permission, disk full.
pub const FILE_REFUSED: i32 = 5;
/// The loss or a gradient is not finite, and the run stops there.
pub const NOT_FINITE: i32 = 6;
/// No code of its own: another rank of the job reports the failure and its code.
pub const OTHER_RANK: i32 = -1;
/// Interrupted.
pub const INTERRUPTED: i32 = 130;
