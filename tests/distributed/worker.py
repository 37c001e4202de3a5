"""One training, by one process or by several: `python worker.py RANK COUNT STORE OUTPUT CASE…` is one of several.

Each case runs a few guided iterations on batches that depend on the case alone; the processes take their shards.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ipg.collectives import GlobalCrossEntropy
from ipg.guidance import Guidance, Pairs
from ipg.models.small import build_small
from ipg.training.sharding import sharded

CLASSES = 3
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
}


@dataclass(frozen=True)
class Case:
    wrap: str = "ddp"
    """ddp, static (DDP with a static graph), views (gradients are views of DDP's buckets), bare; or fully_shard: fsdp
    (layers, then the whole), fsdp root (the whole alone), fsdp head (the head, too: refused)."""
    norm: str = "group"
    """group (GroupNorm) or batch (BatchNorm, kept in eval mode)."""
    optimizer: str = "sgd"
    dtype: torch.dtype = torch.float64
    pairs: int = 8
    batch: int = 16
    iterations: int = 6
    form: str = "step"
    """step, own (correct, two micro-batches, rescale), plain (no pairs) or sum (terms in the task loss)."""
    temperature: float = 1.0
    """What the model divides the output of its head by before it returns it."""
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "sgd": Case(),
    "adam": Case(optimizer="adam"),
    "batch norm": Case(norm="batch", options={"batch_norm": "eval"}),
    "every third": Case(optimizer="adam", options={"every": 3, "alpha": 0.3}, iterations=8),
    "relative margin": Case(options={"margin": "0.7x"}),
    "condition met": Case(options={"tau": 1.0, "strict": True, "floor": 0.05}),
    "jitter": Case(options={"jitter": 0.1, "margin": "0.7x"}),
    "logits": Case(options={"distance": "logits", "margin": 1.0}),
    "bare": Case(wrap="bare", optimizer="adam", options={"every": 2}),
    "bare, plain": Case(wrap="bare", form="plain"),
    "static graph": Case(wrap="static", options={"every": 2}),
    "bucket views": Case(wrap="views", optimizer="adam"),
    "plain": Case(form="plain"),
    "own backward": Case(form="own", optimizer="adam", options={"every": 2}),
    "bare, own backward": Case(form="own", wrap="bare"),
    "sum of losses": Case(form="sum"),
    "uneven": Case(pairs=7, batch=13, options={"margin": "0.7x"}),
    "uneven, bare": Case(wrap="bare", pairs=5, batch=9, optimizer="adam"),
    "fewer than processes": Case(pairs=1, batch=3),
    "float32": Case(dtype=torch.float32, iterations=1, pairs=7, batch=13),
    "float32 adam": Case(dtype=torch.float32, iterations=1, optimizer="adam"),
    "fsdp": Case(wrap="fsdp"),
    "fsdp adam": Case(wrap="fsdp", optimizer="adam", options={"every": 3, "margin": "0.7x"}, pairs=7, batch=13),
    "fsdp, root alone": Case(wrap="fsdp root"),
    "fsdp, plain": Case(wrap="fsdp", form="plain"),
    "fsdp, cooled": Case(wrap="fsdp root", temperature=2.0, options={"every": 2, "margin": "0.7x"}),
}


class Net(nn.Module):
    """Convolutions and a head."""

    def __init__(self, norm: str, temperature: float) -> None:
        super().__init__()
        make = {"group": lambda: nn.GroupNorm(2, 8), "batch": lambda: nn.BatchNorm2d(8)}[norm]
        self.body = nn.Sequential(nn.Conv2d(2, 8, 3), make(), nn.Tanh(), nn.Conv2d(8, 8, 3), make(), nn.Tanh())
        self.fc, self.temperature = nn.Linear(8, CLASSES), temperature

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(images).mean(dim=(2, 3)))
        return logits if self.temperature == 1 else logits / self.temperature


def build(case: Case) -> Net:
    torch.manual_seed(0)
    model = Net(case.norm, case.temperature).to(case.dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model


def wrapped(model: nn.Module, wrap: str) -> nn.Module:
    if wrap == "bare" or not dist.is_initialized():
        return model
    if wrap.startswith("fsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        inner = {"fsdp": [model.body[0], model.body[3]], "fsdp root": [], "fsdp head": [model.body, model.fc]}[wrap]
        for module in inner:
            fully_shard(module, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return DistributedDataParallel(model, static_graph=wrap == "static", gradient_as_bucket_view=wrap == "views")


def data(case: Case, iteration: int) -> tuple[Tensor, Tensor, Pairs]:
    """The whole task batch and the whole pair batch of an iteration."""
    generator = torch.Generator().manual_seed(1000 + iteration)

    def images(n: int) -> Tensor:
        return torch.randn(n, 2, 8, 8, generator=generator, dtype=torch.float64).to(case.dtype)

    def labels(n: int) -> Tensor:
        return torch.randint(CLASSES, (n,), generator=generator)

    first, x, y, label = images(case.pairs), images(case.batch), labels(case.batch), labels(case.pairs)
    return x, y, Pairs(first, first + images(1), label)


def run(case: Case, index: int = 0, count: int = 1) -> dict[str, Any]:
    """What the case ends with: parameters, momentum, and a report an iteration."""
    bare = build(case)
    model = wrapped(bare, case.wrap)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    guide = Guidance(model, optimizer, **case.options)
    criterion = GlobalCrossEntropy(torch.tensor([0.2, 1.0, 3.0], dtype=case.dtype))
    torch.manual_seed(5 if index == 0 else 100 + index)  # processes need not share a random state
    reports = []
    for iteration in range(case.iterations):
        x, y, pairs = data(case, iteration)
        x, y, pairs = x.tensor_split(count)[index], y.tensor_split(count)[index], pairs.shard(index, count)
        if case.form == "step":
            report = guide.step(lambda x=x, y=y: criterion(model(x), y), pairs)
        elif case.form == "plain":
            report = guide.step(lambda x=x, y=y: criterion(model(x), y), None)
        elif case.form == "own":
            correction = guide.correct(pairs)
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
                (F.cross_entropy(model(a), b) / 2).backward()
            report = guide.rescale(correction)
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss = criterion(model(x), y)
            terms = guide.terms(pairs)
            (loss + terms.alignment + terms.uniformity).backward()
            optimizer.step()
            optimizer.zero_grad()
            reports.append({name: float(value.detach()) for name, value in terms._asdict().items()})
            continue
        reports.append(report.numbers())
    guide.check()
    return {
        "parameters": {name: whole(value) for name, value in bare.state_dict().items()},
        "reports": reports,
        "guide": guide.state_dict(),
        "spread": spread(bare, count),
    }


def whole(value: Tensor) -> Tensor:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone()


def spread(model: nn.Module, count: int) -> float:
    """How far the processes' parameters are from each other."""
    flat = torch.cat([whole(parameter).flatten() for parameter in model.parameters()])
    if count == 1:
        return 0.0
    most, least = flat.clone(), flat.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float((most - least).max())


def refused(index: int, count: int) -> dict[str, str]:
    """What is said to shards and replicas that do not fit together."""
    said = {}
    case = Case(wrap="bare")
    _, _, pairs = data(case, 0)
    for name, n, scale in (("lengths", index + 2, 1.0), ("replicas", 3, 1.0 + index)):
        model = build(case)
        model.fc.weight.data *= scale
        guide = Guidance(model, OPTIMIZERS["sgd"](model.parameters()))
        try:
            guide.correct(Pairs(pairs.first[:n], pairs.second[:n], pairs.label[:n]))
        except ValueError as error:
            said[name] = str(error)
    model = wrapped(build(case), "fsdp head")
    try:
        Guidance(model, OPTIMIZERS["sgd"](model.parameters())).correct(pairs.shard(index, count))
    except RuntimeError as error:
        said["head"] = str(error)
    try:
        Guidance(build(case), OPTIMIZERS["sgd"](model.parameters()), process_group=None).correct(pairs.shard(0, 2))
    except ValueError as error:
        said["alone"] = str(error)
    return said


def counted(index: int, count: int) -> dict[str, dict[str, int]]:
    """Bytes that a process hands to each kind of exchange in one plain and in one guided iteration."""
    sent: dict[str, int] = {}

    def note(kind: str, tensor: Tensor) -> None:
        sent[kind] = sent.get(kind, 0) + tensor.nbytes

    gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    originals = {name: getattr(dist, name) for name in ("all_reduce", gather, "broadcast")}

    def watched(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            note("all_gather" if name == gather else name, arguments[1] if name == gather else arguments[0])
            return originals[name](*arguments, **options)

        return call

    def hook(state, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations that are strings
        note("ddp", bucket.buffer())
        future = originals["all_reduce"](bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / count)

    case = Case(dtype=torch.float32, pairs=8 * count, batch=8 * count)
    model = wrapped(build(case), "ddp")
    model.register_comm_hook(None, hook)
    guide = Guidance(model, OPTIMIZERS["adam"](model.parameters()), every=2)
    criterion = GlobalCrossEntropy()
    found = {"parameters": {"bytes": sum(p.nbytes for p in model.parameters())}}
    x, y, pairs = data(case, 0)
    x, y, pairs = x.tensor_split(count)[index], y.tensor_split(count)[index], pairs.shard(index, count)
    for name in originals:
        setattr(dist, name, watched(name))
    try:
        for name, given in (("first", pairs), ("between", pairs), ("corrects", pairs), ("erm", None)):
            sent.clear()
            guide.step(lambda: criterion(model(x), y), given)
            found[name] = dict(sent)
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return found


class Sent(TorchDispatchMode):
    """Bytes that this process hands over by each kind of exchange, inside."""

    KINDS = ("allgather", "all_gather", "reduce_scatter", "allreduce", "all_reduce", "broadcast")

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes back with the parts
        namespace, _, name = str(func).partition(".")
        name = name.lstrip("_")
        if "c10d" in namespace and (kind := next((kind for kind in self.KINDS if name.startswith(kind)), None)):
            given = args[1] if namespace == "c10d" and kind in ("allgather", "reduce_scatter") else args[0]
            found = sum(tensor.nbytes for tensor in tree_leaves(given) if isinstance(tensor, Tensor))
            kind = kind.replace("_", "")
            self.bytes[kind] = self.bytes.get(kind, 0) + found
        return func(*args, **kwargs or {})


def counted_shards(index: int, count: int) -> dict[str, Any]:
    """Bytes that a process hands over in one plain and in one guided iteration of a network in shards."""
    torch.manual_seed(0)
    model = build_small("small_vit", channels=2, classes=CLASSES, size=8)
    sizes = {name: (tuple(value.shape), value.element_size()) for name, value in model.named_parameters()}
    case = Case(dtype=torch.float32, pairs=8 * count, batch=8 * count)
    x, y, pairs = data(case, 0)
    shards = sharded(model, x[:1], torch.device("cpu"), bf16=False)
    guide = Guidance(shards, OPTIMIZERS["adam"](shards.parameters()), every=2)
    criterion = GlobalCrossEntropy()
    x, y, pairs = x.tensor_split(count)[index], y.tensor_split(count)[index], pairs.shard(index, count)
    found: dict[str, Any] = {"sizes": sizes}
    for name, given in (("first", pairs), ("between", pairs), ("corrects", pairs), ("erm", None)):
        with Sent() as sent:
            guide.step(lambda: criterion(shards(x), y), given)
        found[name] = dict(sent.bytes)
    return found


def main() -> None:
    index, count, store, output, *names = sys.argv[1:]
    rank, size = int(index), int(count)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    special = {"refused": refused, "counted": counted, "counted shards": counted_shards}
    found = {name: special[name](rank, size) if name in special else run(CASES[name], rank, size) for name in names}
    torch.save(found, Path(output) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
