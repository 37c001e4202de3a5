"""What is measured on one of Apple's GPUs, which have no double precision, is what is measured on a CPU.

No machine of ours has one, so tensors here only say that they lie there, and refuse what those refuse.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.data.batches import Batches, Sampling
from ipg.data.table import ImageTable
from ipg.evaluation.confidence import confidence_metrics
from ipg.evaluation.decision import decide
from ipg.evaluation.groups import group_metrics
from ipg.evaluation.pairs import disagreement
from ipg.methods.rwg import balanced_weights
from ipg.pairs import pairset
from ipg.pairs.audit import _shares
from ipg.pairs.findings import Finding
from ipg.pairs.pairset import PairSet
from ipg.pairs.rows import Pair
from ipg.rationale import double_precision

pytestmark = pytest.mark.usefixtures("own_random_state")


class OnApple(Tensor):
    """A tensor on a device without numbers of double precision."""

    device = torch.device("mps")  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function is Tensor.cpu or (function is Tensor.to and torch.device("cpu") in args):
            return result.as_subclass(Tensor)
        if isinstance(result, OnApple) and result.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return result


def there(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnApple)


def tables(n: int = 60) -> tuple[ImageTable, ImageTable]:
    """The same images on a CPU and there."""
    generator = torch.Generator().manual_seed(0)
    columns = {name: torch.randint(2, (n,), generator=generator) for name in ("label", "attribute", "content")}
    columns |= {name: torch.zeros(n, dtype=torch.int64) for name in ("split", "environment")}
    images = torch.zeros(n, 1, 2, 2, dtype=torch.uint8)
    names: Any = {"splits": ("test",), "classes": ("a", "b"), "attributes": ("c", "d")}
    here = ImageTable(name="here", images=images, **columns, **names)
    moved = {name: there(column) for name, column in columns.items()}
    return here, ImageTable(name="there", images=there(images), **moved, **names)


def test_double_precision_is_taken_where_it_is() -> None:
    x = torch.rand(3)
    with pytest.raises(TypeError, match="MPS"):
        there(x).double()
    assert type(double_precision(there(x))) is Tensor
    assert torch.equal(double_precision(there(x)), x.double())


def test_metrics_are_those_of_a_cpu() -> None:
    here, apple = tables()
    logits = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    given = logits.argmax(dim=1)
    assert group_metrics(there(given), apple) == group_metrics(given, here)
    assert confidence_metrics(there(logits), apple.label) == confidence_metrics(logits, here.label)
    assert torch.equal(decide(there(logits), apple, "worst_group"), decide(logits, here, "worst_group"))


def test_disagreement_is_that_of_a_cpu() -> None:
    torch.manual_seed(0)
    first, second, label = torch.randn(9, 2), torch.randn(9, 2), torch.arange(9) % 2
    pairs = PairSet(first, second, label, torch.zeros(9, 2, dtype=torch.int64), "test", "own")
    share = disagreement(lambda images: images, pairs)
    assert share not in (None, 0.0, 1.0)
    assert disagreement(there, pairs) == share


def test_features_of_pairs_are_compared_as_on_a_cpu() -> None:
    torch.manual_seed(0)
    pairs = [Pair(f"{number}.png", f"{number} changed.png", "a", "train") for number in range(4)]
    features = [torch.randn(2, 3) for _ in pairs]
    findings = [Finding(pair) for pair in pairs]
    shares = [share for _, share in _shares(findings, features)]
    assert len(shares) == 4
    assert shares == [share for _, share in _shares(findings, [there(pair) for pair in features])]


def test_images_are_drawn_by_the_same_weights() -> None:
    here, apple = tables()
    assert torch.equal(balanced_weights(apple), balanced_weights(here))
    weights = torch.rand(60)
    drawn = [
        next(iter(Batches(table, 20, seed=3, sampling=Sampling(weights=own)).rows(0)))
        for table, own in ((here, weights), (here, there(weights)))
    ]
    assert torch.equal(*drawn)


def test_a_random_transform_draws_there_the_same_for_both_members(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)  # stands for the device's own
    monkeypatch.setattr(torch.mps, "get_rng_state", generator.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", generator.set_state)
    images = there(torch.zeros(4, 3))
    first, second = pairset._alike(lambda x: x + torch.rand(x.shape, generator=generator), images, images)
    assert first.abs().sum() > 0
    assert torch.equal(first, second)
