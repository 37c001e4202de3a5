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
