//! What is in use and resident after each of many steps.

use std::{fs, sync::Arc};

use rekindle::meter::{HostMeter, Meter};

/// Steps of a long run.
pub const STEPS: usize = 250;

/// Steps after which all that is made once is there.
pub const WARM_UP: usize = 50;

/// Share by which resident memory may differ: pages are the system's.
const RESIDENT: f64 = 0.01;

/// What is in use and resident after each step.
pub struct Watch {
    pub meter: Arc<HostMeter>,
    in_use: Vec<u64>,
    resident: Vec<u64>,
}

impl Watch {
    pub fn new() -> Self {
        Self {
            meter: Arc::new(HostMeter::new().expect("installed")),
            in_use: Vec::with_capacity(STEPS),
            resident: Vec::with_capacity(STEPS),
        }
    }

    pub fn note(&mut self) {
        self.in_use.push(self.meter.read().in_use_bytes.0);
        let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        self.resident.push(pages.unwrap_or(1));
    }

    /// The highest of a hundred steps after the warm-up is the highest of the last hundred.
    pub fn assert_flat(self, what: &str) {
        let highest = |values: &[u64]| values.iter().max().copied().expect("steps");
        let ends = |values: &[u64]| {
            let warm = &values[WARM_UP..];
            (highest(&warm[..100]), highest(&warm[warm.len() - 100..]))
        };
        let (first, last) = ends(&self.in_use);
        assert_eq!(first, last, "{what}: bytes in use after a step");
        let (first, last) = ends(&self.resident);
        let grown = last as f64 / first as f64 - 1.0;
        assert!(grown <= RESIDENT, "{what}: {first} pages, then {last}");
    }
}
