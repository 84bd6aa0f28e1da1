//! What CUDA needs, as found here, and what its GPUs have.

use rekindle_cuda::{CudaError, driver_version, gpus, nvrtc, prepare, toolkit, try_compiling};

fn main() -> Result<(), CudaError> {
    prepare();
    println!("driver knows CUDA {}", driver_version()?);
    match toolkit() {
        Some(toolkit) => println!("headers in {}", toolkit.home.display()),
        None => println!("no headers"),
    }
    let nvrtc = nvrtc()?;
    println!("NVRTC {} from {:?}", nvrtc.version, nvrtc.path);
    for gpu in gpus()? {
        println!("{gpu:?}: {} bytes are free", gpu.context()?.free()?);
        try_compiling(&gpu)?;
    }
    println!("a tensor-core kernel compiles and loads");
    Ok(())
}
