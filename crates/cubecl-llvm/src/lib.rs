//! Stands in for cubecl's crate of this name, so that CUDA builds from the package registry alone.
//!
//! cubecl 0.11 can compile CUDA kernels in two ways: as CUDA C++ by NVRTC, or by LLVM. `cubecl-cuda` depends on both,
//! and the real `cubecl-llvm` downloads a prebuilt LLVM while it builds. Rekindle uses NVRTC (feature `cpp` of
//! `cubecl-cuda`), so this crate has what `cubecl-cuda` names of the LLVM compiler and no LLVM: compiling with it is an
//! error. `[patch.crates-io]` in the workspace's `Cargo.toml` puts it in place. A patch holds in its own workspace only:
//! a program that uses the library `rekindle` gets cubecl's own crate, or copies the patch.
//!
//! Version and items follow cubecl-llvm 0.11.3.

#![forbid(unsafe_code)]

use std::{ffi::c_char, fmt};

use cubecl_core::{ir::nvidia::SmArch, prelude::KernelDefinition};
use cubecl_environment::backtrace::BackTrace;
use cubecl_server::{
    compiler::{CompilationError, Compiler},
    kernel::BufferIOAttr,
};

use nvptx::ptx_version::PtxVersion;

pub mod nvptx {
    //! NVIDIA's intermediate code.

    pub mod ptx_version {
        //! Its versions.

        use std::fmt;

        /// A version of PTX. There is none without LLVM.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PtxVersion {}

        impl PtxVersion {
            /// The newest version that a driver takes.
            #[must_use]
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {}
            }
        }
    }
}

pub mod shared {
    //! What does not depend on the target.

    pub mod lowered_features {
        //! Features that a compiler lacks on a target.

        use cubecl_core::ir::DeviceProperties;

        /// The kinds of GPU.
        #[derive(Clone, Copy, Debug)]
        pub enum GpuTarget {
            /// NVIDIA's.
            Nvptx,
        }

        /// Takes nothing away: NVRTC compiles.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}

/// What LLVM would compile for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA's GPUs.
    Nvptx,
}

/// The compiler, which compiles nothing.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What it would compile for.
    pub target: LlvmTarget,
}

/// Its options.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// The processor's instruction set.
    pub arch: Option<()>,
    /// The GPU's architecture.
    pub sm_arch: Option<SmArch>,
    /// The version of PTX to write.
    pub ptx_version: Option<PtxVersion>,
    /// Whether kernel parameters are grid constants.
    pub grid_constants: bool,
}

/// A compiled CUDA kernel.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// Its code, ended by zero.
    pub ptx: Vec<c_char>,
    /// The function to launch.
    pub entrypoint: String,
    /// LLVM's code for it.
    pub ir: String,
    /// Bytes of shared memory.
    pub shared_memory_size: usize,
    /// How it uses its buffers.
    pub io: Vec<BufferIOAttr>,
}

/// What a compilation gives.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// A CUDA kernel.
    NvptxCode(NvptxModule),
    /// A kernel for something else.
    Other,
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvptxCode(module) => f.write_str(&module.ir),
            Self::Other => Ok(()),
        }
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM: kernels are compiled by NVRTC".into(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
