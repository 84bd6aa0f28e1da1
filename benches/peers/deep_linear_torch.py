"""The deep linear stack in PyTorch: plain, and by torch.utils.checkpoint.checkpoint_sequential.

Prints one JSON document: peak allocated and reserved bytes above the start, and the median step time, for each
number of segments (1 = plain).

    python3 deep_linear_torch.py [--device cuda|cpu] [--depth 64] [--width 512] [--batch 2048] [--segments 1,2,4,8,16]
"""

import argparse
import json
import statistics
import time

import torch
from torch.utils.checkpoint import checkpoint_sequential

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--depth", type=int, default=64)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=2048)
parser.add_argument("--segments", default="1,2,4,8,16")
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()

cuda = args.device.startswith("cuda")
torch.manual_seed(1)
blocks = [torch.nn.Sequential(torch.nn.Linear(args.width, args.width), torch.nn.GELU()) for _ in range(args.depth)]
model = torch.nn.Sequential(*blocks).to(args.device)
data = torch.rand(args.batch, args.width, device=args.device)


def step(segments):
    model.zero_grad(set_to_none=True)
    if segments == 1:
        output = model(data)
    else:
        output = checkpoint_sequential(model, segments, data, use_reentrant=False)
    output.pow(2).mean().backward()
    if cuda:
        torch.cuda.synchronize()


rows = []
for segments in map(int, args.segments.split(",")):
    step(segments)
    model.zero_grad(set_to_none=True)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
    times = []
    for _ in range(args.steps):
        started = time.perf_counter()
        step(segments)
        times.append(time.perf_counter() - started)
    rows.append(
        {
            "segments": segments,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() - base if cuda else None,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
            "step_s": statistics.median(times),
        }
    )

print(json.dumps({"torch": torch.__version__, "device": args.device, "batch": args.batch, "rows": rows}, indent=2))
