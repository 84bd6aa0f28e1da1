//! The error of a run that ends because memory ran out.

use std::fmt;

use rekindle_plan::Bytes;

use crate::{device::DeviceInfo, shortage::Shortage};
use rekindle::meter::{Count, MemoryReading};

/// The error when memory ran out and no smaller plan helps.
#[derive(Debug, Clone, PartialEq)]
pub struct OutOfMemory {
    /// The step, from 1.
    pub step: usize,
    /// What was short.
    pub shortage: Shortage,
    /// Memory after the step was abandoned.
    pub memory: MemoryReading,
    /// Memory of the driver's context.
    pub context: Bytes,
    /// The device then, if it answers.
    pub device: Option<DeviceInfo>,
    /// The largest stages under the last plan with their bytes, largest first.
    pub holders: Vec<(String, Bytes)>,
    /// The smallest feasible budget, if known.
    pub smallest: Option<Bytes>,
    /// Which bytes `smallest` counts.
    pub count: Count,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory in step {}: {}", self.step, self.shortage)?;
        f.write_str("; no smaller plan fits")?;
        let reserved = self.memory.reserved_bytes;
        // Reserved bytes count the context everywhere.
        let context = match self.context {
            Bytes::ZERO => "",
            _ => " with the driver's context",
        };
        match (self.smallest, self.count, reserved) {
            (Some(smallest), _, None) => write!(f, ", the smallest takes {smallest}")?,
            (Some(smallest), Count::InUse, _) => {
                write!(f, ", the smallest has {smallest} in use")?;
            }
            (Some(smallest), Count::Reserved, _) => {
                write!(f, ", the smallest has {smallest} reserved{context}")?;
            }
            (None, ..) => {}
        }
        let in_use = self.memory.in_use_bytes;
        write!(f, ". Without the step {in_use} are in use")?;
        if let Some(reserved) = reserved {
            write!(f, ", {} reserved{context}", reserved + self.context)?;
        }
        let device = self.device.as_ref();
        if let Some(free) = device.and_then(|device| device.free_bytes) {
            match device.and_then(|device| device.total_bytes) {
                Some(total) => write!(f, ", {free} of {total} free")?,
                None => write!(f, ", {free} free")?,
            }
        }
        f.write_str(". The stages that hold the most: ")?;
        for (place, (name, bytes)) in self.holders.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(f, "{comma}`{name}` {bytes}")?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_the_context_says_so() {
        let mut ended = OutOfMemory {
            step: 3,
            shortage: Shortage::InUpdate,
            memory: MemoryReading {
                in_use_bytes: Bytes(20 << 20),
                reserved_bytes: Some(Bytes(30 << 20)),
                ..MemoryReading::default()
            },
            context: Bytes(64 << 20),
            device: None,
            holders: Vec::new(),
            smallest: Some(Bytes(120 << 20)),
            count: Count::Reserved,
        };
        let said = ended.to_string();
        let words = "the smallest has 120.0 MiB reserved with the driver's context. Without the step 20.0 MiB are in use, \
                     94.0 MiB reserved with the driver's context.";
        assert!(said.contains(words), "{said}");
        ended.count = Count::InUse;
        let said = ended.to_string();
        assert!(
            said.contains("the smallest has 120.0 MiB in use."),
            "{said}"
        );
        // On the CPU there are no reserved bytes.
        ended.memory.reserved_bytes = None;
        let said = ended.to_string();
        assert!(said.contains("the smallest takes 120.0 MiB. "), "{said}");
        assert!(!said.contains("context"), "{said}");
    }
}
