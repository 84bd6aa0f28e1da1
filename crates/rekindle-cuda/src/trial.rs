//! A small kernel that uses all headers, compiled and loaded: what it finds missing, every kernel of that kind would.

use std::ffi::CString;

use cudarc::{
    driver::{result::module, sys::CUresult},
    nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts},
};

use crate::{
    CudaError, Gpu, Nvrtc, Toolkit, Version, driver::failed, driver_version, headers, nvrtc,
    toolkit,
};

/// What kernels include for half precision.
const KERNEL: &str = r#"
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void trial(const half *a, __nv_bfloat16 *b) { b[0] = __float2bfloat16(__half2float(a[0])); }
"#;

/// What they include besides for tensor cores, barriers and asynchronous copies, which GPUs have from compute capability
/// 7.0 on.
const TENSOR_CORES: &str = r#"
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <mma.h>
extern "C" __global__ void trial_mma(const half *a, const half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, half, row_major> left;
    fragment<matrix_b, 16, 16, 16, half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(left, a, 16);
    load_matrix_sync(right, b, 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(c, sum, 16, mem_row_major);
}
"#;

/// Compiles a small kernel for a GPU and loads it: NVRTC, all headers that kernels use, and the driver are tried.
///
/// # Errors
///
/// What is missing.
pub fn try_compiling(gpu: &Gpu) -> Result<(), CudaError> {
    let (driver, nvrtc, toolkit) = parts()?;
    let ptx = compiled(gpu, toolkit, &nvrtc)?;
    load(gpu, ptx, &nvrtc, driver)
}

/// Finds the driver, NVRTC and all headers that kernels use, without opening a GPU or compiling.
///
/// # Errors
///
/// What is missing.
pub fn parts() -> Result<(Version, Nvrtc, &'static Toolkit), CudaError> {
    let driver = driver_version()?;
    let nvrtc = nvrtc()?;
    let Some(toolkit) = toolkit() else {
        return Err(CudaError::NoToolkit(nvrtc.version));
    };
    let missing = toolkit.missing();
    if !missing.is_empty() {
        let include = toolkit.home.join("include");
        return Err(CudaError::NoHeaders {
            version: headers::version(&include).unwrap_or(nvrtc.version),
            include,
            missing,
        });
    }
    if !toolkit.is_known_to_the_backend() {
        return Err(CudaError::NotPrepared(toolkit.home.clone()));
    }
    Ok((driver, nvrtc, toolkit))
}

/// The kernel's PTX.
fn compiled(gpu: &Gpu, toolkit: &Toolkit, nvrtc: &Nvrtc) -> Result<Vec<u8>, CudaError> {
    let mut source = KERNEL.to_owned();
    if gpu.compute >= 70 {
        source.push_str(TENSOR_CORES);
    }
    let include = toolkit.home.join("include");
    let paths = [include.clone(), include.join("cccl")];
    let options = CompileOptions {
        include_paths: paths.map(|path| path.display().to_string()).to_vec(),
        options: vec![format!("--gpu-architecture={}", architecture(gpu))],
        ..CompileOptions::default()
    };
    let compiled =
        compile_ptx_with_opts(source, options).map_err(|error| CudaError::DoesNotCompile {
            nvrtc: nvrtc.version,
            home: toolkit.home.clone(),
            log: first_error(&error),
        })?;
    let ptx = compiled.as_bytes().unwrap_or_default();
    let ptx = ptx.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(ptx.to_vec())
}

/// The architecture that the backend compiles for.
fn architecture(gpu: &Gpu) -> String {
    let specific = if gpu.compute >= 90 { "a" } else { "" };
    format!("sm_{}{specific}", gpu.compute)
}

fn first_error(error: &CompileError) -> String {
    let CompileError::CompileError { log, .. } = error else {
        return error.to_string();
    };
    let log = log.to_string_lossy();
    let lines = log.lines().map(str::trim);
    let error = lines.clone().find(|line| line.contains("error"));
    error
        .or(lines.clone().next())
        .unwrap_or_default()
        .to_owned()
}

fn load(gpu: &Gpu, ptx: Vec<u8>, nvrtc: &Nvrtc, driver: Version) -> Result<(), CudaError> {
    let ptx = CString::new(ptx).unwrap_or_default();
    // The module goes with the context, unless the process has one already.
    let _context = gpu.context()?;
    // SAFETY: PTX that ends with a zero, and the context is current on this thread.
    let loaded = unsafe { module::load_data(ptx.as_ptr().cast()) };
    match loaded {
        Ok(loaded) => {
            // SAFETY: loaded above, and nothing of it runs.
            let _ = unsafe { module::unload(loaded) };
            Ok(())
        }
        Err(error) if error.0 == CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            Err(CudaError::NvrtcTooNew {
                nvrtc: nvrtc.version,
                driver,
            })
        }
        Err(error) => Err(failed("cuModuleLoadData", error)),
    }
}
