"""The networks of Rekindle's configs in PyTorch: built from the model in a run's record, which has groups unfolded and defaults
written out, so that each network is described once."""

import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional

Residual = type("Residual", (nn.Sequential,), {"forward": lambda self, x: x + nn.Sequential.forward(self, x)})


class Positions(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, dim) / dim**0.5)

    def forward(self, x):
        return x + self.weight


class Unembedding(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return functional.linear(x, self.embedding.weight)


class Attention(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.heads, self.causal = heads, causal

    def forward(self, x):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


def layer(spec, x, embedding):
    """The module of one layer on `x`."""
    kind, keys = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    first, last = x.shape[1], x.shape[-1]
    if kind == "residual":
        return sequence(Residual, keys, x, embedding)
    if kind == "conv2d":
        padding = [size // 2 for size in keys["kernel"]] if keys["padding"] == "same" else keys["padding"]
        return nn.Conv2d(first, keys["out"], keys["kernel"], keys["stride"], padding, bias=keys["bias"])
    if kind == "max_pool2d":
        return nn.MaxPool2d(keys["kernel"], keys["stride"], keys["padding"])
    if kind == "avg_pool2d":
        return nn.AvgPool2d(keys["kernel"], keys["stride"], keys["padding"], count_include_pad=False)
    return {
        "linear": lambda: nn.Linear(last, keys["out"], bias=keys["bias"]),
        "batch_norm": lambda: (nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d)(first),
        "layer_norm": lambda: nn.LayerNorm(last),
        "embedding": lambda: nn.Embedding(keys["vocab"], keys["dim"]),
        "unembedding": lambda: Unembedding(embedding),
        "positions": lambda: Positions(first, last),
        "attention": lambda: Attention(last, **keys),
        "flatten": nn.Flatten,
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "tanh": nn.Tanh,
        "dropout": lambda: nn.Dropout(keys["p"]),
    }[kind]()


@torch.no_grad()
def sequence(kind, specs, x, embedding=None):
    """A list of layers, each with the sizes that the one before leaves."""
    layers = []
    for spec in specs:
        layers.append(layer(spec, x, embedding).eval())
        x = layers[-1](x)
        embedding = layers[0] if isinstance(layers[0], nn.Embedding) else embedding
    return kind(*layers)


def network(record):
    """The network of a run's record."""
    source = record["model"]["input"]
    sample = torch.zeros([1, *source["dims"]], dtype=torch.int32 if source["kind"] == "token" else torch.float32)
    return sequence(nn.Sequential, record["model"]["layers"], sample).train()


def tensors(model):
    """Its tensors in the order of `weights.safetensors`, and as they stand there: weights of linear layers are `[in, out]`."""
    for name, value in model.state_dict(keep_vars=True).items():
        if name.endswith("num_batches_tracked"):
            continue
        of_linear = isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)
        yield value.detach().t() if of_linear and value.dim() == 2 else value.detach()


def weights(path):
    """The tensors of a file by name, in its order."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.offset_keys()}


def load(model, values):
    """Takes values by name, in the order of `tensors`."""
    for own, (name, value) in zip(tensors(model), values.items(), strict=True):
        assert own.shape == value.shape, name
        own.copy_(value)


def batches(path):
    """Inputs and targets of each step."""
    found = weights(path)
    targets = found["targets"]
    return list(zip(found["inputs"], targets if targets.is_floating_point() else targets.long()))


def optimizer_of(record, model):
    """What a run's record says of updates; the learning rate does not change from step to step here."""
    train = record["settings"]
    common = {"lr": train["learning_rate"], "weight_decay": train["weight_decay"] or 0.0}
    if train["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=train["momentum"], **common)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train["optimizer"]]
    return kind(model.parameters(), betas=tuple(train["betas"]), eps=train["epsilon"], **common)


def step(record, model, optimizer, forward, inputs, targets):
    """One step with its update."""
    optimizer.zero_grad(set_to_none=True)
    output = forward(inputs)
    if targets.is_floating_point():
        loss = functional.mse_loss(output, targets)
    else:
        loss = functional.cross_entropy(output.flatten(0, -2), targets)
    loss.backward()
    if record["settings"]["clip_norm"]:
        nn.utils.clip_grad_norm_(model.parameters(), record["settings"]["clip_norm"])
    optimizer.step()
    return loss.item()
