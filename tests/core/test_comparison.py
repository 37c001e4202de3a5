"""What pairs say, as written and compiled: the same numbers and gradients from two ways to compute them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.comparison import Comparison, compare, compiled

N, D = 6, 5


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def inputs(*, margin: float = 1.0, coincide: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    embedded = torch.randn(2 * N, D, generator=generator, dtype=torch.float64)
    if coincide:
        embedded[1] = embedded[0]  # two images of different labels on one point
        embedded[N] = embedded[0]  # and a pair without a distance
    label = torch.arange(N) % 3
    differ = torch.tensor([True, False, False, True, False, False])
    return {"embedded": embedded, "label": label, "differ": differ, "margin": torch.tensor(margin).double()}


def outcome(function: Any, given: dict[str, Tensor], **options: Any) -> tuple[Comparison, Tensor]:
    embedded = given["embedded"].clone().requires_grad_()
    found: Comparison = function(embedded, given["label"], given["differ"], given["margin"], **options)
    (gradient,) = torch.autograd.grad(found.alignment + 2 * found.uniformity, embedded)
    return found, gradient


def fused(backend: str) -> Any:
    return torch.compile(compare, backend=backend, dynamic=False)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("coincide", [False, True])
@pytest.mark.parametrize(
    ("margin", "options"),
    [
        (1.0, {}),
        (0.0, {}),
        (float("nan"), {"relative": 0.5}),
        (2.0, {"jitter": 0.1, "noise": torch.linspace(-1, 1, 2 * N * D, dtype=torch.float64).sin().view(2, N, D)}),
    ],
)
def test_compiled_is_as_written(margin: float, options: dict[str, Any], coincide: bool) -> None:
    given = inputs(margin=margin, coincide=coincide)
    expected, wanted = outcome(compare, given, **options)
    found, gradient = outcome(fused("aot_eager"), given, **options)
    assert wanted.isfinite().all()
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=1e-12)
    for name, value, other in zip(Comparison._fields, found, expected, strict=True):
        torch.testing.assert_close(
            value, other, atol=1e-12, rtol=1e-12, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_relative_margin_is_measured_once() -> None:
    given = inputs(margin=float("nan"))
    first = compare(**given, relative=0.5)
    separation = first.spread[1]
    assert first.margin.item() == pytest.approx(0.5 * separation.item())
    later = compare(**given | {"embedded": 10 * given["embedded"], "margin": first.margin}, relative=0.5)
    assert later.margin.item() == first.margin.item()
    assert later.spread[1].item() == pytest.approx(10 * separation.item())


def test_one_label_measures_nothing() -> None:
    given = inputs(margin=float("nan"))
    found = compare(**given | {"label": torch.zeros(N, dtype=torch.long)}, relative=0.5)
    assert torch.isnan(found.margin)
    assert found.spread.tolist() == [0.0, 0.0, 1.0]
    assert found.uniformity.item() == 0.0
    assert not found.near
    assert not found.flat


def test_jitter_is_a_share_of_the_margin_by_hand() -> None:
    """Entries of 1 make noise as long as that share: two opposite ones are twice as far apart."""
    noise = torch.tensor([[[1.0] * 4, [-1.0] * 4], [[0.0] * 4] * 2], dtype=torch.float64)  # (2, 2, 4)
    given = {"embedded": torch.zeros(4, 4).double(), "label": torch.arange(2), "differ": torch.zeros(2).bool()}
    found = compare(**given, margin=torch.tensor(2.0).double(), jitter=0.1, noise=noise)
    assert found.spread[1].item() == pytest.approx((0.4 + 0.0) / 2)
    assert found.uniformity.item() == pytest.approx((2 * (2 - 0.4) + 2 * 2) / 8)
    assert found.alignment.item() == 0.0


def test_jitter_moves_no_alignment_and_waits_for_a_margin() -> None:
    given, noise = inputs(margin=2.0), torch.randn(2, N, D, generator=torch.Generator().manual_seed(5)).double()
    plain, moved = compare(**given), compare(**given, jitter=0.5, noise=noise)
    assert moved.alignment.item() == plain.alignment.item()
    assert moved.uniformity.item() != plain.uniformity.item()
    waiting = given | {"margin": torch.tensor(float("nan")).double()}
    assert compare(**waiting, relative=0.5, jitter=0.5, noise=noise).margin == compare(**waiting, relative=0.5).margin


def test_a_distance_of_the_margin_meets_it() -> None:
    first = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # 5, 1 and √18 apart
    found = compare(first.repeat(2, 1), torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.bool), torch.tensor(5.0))
    assert found.spread[2].item() == pytest.approx(1 / 3)


def collapse(embedded: Tensor, *, margin: float = 1.0) -> tuple[bool, bool]:
    """Whether pairs of different labels are next to nothing apart, and whether they stand on one point."""
    count = len(embedded) // 2
    differ = torch.zeros(count, dtype=torch.bool)
    found = compare(embedded, torch.arange(count), differ, torch.tensor(margin).double())
    return bool(found.near), bool(found.flat)


def test_what_has_collapsed_and_what_has_not() -> None:
    points = torch.randn(N, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64).repeat(2, 1)
    on_one_point = points[:1].expand(2 * N, D)
    but_two = on_one_point.clone()  # all others stand at the centre
    but_two[0] += 1
    but_two[1] -= 1
    assert collapse(points) == (False, False)  # members alike, pairs far apart
    assert collapse(on_one_point) == (True, True)
    assert collapse(but_two) == (False, False)
    assert collapse(on_one_point + 1e-8 * points) == (True, True)
    assert collapse(on_one_point + 1e-5 * points) == (True, False)  # they may yet come apart


def test_nothing_is_left_of_a_compiled_function_but_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compiled` makes one function of one, whoever asks."""
    made: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: made.append(function) or function)
    compiled.cache_clear()
    try:
        assert compiled(compare) is compiled(compare)
        assert made == [compare]
        given = inputs()
        torch.testing.assert_close(compiled(compare)(**given).alignment, compare(**given).alignment)
    finally:
        compiled.cache_clear()
