"""The model of deep_linear.toml in PyTorch: plain, and by torch.utils.checkpoint.checkpoint_sequential.

Prints one JSON document: for each number of segments (1 = plain) the most bytes allocated, parameters and batch
included, the most reserved, and the median time of a step with its update. Blocks are Linear + GELU, so 8 segments of
64 blocks are those of `rekindle train --segments 8`.

    python3 deep_linear_torch.py [--device cuda|cpu] [--depth 64] [--width 512] [--batch 2048] [--segments 1,2,4,8,16]
                                 [--dtype f32|tf32|bf16]
"""

import argparse
import json
import statistics
import time

import torch
from torch.utils.checkpoint import checkpoint_sequential

INPUTS, CLASSES = 64, 10

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--depth", type=int, default=64)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=2048)
parser.add_argument("--segments", default="1,2,4,8,16")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--dtype", choices=["f32", "tf32", "bf16"], default="f32")
args = parser.parse_args()

cuda = args.device.startswith("cuda")
torch.backends.cuda.matmul.allow_tf32 = args.dtype == "tf32"
torch.manual_seed(1)
dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
sizes = [INPUTS] + [args.width] * args.depth
blocks = [torch.nn.Sequential(torch.nn.Linear(*pair), torch.nn.GELU()) for pair in zip(sizes, sizes[1:])]
model = torch.nn.Sequential(*blocks, torch.nn.Linear(args.width, CLASSES)).to(args.device, dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.rand(args.batch, INPUTS, device=args.device, dtype=dtype)
classes = torch.randint(CLASSES, (args.batch,), device=args.device)


def step(segments):
    optimizer.zero_grad(set_to_none=True)
    if segments == 1:
        output = model(data)
    else:
        output = checkpoint_sequential(model, segments, data, use_reentrant=False)
    torch.nn.functional.cross_entropy(output.float(), classes).backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()


rows = []
for segments in map(int, args.segments.split(",")):
    row = {"segments": segments}
    try:
        step(segments)
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(args.steps):
            started = time.perf_counter()
            step(segments)
            times.append(time.perf_counter() - started)
        row["step_s"] = statistics.median(times)
        row["peak_allocated_bytes"] = torch.cuda.max_memory_allocated() if cuda else None
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved() if cuda else None
    except torch.cuda.OutOfMemoryError as error:
        row["error"] = str(error).split(". ")[0]
    rows.append(row)

print(json.dumps({"torch": torch.__version__, "device": args.device, "dtype": args.dtype, "batch": args.batch, "rows": rows}, indent=2))
