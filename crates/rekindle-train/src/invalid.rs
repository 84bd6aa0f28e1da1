//! What is wrong with a key of a config.

/// A key that is out of its range, or contradicts another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` {problem}", self.key.rsplit('.').next().unwrap_or_default())]
pub struct Invalid {
    /// The key, with the keys of the tables around it, such as `synthetic.samples`.
    pub key: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// The first check that fails, of whether something fits, its key, and what it must be.
///
/// # Errors
///
/// A check fails.
pub fn first_invalid<const N: usize>(
    checks: [(bool, &'static str, &str); N],
) -> Result<(), Invalid> {
    let failed = checks.into_iter().find(|(fits, ..)| !fits);
    failed.map_or(Ok(()), |(_, key, problem)| {
        let problem = problem.to_owned();
        Err(Invalid { key, problem })
    })
}

/// What a number of things must be.
pub const AT_LEAST_1: &str = "must be at least 1";
