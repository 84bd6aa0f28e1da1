//! A tape gives what the plain run gives, bit for bit, or an error.

mod misuse;
mod models;
mod parity;
mod random;
mod run;

use burn::tensor::Device;

fn device() -> Device {
    Device::flex().autodiff()
}
