//! Which kind of pools takes less of a device.

use super::{PoolDevice, PoolError, PoolMode, reserved};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::Schedule;

/// What both kinds of pools take for a schedule, and the one that takes less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolChoice {
    /// The mode that takes less.
    pub mode: PoolMode,
    /// What exact sizes take.
    pub exact_sizes: Bytes,
    /// What pages take; `None` where a buffer is larger than the largest page.
    pub pages: Option<Bytes>,
}

impl PoolChoice {
    /// Exact sizes, unless pages take less.
    fn between(exact_sizes: Bytes, pages: Option<Bytes>) -> PoolChoice {
        let mode = if pages.is_some_and(|pages| pages < exact_sizes) {
            PoolMode::Pages
        } else {
            PoolMode::ExactSizes
        };
        PoolChoice {
            mode,
            exact_sizes,
            pages,
        }
    }

    /// What the chosen mode takes.
    pub fn reserved(&self) -> Bytes {
        match (self.mode, self.pages) {
            (PoolMode::Pages, Some(pages)) => pages,
            _ => self.exact_sizes,
        }
    }

    /// Why, in one sentence without its full stop: "exact sizes reserve 52.4 MiB here, pages 54.5 MiB".
    pub fn reason(&self) -> String {
        let exact_sizes = self.exact_sizes;
        match (self.mode, self.pages) {
            (PoolMode::Pages, Some(pages)) => {
                format!("pages reserve {pages} here, exact sizes {exact_sizes}")
            }
            (_, Some(pages)) if pages == exact_sizes => {
                format!("exact sizes and pages both reserve {exact_sizes} here")
            }
            (_, Some(pages)) => format!("exact sizes reserve {exact_sizes} here, pages {pages}"),
            (_, None) => {
                format!("exact sizes reserve {exact_sizes} here, pages cannot hold a buffer")
            }
        }
    }
}

/// The kind of pools that takes less of a device while two steps of a schedule run on a chain; exact sizes where both
/// take the same.
///
/// # Errors
/// The schedule cannot run on the chain.
pub fn choose(
    chain: &Chain,
    schedule: &Schedule,
    device: PoolDevice,
) -> Result<PoolChoice, PoolError> {
    let exact_sizes = reserved(chain, schedule, PoolMode::ExactSizes, device)?;
    let pages = match reserved(chain, schedule, PoolMode::Pages, device) {
        Ok(pages) => Some(pages.peak_reserved),
        Err(PoolError::TooLarge(_)) => None,
        Err(error @ PoolError::Violation(_)) => return Err(error),
    };
    Ok(PoolChoice::between(exact_sizes.peak_reserved, pages))
}

#[cfg(test)]
mod tests {
    use super::PoolChoice;
    use crate::bytes::Bytes;
    use crate::pools::PoolMode;

    #[test]
    fn the_lesser_is_chosen_with_both_numbers() {
        let cases = [
            (
                Some(2048),
                PoolMode::ExactSizes,
                "exact sizes reserve 1.0 KiB here, pages 2.0 KiB",
            ),
            (
                Some(1023),
                PoolMode::Pages,
                "pages reserve 1023 B here, exact sizes 1.0 KiB",
            ),
            (
                Some(1024),
                PoolMode::ExactSizes,
                "exact sizes and pages both reserve 1.0 KiB here",
            ),
            (
                None,
                PoolMode::ExactSizes,
                "exact sizes reserve 1.0 KiB here, pages cannot hold a buffer",
            ),
        ];
        for (pages, mode, reason) in cases {
            let choice = PoolChoice::between(Bytes(1024), pages.map(Bytes));
            assert_eq!((choice.mode, choice.reason().as_str()), (mode, reason));
            assert_eq!(choice.reserved(), Bytes(pages.unwrap_or(1024).min(1024)));
        }
    }
}
