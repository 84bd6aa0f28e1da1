"""Trains a network of PyTorch in the ways that it is told, for `compare`.

    LD_PRELOAD=heap.so python3 steps.py RECORD BATCHES

Each line of standard input is a way and a number of steps, each line of the answer a JSON document: the median of their times, and the peak of the
heap. One more step comes first and does not count. The peak is what parameters, running statistics, the optimizer's state and the
batch take, and the most that a step adds: neither Python nor the compiler counts.
"""

import ctypes
import functools
import gc
import json
import pathlib
import statistics
import sys
import time

import torch
from network import Residual, batches, network, optimizer_of, step
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

heap = ctypes.CDLL(None)
heap.heap_live.restype = heap.heap_peak.restype = ctypes.c_long

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def keep_products(context, operation, *arguments, **keywords):
    return CheckpointPolicy.MUST_SAVE if operation in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def by_block(model, x, **keywords):
    """Each residual block under `checkpoint`; other layers keep what they need."""
    for layer in model:
        x = checkpoint(layer, x, use_reentrant=False, **keywords) if isinstance(layer, Residual) else layer(x)
    return x


@functools.cache
def forward(model, way):
    kind, _, number = way.partition("=")
    if kind == "segments":
        return lambda x: checkpoint_sequential(model, int(number), x, use_reentrant=False)
    if kind == "blocks":
        return functools.partial(by_block, model)
    if kind == "products":
        contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
        return functools.partial(by_block, model, context_fn=contexts)
    if kind == "compiled":
        torch._functorch.config.activation_memory_budget = float(number)
        return torch.compile(model)
    assert way == "plain", way
    return model


def held(values):
    """Bytes of distinct tensors."""
    return sum({value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}.values())


def measured(record, model, optimizer, batch, way, steps):
    times, added = [], []
    for _ in range(steps + 1):
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        before = heap.heap_live()
        heap.heap_restart()
        started = time.perf_counter()
        step(record, model, optimizer, forward(model, way), *batch)
        times.append(time.perf_counter() - started)
        added.append(heap.heap_peak() - before)
    state = [value for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
    fixed = held([*model.parameters(), *model.buffers(), *state, *batch])
    return {"step_s": statistics.median(times[1:]), "peak_bytes": fixed + max(added[1:]), "first_s": times[0]}


def main():
    torch.manual_seed(1)
    record = json.loads(pathlib.Path(sys.argv[1]).read_text())
    model = network(record)
    batch = batches(sys.argv[2])[0]
    optimizer = optimizer_of(record, model)
    for line in sys.stdin:
        way, steps = line.split()
        try:
            answer = measured(record, model, optimizer, batch, way, int(steps))
        except Exception as error:  # what a compiler raises is not known
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
