"""What one GPU allows of NCCL: a team of one, in each wrapping, ends where a bare model ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ipg.guidance import Guidance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture
def nccl(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (1,))
    for layer in (model.body[0], model.body[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPINGS = {"ddp": DistributedDataParallel, "fsdp": sharded}


def guided(worker: ModuleType, wrap: str | None) -> dict[str, Tensor]:
    """Parameters after a few guided iterations."""
    case = worker.Case(options={"every": 2, "margin": "0.7x"})
    bare = worker.build(case).cuda()
    model = WRAPPINGS[wrap](bare) if wrap else bare
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    guide = Guidance(model, optimizer, **case.options)
    for iteration in range(case.iterations):
        x, y, pairs = worker.data(case, iteration)
        x, y = x.cuda(), y.cuda()
        guide.step(lambda x=x, y=y: F.cross_entropy(model(x), y), pairs.to("cuda"))
    guide.check()
    return {name: worker.whole(value) for name, value in bare.state_dict().items()}


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_a_team_of_one_over_nccl_ends_where_a_bare_model_ends(worker: ModuleType, wrap: str, nccl: None) -> None:
    torch.testing.assert_close(guided(worker, wrap), guided(worker, None), rtol=1e-9, atol=1e-12)
