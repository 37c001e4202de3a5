"""Accuracy on average, by class, by group and by environment, against loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.data.table import ImageTable
from ipg.evaluation import groups
from ipg.evaluation.confidence import confidence_metrics
from ipg.evaluation.groups import (
    evaluate,
    evaluating,
    evaluation_batch,
    group_metrics,
    guesses,
    intervals,
    is_constant,
    logits,
    predict,
)
from ipg.evaluation.statistics import counted
from ipg.models import build_model

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def random_table(n: int, classes: int, attributes: int, *, seed: int, without: tuple[int, ...] = ()) -> ImageTable:
    """A table whose columns are random; the groups of `without` have no image."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=generator)
    attribute = torch.randint(attributes, (n,), generator=generator)
    table = ImageTable(
        name="random",
        images=torch.zeros(n, 1, 2, 2, dtype=torch.uint8),
        label=label,
        attribute=attribute,
        split=torch.zeros(n, dtype=torch.int64),
        environment=torch.randint(3, (n,), generator=generator) * 2,  # numbers 0, 2 and 4
        content=label,
        splits=("test",),
        classes=tuple(f"class {k}" for k in range(classes)),
        attributes=tuple(f"attribute {a}" for a in range(attributes)),
    )
    return table.take(torch.nonzero(~torch.isin(table.group, torch.tensor(without))).flatten())


def naive(predictions: list[int], table: ImageTable, training: ImageTable | None = None) -> dict[str, Any]:
    """The metrics one image at a time."""
    right: dict[str, dict[Any, int]] = {kind: defaultdict(int) for kind in ("all", "class", "group", "environment")}
    total: dict[str, dict[Any, int]] = {kind: defaultdict(int) for kind in right}
    for i, prediction in enumerate(predictions):
        label, attribute = int(table.label[i]), int(table.attribute[i])
        name = f"class {label}, attribute {attribute}"
        keys = {"all": 0, "class": label, "group": name, "environment": str(int(table.environment[i]))}
        for kind, key in keys.items():
            right[kind][key] += prediction == label
            total[kind][key] += 1

    def shares(kind: str) -> dict[Any, float]:
        return {key: right[kind][key] / count for key, count in total[kind].items()}

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    every = [f"{label}, {attribute}" for label in table.classes for attribute in table.attributes]
    group = shares("group")
    names = [] if training is None else [every[int(number)] for number in training.group]
    reweighted = mean([group[name] for name in names]) if set(names) <= set(group) else None
    return {
        "average": mean(list(shares("all").values())),
        "average_reweighted": reweighted,
        "group_mean": mean([group[name] for name in every if name in group]),
        "worst_group": min(group.values(), default=None),
        "balanced": mean([share for _, share in sorted(shares("class").items())]),
        "predicted_classes": len(set(predictions)),
        "groups": {name: {"accuracy": group.get(name), "count": total["group"].get(name, 0)} for name in every},
        "environments": {
            key: {"accuracy": share, "count": total["environment"][key]}
            for key, share in sorted(shares("environment").items())
        },
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("classes", "attributes", "without"),
    [(2, 2, ()), (2, 2, (1, 2)), (3, 4, (0, 5, 6, 11)), (5, 1, ()), (2, 3, (0, 1, 2)), (4, 2, (2, 3, 4, 5, 6, 7))],
)
def test_against_a_loop(classes: int, attributes: int, without: tuple[int, ...], seed: int) -> None:
    table = random_table(97, classes, attributes, seed=seed, without=without)
    predictions = torch.randint(classes, (len(table),), generator=torch.Generator().manual_seed(seed + 10))
    found = group_metrics(predictions, table)
    assert found == naive(predictions.tolist(), table)
    training = random_table(31, classes, attributes, seed=seed + 20, without=without)
    found = group_metrics(predictions, table, training=training)
    expected = naive(predictions.tolist(), table, training)
    assert found.pop("average_reweighted") == pytest.approx(expected.pop("average_reweighted"), rel=1e-12)
    assert found == expected
    assert list(found["groups"]) == list(table.group_names)
    assert [entry["count"] for entry in found["groups"].values()].count(0) == len(without)


def test_numbers_by_hand() -> None:
    """Three of four right in one group, none of one in another, two of two in the third; the fourth is empty."""
    table = replace(
        random_table(7, 2, 2, seed=0),
        label=torch.tensor([0, 0, 0, 0, 0, 1, 1]),
        attribute=torch.tensor([0, 0, 0, 0, 1, 1, 1]),
        environment=torch.tensor([0, 0, 1, 1, 1, 1, 1]),
    )
    found = group_metrics(torch.tensor([0, 0, 0, 1, 1, 1, 1]), table, training=table.take(torch.tensor([0, 1, 4, 6])))
    assert found["average"] == 5 / 7
    assert found["average_reweighted"] == (2 * 0.75 + 0 + 1) / 4  # trained on two, one and one of the three groups
    assert found["group_mean"] == (0.75 + 0 + 1) / 3
    assert found["worst_group"] == 0
    assert found["balanced"] == (3 / 5 + 1) / 2
    assert found["groups"]["class 1, attribute 0"] == {"accuracy": None, "count": 0}
    assert found["environments"] == {"0": {"accuracy": 1.0, "count": 2}, "1": {"accuracy": 3 / 5, "count": 5}}


def test_a_group_trained_on_and_absent_here_leaves_no_average_in_its_proportions() -> None:
    table = random_table(40, 2, 2, seed=0, without=(1,))
    training = random_table(40, 2, 2, seed=1)
    assert group_metrics(table.label, table, training=training)["average_reweighted"] is None
    assert group_metrics(table.label, table, training=table)["average_reweighted"] == 1.0
    nothing = training.take(torch.tensor([], dtype=torch.int64))
    assert group_metrics(table.label, table, training=nothing)["average_reweighted"] is None


def test_no_image_at_all() -> None:
    table = random_table(5, 2, 2, seed=0).take(torch.tensor([], dtype=torch.int64))
    found = group_metrics(torch.tensor([], dtype=torch.int64), table)
    assert found == naive([], table)
    assert found["average"] is None
    assert found["worst_group"] is None


# -- predictions -----------------------------------------------------------------------------------------------------


class Brightest(nn.Module):
    """Says which of the two channels is brighter, in eval mode; in training mode it fails."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.wrap = wrap
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Any:
        assert not self.training
        assert not torch.is_grad_enabled()
        assert images.dtype == torch.float32
        self.seen.append(len(images))
        return self.wrap(images.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    "wrap",
    [lambda o: o, lambda o: (o, "more"), lambda o: SimpleNamespace(logits=o)],
    ids=["tensor", "tuple", "object"],
)
def test_predictions_are_the_largest_logits(
    make_table: Callable[..., ImageTable], monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Tensor], Any]
) -> None:
    monkeypatch.setattr(groups, "EVALUATION_BATCH_CPU", 64)
    table = make_table()
    model = Brightest(wrap)
    assert torch.equal(predict(model, table.images), table.attribute)
    assert model.seen == [64, 64, 64, 8]
    said = logits(model, table.images)
    assert torch.allclose(said, (table.images.float() / 255).mean(dim=(2, 3)), atol=1e-6)
    assert evaluate(model, table, training=table) == {
        **group_metrics(table.attribute, table, training=table),
        **confidence_metrics(said, table.label),
    }


def test_one_logit_predicts_by_its_sign() -> None:
    images = torch.tensor([[0, 9], [9, 0], [5, 5]], dtype=torch.uint8).view(3, 2, 1, 1)
    found = predict(Brightest(lambda o: o[:, 1:] - o[:, :1]), images)
    assert found.tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", ["mnist_cnn", "small_cnn"])
def test_predictions_of_no_image(name: str) -> None:
    found = predict(build_model(name, channels=2, classes=2), torch.empty(0, 2, 8, 8, dtype=torch.uint8))
    assert found.shape == (0,)
    assert found.dtype == torch.int64


def mixed_modes() -> nn.Sequential:
    """A network whose modules are in different modes."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))
    model.train()
    model[1].eval()
    return model


def test_modes_come_back_as_they_were() -> None:
    model = mixed_modes()
    before = [module.training for module in model.modules()]
    assert before == [True, True, False, True, True, True]
    statistics = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randint(256, (9, 2, 8, 8), dtype=torch.uint8)
    first, second = predict(model, images), predict(model, images)
    assert torch.equal(first, second)  # no dropout
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(value, statistics[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="channels"):
        predict(model, images[:, :1])
    assert [module.training for module in model.modules()] == before
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_autocast_is_on_where_asked_for() -> None:
    seen: list[torch.dtype] = []

    def note(logits: Tensor) -> Tensor:
        seen.append((logits @ torch.eye(2)).dtype)
        return logits

    table, model = random_table(3, 2, 2, seed=0), Brightest(note)
    images = torch.zeros(3, 2, 4, 4, dtype=torch.uint8)
    for dtype in (None, torch.bfloat16, torch.float16):
        predict(model, images, autocast=dtype)
        logits(model, images, autocast=dtype)
        evaluate(model, replace(table, images=images), autocast=dtype)
    assert seen == [torch.float32] * 3 + [torch.bfloat16] * 3 + [torch.float16] * 3


def test_a_network_in_shards_is_not_given_smaller_batches_by_one_process_alone() -> None:
    """The others would wait for it to gather weights with them."""
    model = Brightest()
    model.weight = nn.Parameter(torch.zeros(1))
    images = torch.zeros(4, 2, 1, 1, dtype=torch.uint8)

    def full(logits: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    model.wrap = full
    with pytest.raises(torch.OutOfMemoryError):
        predict(model, images)
    assert model.seen == [4, 2, 1]
    model.weight.full_tensor = lambda: model.weight  # type: ignore[attr-defined]
    model.seen.clear()
    with pytest.raises(torch.OutOfMemoryError):
        predict(model, images)
    assert model.seen == [4]


def test_photographs_are_evaluated_few_at_a_time_on_a_cpu() -> None:
    def size(side: int, place: str) -> int:
        return evaluation_batch(torch.empty(0, 3, side, side), torch.device(place))

    assert [size(side, "cpu") for side in (14, 64, 128, 224, 2000)] == [128, 128, 32, 10, 1]
    assert [size(side, "cuda") for side in (64, 65)] == [groups.EVALUATION_BATCH_SMALL, groups.EVALUATION_BATCH]


@pytest.mark.parametrize(("count", "given"), [(1, [1]), (32, [32]), (33, [256]), (256, [256]), (300, [256, 256])])
def test_a_gpu_is_given_photographs_as_many_at_a_time_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch, count: int, given: list[int]
) -> None:
    monkeypatch.setattr(groups, "evaluation_batch", lambda images, place: groups.EVALUATION_BATCH)  # as on a GPU
    seen: list[int] = []

    def note(logits: Tensor) -> Tensor:
        seen.append(len(logits))
        return logits

    images = torch.arange(2 * count, dtype=torch.uint8).reshape(count, 2, 1, 1)
    alone = torch.cat([logits(Brightest(lambda said: said), one[None]) for one in images])
    assert torch.equal(logits(Brightest(note), images), alone)
    assert seen == given


def test_one_answer_for_all_images_is_told_from_images_of_one_class(make_table: Callable[..., ImageTable]) -> None:
    table = make_table()
    always = torch.ones_like(table.label)
    assert is_constant(group_metrics(always, table))
    assert not is_constant(group_metrics(table.label, table))
    assert not is_constant(group_metrics(1 - table.label, table))  # as wrong as can be, but not the same
    one_class = table.take(table.label == 1)
    assert not is_constant(group_metrics(torch.ones_like(one_class.label), one_class))
    assert is_constant(group_metrics(torch.zeros_like(one_class.label), one_class))


def test_a_network_that_guesses_is_told_by_the_mean_of_groups() -> None:
    """With 50 images in each of two groups the mean of guesses has an error of 5 points; of 10 and 1,000 images 8."""

    def told(shares: Sequence[float | None], counts: Sequence[int]) -> dict[str, Any]:
        known = [share for share in shares if share is not None]
        cells = [{"accuracy": share, "count": count} for share, count in zip(shares, counts, strict=True)]
        return {"group_mean": sum(known) / len(known), "groups": dict(zip("abc", cells, strict=False))}

    assert guesses(told((0.4, 0.78), (50, 50)), 2)
    assert not guesses(told((0.4, 0.82), (50, 50)), 2)
    assert guesses(told((0.5, 0.8), (10, 1000)), 2)
    assert not guesses(told((0.5, 0.84), (10, 1000)), 2)
    assert guesses(told((0.4, 0.78, None), (50, 50, 0)), 2)
    assert not guesses(told((0.4, 0.78), (50, 50)), 3)
    assert not guesses({"group_mean": None, "groups": {}}, 2)


def test_shares_of_groups_stand_with_their_intervals_and_the_worst_with_its_name() -> None:
    accuracies = {"empty": (None, 0), "large": (0.5, 8), "small": (0.5, 2), "good": (1.0, 4)}
    metrics = {"average": 9 / 14, "groups": {k: {"accuracy": a, "count": n} for k, (a, n) in accuracies.items()}}
    found = intervals(metrics)
    assert found["worst_group"] == {"group": "large", **counted(4, 8)}
    assert found["average"] == counted(9, 14)
    assert found["groups"] == {
        "empty": counted(0, 0),
        "large": counted(4, 8),
        "small": counted(1, 2),
        "good": counted(4, 4),
    }


def test_where_there_is_no_image_there_is_no_worst_group() -> None:
    found = intervals({"average": None, "groups": {"empty": {"accuracy": None, "count": 0}}})
    assert found["worst_group"] == {"group": None, **counted(0, 0)}
    assert found["average"] == counted(0, 0)
