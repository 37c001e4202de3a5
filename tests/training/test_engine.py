"""Which precision, engine and layout a run gets."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ipg.comparison import is_compiled
from ipg.config import RunConfig
from ipg.models.native import NativeConvNet
from ipg.models.small import build_small
from ipg.rationale import HeadTap, find_head
from ipg.training import engine
from ipg.training.distributed import synchronised
from ipg.training.engine import compile_model, compiling, lay_out, resolve

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has bf16 and a compiler, as far as anybody asks."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(engine, "_has_triton", lambda: True)


def found(config: RunConfig, device: torch.device, processes: int = 1) -> tuple[str, str]:
    settled = resolve(config, device, processes=processes)
    assert settled.with_changes(precision=config.precision, engine=config.engine) == config.suited()  # nothing else
    return settled.precision, settled.engine


@pytest.mark.usefixtures("gpu")
def test_what_auto_stands_for() -> None:
    assert found(RunConfig(), CPU) == ("fp32", "eager")
    assert found(RunConfig(), torch.device("mps")) == ("fp32", "eager")
    assert found(RunConfig(), CUDA) == ("bf16", "captured")
    assert found(RunConfig(), CUDA, processes=2) == ("bf16", "eager")


def test_a_gpu_without_bf16_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert found(RunConfig(), CUDA) == ("fp32", "captured")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["eager", "captured", "compiled"])
def test_what_is_asked_for_is_kept(name: str) -> None:
    assert found(RunConfig(engine=name, precision="tf32"), CUDA) == ("tf32", name)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "device", "processes", "told"),
    [
        ("captured", CPU, 1, "a single CUDA GPU, not for device 'cpu'"),
        ("captured", CUDA, 4, "a single CUDA GPU, not for 4 processes"),
        ("compiled", CUDA, 4, "a single CUDA GPU, or a CPU in one process, not for 4 processes"),
        ("compiled", CPU, 2, "a single CUDA GPU, or a CPU in one process, not for 2 processes"),
        ("compiled", torch.device("mps"), 1, "a single CUDA GPU, or a CPU in one process, not for device 'mps'"),
    ],
)
def test_what_engines_are_for(name: str, device: torch.device, processes: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"engine='{name}' is for {told}; leave it out or use eager"):
        resolve(RunConfig(engine=name), device, processes=processes)


def test_as_written_anywhere() -> None:
    assert found(RunConfig(engine="eager"), CPU) == ("fp32", "eager")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cpu_compiles_where_it_can(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(engine, "obstacle", lambda *, half: asked.append(half))
    config = RunConfig(engine="compiled", precision=precision)
    assert found(config, CPU) == (precision, "compiled")
    monkeypatch.setattr(engine, "obstacle", lambda *, half: f"there is no {half}")
    with pytest.warns(UserWarning, match="cannot be compiled here, since there is no (True|False): it runs as written"):
        assert found(config, CPU) == (precision, "eager")
    assert asked == [precision == "bf16"]


@pytest.mark.usefixtures("gpu")
def test_without_a_compiler_steps_are_captured_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_has_triton", lambda: False)
    with pytest.warns(UserWarning, match="triton is not installed: captured only"):
        assert found(RunConfig(engine="compiled"), CUDA) == ("bf16", "captured")


def network(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(8, 2))


def is_channels_last(model: nn.Sequential) -> bool:
    weight = model[0].weight
    assert isinstance(weight, torch.Tensor)
    return weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("precision", "name", "norm", "device", "expected"),
    [
        ("bf16", "captured", nn.BatchNorm2d(8), CUDA, True),
        ("bf16", "compiled", nn.GroupNorm(2, 8), CUDA, True),
        ("tf32", "compiled", nn.GroupNorm(2, 8), CUDA, True),
        ("bf16", "captured", nn.GroupNorm(2, 8), CUDA, False),  # measured: slower so
        ("tf32", "captured", nn.BatchNorm2d(8), CUDA, False),
        ("bf16", "eager", nn.BatchNorm2d(8), CPU, False),
    ],
)
def test_layout(precision: str, name: str, norm: nn.Module, device: torch.device, expected: bool) -> None:
    model = lay_out(network(norm), RunConfig(precision=precision, engine=name), device)
    assert isinstance(model, nn.Sequential)
    assert is_channels_last(model) == expected


@pytest.mark.parametrize(
    ("precision", "name", "policy", "device", "expected"),
    [
        ("bf16", "captured", "eval", CUDA, True),
        ("bf16", "eager", "eval", CUDA, True),
        ("bf16", "captured", "train", CUDA, False),
        ("tf32", "captured", "eval", CUDA, False),
        ("bf16", "compiled", "eval", CUDA, False),
        ("bf16", "eager", "eval", CPU, False),
    ],
)
def test_norms_by_a_kernel(precision: str, name: str, policy: str, device: torch.device, expected: bool) -> None:
    pytest.importorskip("triton")
    config = RunConfig(precision=precision, engine=name, batch_norm=policy)
    model = lay_out(network(nn.BatchNorm2d(8)), config, device)
    assert (type(model[1]) is not nn.BatchNorm2d) == expected
    assert model.eval()(torch.rand(2, 3, 3, 3)).shape == (2, 2)  # on a CPU as written


def test_batch_statistics_can_still_be_synchronised() -> None:
    config = RunConfig(precision="bf16", engine="eager", batch_norm="train")
    model = synchronised(lay_out(network(nn.BatchNorm2d(8)), config, CUDA))
    assert isinstance(model[1], nn.SyncBatchNorm)


def test_norms_by_a_kernel_also_where_gradients_are_differentiated() -> None:
    pytest.importorskip("triton")
    config = RunConfig(method="gals_mask", masks="masks.zip", precision="bf16", engine="captured", batch_norm="eval")
    model = lay_out(network(nn.BatchNorm2d(8)), config, CUDA)
    assert type(model[1]) is not nn.BatchNorm2d
    assert is_channels_last(model)


def test_a_model_is_compiled_where_the_engine_says_so() -> None:
    model = network(nn.Identity())
    assert compile_model(model, RunConfig(engine="captured"), CUDA) is model
    made = compile_model(model, RunConfig(engine="compiled"), CUDA)
    assert made._orig_mod is model  # found by `find_head`, and by the guidance
    assert is_compiled(made)


def test_on_a_cpu_our_networks_have_kernels_and_others_run_as_written() -> None:
    config, ours = RunConfig(engine="compiled"), build_small("small_cnn", channels=2, classes=2)
    made = compile_model(ours, config, CPU)
    assert isinstance(made, NativeConvNet)
    assert made._orig_mod is ours
    assert not is_compiled(made)  # takes batches of any size
    model = network(nn.Identity())
    with pytest.warns(UserWarning, match="only mnist_cnn and small_cnn are compiled: this network runs as written"):
        assert compile_model(model, config, CPU) is model


def test_more_variants_are_compiled_inside() -> None:
    import torch._dynamo

    before = torch._dynamo.config.recompile_limit
    with compiling():
        assert torch._dynamo.config.recompile_limit == engine.VARIANTS > before
    assert torch._dynamo.config.recompile_limit == before


class Kept(logging.Handler):
    """What loggers of torch's say, whether or not they pass it on."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, loggers = Kept(), [logging.getLogger(name) for name in engine.TALKATIVE]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


def test_what_torch_tells_its_own_developers_is_left_out(kept: Kept) -> None:
    """A region for profilers inside what is compiled, as every optimizer has one, and a notice of the compiler's."""

    def update(value: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("update"):
            return value + 1

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        warnings.warn("\nOnline softmax is disabled on the fly\n", stacklevel=2)
        warnings.warn("something else", stacklevel=2)
        return graph

    torch.compiler.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with compiling():
            assert torch.compile(update, backend=backend)(torch.zeros(1)).item() == 1
    assert [str(one.message) for one in caught] == ["something else"]
    assert kept.said == []
    torch.compiler.reset()
    with compiling():
        logging.getLogger(engine.TALKATIVE[0]).warning("this matters")
    assert kept.said == ["this matters"]


def test_what_cannot_be_compiled_runs_as_written_and_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such instruction\nand more")

    model, images = network(nn.Identity()), torch.rand(2, 3, 3, 3)
    loss = torch.compile(lambda logits: logits.logsumexp(1).mean(), backend=broken, dynamic=False)
    made = torch.compile(model, backend=broken, dynamic=False)
    with compiling(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logits = made(images)
        loss(logits).backward()
    assert torch.equal(logits, model(images))
    assert model[0].weight.grad is not None
    (notice,) = [str(one.message) for one in caught if "compiled" in str(one.message)]
    assert notice.startswith("the network, or a part of its step, cannot be compiled and runs as written: ")
    assert "no such instruction" in notice
    assert "\n" not in notice
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    torch.compiler.reset()
    with pytest.raises(Exception, match="no such instruction"):  # outside it is as torch has it
        torch.compile(network(nn.Identity()), backend=broken, dynamic=False)(images)
    torch.compiler.reset()
    with compiling(strictly=True), pytest.raises(Exception, match="no such instruction"):
        torch.compile(network(nn.Identity()), backend=broken, dynamic=False)(images)


def test_what_fails_as_the_way_back_is_compiled_runs_as_written_too() -> None:
    """Torch would compile it at the first backward pass, in the midst of a step that may have made an update."""
    import torch._functorch.config as functorch
    from torch._dynamo.backends.common import aot_autograd

    if not hasattr(functorch, engine.AHEAD):
        pytest.skip("needs torch 2.11, which can compile the way back ahead")

    def broken(*_: object) -> None:
        raise RuntimeError("no such instruction on the way back")

    def as_it_is(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        return graph

    model, images = network(nn.Identity()), torch.rand(2, 3, 3, 3)
    backend = aot_autograd(fw_compiler=as_it_is, bw_compiler=broken)
    made = torch.compile(model, backend=backend, dynamic=False)
    with compiling(), pytest.warns(UserWarning, match="cannot be compiled and runs as written: .*on the way back"):
        logits = made(images)
    logits.logsumexp(1).mean().backward()
    found = [parameter.grad for parameter in model.parameters()]
    expected = torch.autograd.grad(model(images).logsumexp(1).mean(), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.compiler.reset()
    with compiling(strictly=True), pytest.raises(Exception, match="on the way back"):
        torch.compile(network(nn.Identity()), backend=backend, dynamic=False)(images)


def test_what_was_compiled_without_a_tap_is_not_taken_where_there_is_one() -> None:
    """Methods that listen at the head come after others of the same shapes in a study."""
    images = torch.rand(4, 2, 14, 14)
    with compiling():
        torch.compile(build_small("small_cnn", channels=2, classes=2), backend="eager", dynamic=False)(images)
        model = build_small("small_cnn", channels=2, classes=2)
        tap = HeadTap(find_head(model))
        with tap.listen():
            said = torch.compile(model, backend="eager", dynamic=False)(images)
    features, logits = tap.take()
    assert features.shape == (4, 32)
    assert torch.equal(logits, said)
