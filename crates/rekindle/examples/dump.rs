#[path = "../tests/record_parity/models.rs"]
#[allow(dead_code)]
mod models;
use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle_plan::graph::{borders, simulate};
#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
fn main() {
    let device = Device::flex().autodiff();
    let model = models::Vgg::new(&device);
    let b = (Tensor::<4>::random([48, 3, 32, 32], Distribution::Default, &device), Tensor::<1, Int>::zeros([48], &device));
    let s = rekindle::record(&model, &b, |m: &models::Vgg, (x, y)| models::cross_entropy(m.forward(x), y)).unwrap().segments(2).unwrap();
    let (g, p) = s.graph();
    let sim = simulate(&g, &p);
    for b in borders(&g) { println!("border at {} live {:?} bytes {}", b.operations, b.live, b.bytes); }
    for (i, o) in p.operations().iter().enumerate() {
        let op = g.operation(*o);
        println!("{i} op{} {}in {:?} out {:?} bytes {:?} view {} inplace {:?} temp {} s {:.1e} rep {} res {} peak {}", o.0, if op.backward {"B "} else {""}, op.inputs.iter().map(|t|t.0).collect::<Vec<_>>(), op.outputs.iter().map(|t|t.0).collect::<Vec<_>>(), op.outputs.iter().map(|t|g.tensor(*t).bytes.0).collect::<Vec<_>>(), op.view, op.in_place, op.temp_bytes.0, op.seconds.0, op.repeatable, sim.resident[i].0, sim.peaks[i].0);
    }
}
