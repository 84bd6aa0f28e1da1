//! The recording device, and the marks with which chains delimit their stages.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
};

use burn::tensor::{Device, DeviceConfig, DeviceSettings, Tensor};
use burn_backend::{AutodiffBackend, DeviceError, DeviceOps, set_default_dtypes};
use burn_capture::CaptureBackend as Capture;
use burn_dispatch::{DispatchDevice, backends::Autodiff};
use burn_ir::TensorId;

use super::tensors::capture_of;
use crate::record::RecordError;

/// The recording device with the default types of `device`, so that tensors that the step itself creates (positions,
/// masks, indices of pooled maxima) have the same types as there. burn supports 65,536 recording devices per process,
/// and a device's defaults can be set only once: so one device is created for each set of defaults, and used by one
/// thread at a time.
pub(super) fn recording_device(device: Option<&Device>) -> Result<Arc<Mutex<Device>>, RecordError> {
    /// The defaults of burn's tensors, and those of autodiff, which reads them from the backend.
    type Defaults = [DeviceSettings; 2];
    type Made = Vec<(Option<Defaults>, Arc<Mutex<Device>>)>;
    static MADE: Mutex<Made> = Mutex::new(Vec::new());
    let defaults = device.map(|device| [device.settings(), device.as_dispatch().defaults()]);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = made.iter().find(|(of, _)| *of == defaults) {
        return Ok(device.clone());
    }
    let device = Device::capture();
    if let Some([tensors, backend]) = defaults {
        let mut configured = Ok(());
        // The device answers queries for its supported types only inside a scope.
        let empty = device.capture_scope(|scope| {
            configured = configure(&device, &tensors, &backend);
            scope.complete([], [])
        });
        let wrong = |error: &dyn std::fmt::Display| RecordError::Capture(error.to_string());
        configured.map_err(|error| wrong(&error))?;
        empty.map_err(|error| wrong(&error))?;
    }
    let device = Arc::new(Mutex::new(device));
    made.push((defaults, device.clone()));
    Ok(device)
}

fn configure(
    device: &Device,
    tensors: &DeviceSettings,
    backend: &DeviceSettings,
) -> Result<(), DeviceError> {
    let config = DeviceConfig::default()
        .float_dtype(tensors.float_dtype)
        .int_dtype(tensors.int_dtype)
        .bool_dtype(tensors.bool_dtype);
    device.clone().configure(config)?;
    let DispatchDevice::Capture(inner) = device.as_dispatch() else {
        unreachable!("a recording device");
    };
    set_default_dtypes::<Capture>(
        inner,
        backend.float_dtype,
        backend.int_dtype,
        backend.bool_dtype,
    )
}

/// The marks of a recording that runs on this thread.
pub(super) struct Marks {
    device: Device,
    pub(super) made: Vec<TensorId>,
    /// Created before the step.
    pub(super) start: Option<TensorId>,
    /// Nesting depth of chains: a chain inside a stage of another chain makes no marks.
    depth: usize,
}

impl Marks {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            made: Vec::new(),
            start: None,
            depth: 0,
        }
    }
}

thread_local! {
    pub(super) static MARKS: RefCell<Option<Marks>> = const { RefCell::new(None) };
}

/// Marks the borders between the stages of a chain, if this thread is recording: `run` receives the function that makes
/// a mark.
pub(crate) fn marking<T>(run: impl FnOnce(&dyn Fn()) -> T) -> T {
    let deeper = |by: isize| {
        MARKS.with_borrow_mut(|marks| {
            if let Some(marks) = marks {
                marks.depth = marks.depth.saturating_add_signed(by);
            }
        });
    };
    deeper(1);
    let result = run(&|| {
        MARKS.with_borrow_mut(|marks| {
            if let Some(marks) = marks.as_mut().filter(|marks| marks.depth == 1) {
                marks.made.push(mark(&marks.device).0);
            }
        });
    });
    deeper(-1);
    result
}

/// Whether this thread is recording.
pub(super) fn is_recording() -> bool {
    MARKS.with_borrow(Option::is_some)
}

/// Marks the start of the step, after the model and the batch. Returns the number of its node in burn's graph.
pub(super) fn start_step(device: &Device) -> u64 {
    let (start, node) = mark(device);
    MARKS.with_borrow_mut(|marks| {
        if let Some(marks) = marks {
            marks.start = Some(start);
        }
    });
    node
}

/// Marks a moment by the next tensor, and the next node in burn's graph: its nodes are numbered through the process.
pub(super) fn mark(device: &Device) -> (TensorId, u64) {
    let tensor = capture_of(Tensor::<1>::empty([1], device));
    let id = tensor.id();
    (id, Autodiff::<Capture>::from_inner(tensor).id().value)
}
