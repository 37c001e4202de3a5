"""Which iterations are captured and replayed, by stand-ins for CUDA: a graph that keeps what was asked of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from training.capture_cases import CASES

from ipg.config import RunConfig
from ipg.training import assembly, capture
from ipg.training.capture import LENGTHS, WARM_UP, WARM_UP_SMALLER, CapturedStep
from ipg.training.loop import train
from ipg.training.materials import Materials
from ipg.training.stepping import EagerStep

FULL = 4


class Graph:
    """Does what was asked of the device while it was captured, with whatever lies in its place then."""

    capturing: Graph | None = None
    made = 0

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.place: object = None
        self.dropped = False
        Graph.made += 1

    def pool(self) -> object:
        return self.place

    def replay(self) -> None:
        assert not self.dropped
        for part in self.work:
            part()

    def reset(self) -> None:
        self.dropped = True


@contextmanager
def recorded(graph: Graph, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
    """In the place of `torch.cuda.graph`."""
    assert capture_error_mode == "thread_local"
    graph.place, Graph.capturing = pool or object(), graph
    try:
        yield
    finally:
        Graph.capturing = None


class Method:
    """Counts its steps and notes what the device was asked to do: the rows, and whether there was a correction."""

    def __init__(self, every: int, refuses: Sequence[int] = ()) -> None:
        self.every, self.refuses = every, refuses
        self.iteration = 0
        self.done: list[tuple[list[int], bool]] = []
        self.written = 0
        self.look: Callable[[Tensor], object] = len
        self.refusal = RuntimeError("operation not permitted when stream is capturing\nand more")

    @property
    def due(self) -> bool:
        return self.iteration % self.every == 0

    def step(self, rows: Tensor) -> dict[str, Tensor]:
        due = self.due
        self.iteration += 1
        self.look(rows)
        if Graph.capturing is None:
            self.written += 1
            self.done.append((rows.tolist(), due))
        elif len(rows) in self.refuses:
            raise self.refusal
        else:
            Graph.capturing.work.append(lambda: self.done.append((rows.tolist(), due)))
        return {}

    def replayed(self) -> None:
        self.iteration += 1


class Generator:
    """A generator whose state may be changed for a copy of itself."""

    renewed = 0

    def clone_state(self) -> Generator:
        return self

    def graphsafe_set_state(self, state: Generator) -> None:
        assert state is self
        self.renewed += 1


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    """The generator of a GPU that there is as far as captures ask."""
    made = Generator()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(capture, "_side_stream", lambda device: stream)
    for name, value in {
        "CUDAGraph": Graph,
        "graph": recorded,
        "synchronize": lambda: None,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "default_generators": (made,),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Graph, "made", 0)
    return made


def stepper(kind: type[EagerStep], method: Method) -> EagerStep:
    table = SimpleNamespace(label=torch.zeros(1))
    batches: Any = SimpleNamespace(table=table, batch_size=FULL, take=lambda rows: rows)
    means: Any = SimpleNamespace(add=lambda values: None)
    return kind(method, batches, None, means)  # type: ignore[arg-type]


def epochs(count: int, lengths: Sequence[int]) -> list[Tensor]:
    """The rows of every batch, all different."""
    return list(torch.arange(count * sum(lengths)).split(list(lengths) * count))


def run(
    batches: Sequence[Tensor],
    *,
    every: int = 1,
    refuses: Sequence[int] = (),
    refusal: RuntimeError | None = None,
    look: Callable[[Tensor], object] = len,
) -> tuple[CapturedStep, Method]:
    """Iterations on `batches`, captured; they have to come to the same as they are written."""
    method, plain = Method(every, refuses), Method(every)
    method.refusal = refusal or method.refusal
    method.look = look
    step, written = stepper(CapturedStep, method), stepper(EagerStep, plain)
    for rows in batches:
        step(rows)
        written(rows)
    assert method.done == plain.done
    assert method.iteration == plain.iteration == len(batches)
    assert isinstance(step, CapturedStep)
    return step, method


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_last_batch_of_an_epoch_has_graphs_of_its_own(every: int) -> None:
    """Once full ones have: before, it runs as written. All lie in one pool."""
    step, method = run(epochs(12, [FULL, FULL, FULL, 2]), every=every)
    kinds = {1: {(4, True), (2, True)}, 2: {(4, True), (4, False), (2, False)}}
    assert set(step._graphs) == kinds.get(every, {(4, True), (4, False), (2, True), (2, False)})
    assert len({id(graph.pool()) for graph in step._graphs.values()}) == 1
    full = len({due for length, due in step._graphs if length == FULL})
    smaller = len(step._graphs) - full
    early = method.written - full * WARM_UP - smaller * WARM_UP_SMALLER  # small ones, before there was any graph
    assert early == 1
    assert Graph.made == len(step._graphs)


@pytest.mark.usefixtures("generator")
def test_a_smaller_batch_waits_for_full_ones() -> None:
    """One full batch an epoch is captured in the fourth; the small one is warmed up there and captured in the fifth."""
    step, method = run(epochs(3, [FULL, 2]))
    assert not step._graphs
    assert method.written == 6
    for epoch, (graphs, written) in enumerate(
        [({(4, True)}, 1), ({(4, True), (2, True)}, 0), ({(4, True), (2, True)}, 0)]
    ):
        before = method.written
        for rows in epochs(1, [FULL, 2]):
            step(rows)
        assert (set(step._graphs), method.written - before) == (graphs, written), epoch


@pytest.mark.usefixtures("generator")
def test_only_a_few_lengths_have_graphs() -> None:
    assert LENGTHS == 2
    step, method = run(epochs(8, [FULL, FULL, FULL, 3, 1, 2]))
    assert {length for length, _ in step._graphs} == {FULL, 3, 1}
    before = method.written
    for rows in epochs(2, [FULL, 2, 3, 1]):
        step(rows)
    assert method.written - before == 2  # those of two


def test_a_smaller_batch_that_cannot_be_captured_runs_as_written_alone(generator: Generator) -> None:
    """What torch keeps of a capture that failed is not used again: full ones are captured anew, in another pool."""
    with pytest.warns(
        UserWarning, match="the step of a batch of 2 cannot be captured as a CUDA graph and runs"
    ) as told:
        step, method = run(epochs(6, [FULL, FULL, FULL, 2]), refuses=[2])
    assert len(told) == 1
    assert str(told[0].message).endswith("as written: operation not permitted when stream is capturing")
    assert set(step._graphs) == {(FULL, True)}
    assert method.written == WARM_UP + 6
    assert generator.renewed == 1
    assert Graph.made == 3  # full, the attempt, full again
    kept = step._graphs[FULL, True].pool()
    for rows in epochs(3, [FULL, 3]):
        step(rows)
    assert step._graphs[3, True].pool() is kept  # another length is not held to it
    assert generator.renewed == 1


def test_full_batches_that_cannot_be_captured_have_all_run_as_written(generator: Generator) -> None:
    with pytest.warns(UserWarning, match="this step cannot be captured as a CUDA graph and runs as written") as told:
        step, method = run(epochs(6, [FULL, FULL, FULL, 2]), refuses=[FULL])
    assert len(told) == 1
    assert not step._graphs
    assert method.written == 24
    assert generator.renewed == 1


@pytest.mark.usefixtures("generator")
def test_nothing_is_compiled_for_a_smaller_batch() -> None:
    """Neither in its iterations as written nor in those before the capture, nor in the capture."""
    shapes: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        shapes.append(len(inputs[0]))
        return graph.forward

    look = torch.compile(lambda rows: rows + 1, backend=backend, dynamic=False)
    step, _ = run(epochs(6, [FULL, FULL, FULL, 2]), look=look)
    assert set(step._graphs) == {(FULL, True), (2, True)}
    assert shapes == [FULL]


@pytest.mark.usefixtures("generator")
def test_preparing_counts_what_comes_before_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every iteration before a capture, and every capture, by a clock that each of these moves on by a second."""
    clock = iter(range(1000))
    monkeypatch.setattr(capture, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    step, _ = run(epochs(6, [FULL, FULL, FULL, 2]))
    assert step.preparing == (WARM_UP + 1) + (WARM_UP_SMALLER + 1)


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize("every", [1, 4])
def test_a_rehearsal_captures_what_a_run_would(every: int) -> None:
    method = Method(every)
    step = stepper(CapturedStep, method)
    assert isinstance(step, CapturedStep)
    for rows in epochs(6, [FULL, 2]):
        step(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step.rehearse(torch.arange(3))
    dues = {True} if every == 1 else {True, False}
    assert set(step._graphs) == {(length, due) for length in (3, 2) for due in dues}
    step.rehearse(torch.arange(1))  # below which there is none
    assert set(step._graphs) == {(1, due) for due in dues}
    step.release()
    assert not step._graphs


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize("length", [FULL, FULL - 1])
def test_a_batch_that_fits_only_as_written_fails_its_rehearsal(length: int) -> None:
    """A smaller one is then rehearsed and said to fit; the run itself would go on as written, and say so."""
    method = Method(1, [length])
    step = stepper(CapturedStep, method)
    step.rehearse(torch.arange(FULL))  # cannot be captured for another reason: no other batch could be
    method.refusal = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        step.rehearse(torch.arange(FULL))
    with pytest.warns(UserWarning, match="cannot be captured as a CUDA graph and runs as written: CUDA out of memory"):
        run(epochs(9, [FULL, FULL - 1]), refuses=[length], refusal=method.refusal)


class Pretended(CapturedStep):
    """A step of a real run whose capture keeps it for later, without the host's part of it."""

    made: list[Pretended]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written = 0
        type(self).made.append(self)

    def step(self, rows: Tensor) -> None:
        if Graph.capturing is not None:
            Graph.capturing.work.append(lambda: self._on_the_device(rows))
            return
        self.written += 1
        super().step(rows)

    def _on_the_device(self, rows: Tensor) -> None:
        iteration = self.method.iteration
        super().step(rows)
        self.method.iteration = iteration


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize(("changes", "kinds"), CASES)
def test_runs_end_with_the_same_bits(
    changes: dict[str, Any],
    kinds: set[tuple[int, bool]],
    settings: Callable[..., RunConfig],
    materials: Callable[[RunConfig], Materials],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs of three full batches and one of 24, the first of which comes before there is any graph."""
    config = settings(**{"epochs": 6, **changes})
    expected = train(config, materials(config))
    monkeypatch.setattr(Pretended, "made", [], raising=False)
    monkeypatch.setattr(assembly, "EagerStep", Pretended)
    outcome = train(config, materials(config))
    (step,) = Pretended.made
    assert set(step._graphs) == kinds
    full = sum(length == 32 for length, _ in kinds)
    assert step.written == 1 + full * WARM_UP + (len(kinds) - full) * WARM_UP_SMALLER
    for name, value in outcome.model.state_dict().items():
        assert torch.equal(value, expected.model.state_dict()[name])
    assert [row["train"] for row in outcome.rows] == [row["train"] for row in expected.rows]
