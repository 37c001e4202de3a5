"""The line between classes: against a naive search over all lines, and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.data.table import ImageTable
from ipg.evaluation.decision import decide, draw_line, movable_head, moved
from ipg.evaluation.groups import group_metrics


def table(label: list[int] | Tensor, attribute: list[int] | Tensor, classes: int = 2) -> ImageTable:
    """Validation images of which only label and attribute matter."""
    label, attribute = (torch.as_tensor(column, dtype=torch.int64) for column in (label, attribute))
    zeros = torch.zeros_like(label)
    return ImageTable(
        "tiny",
        torch.zeros(len(label), 1, 1, 1, dtype=torch.uint8),
        label,
        attribute,
        split=zeros,
        environment=zeros,
        content=label,
        splits=("validation",),
        classes=tuple(f"class {number}" for number in range(classes)),
        attributes=("a", "b"),
    )


def worst(logits: Tensor, images: ImageTable) -> tuple[float, float]:
    found = group_metrics(logits.argmax(dim=1), images)
    return found["worst_group"], found["group_mean"]


def test_by_hand() -> None:
    """Class 1 is answered from a difference of 0 on; its images lie at -3, -1, 2, those of class 0 at -4, -2.5, -2."""
    difference = torch.tensor([-3.0, -1.0, 2.0, -4.0, -2.5, -2.0])
    logits = torch.stack([torch.zeros(6), difference], dim=1)
    images = table([1, 1, 1, 0, 0, 0], [0] * 6)
    offsets = decide(logits, images, "worst_group")
    assert offsets.tolist() == [0.0, 1.5]  # the line at -1.5, the middle of (-2, -1): 2 of 3 and 3 of 3
    assert worst(logits + offsets, images) == pytest.approx((2 / 3, 5 / 6))
    assert worst(logits, images) == pytest.approx((1 / 3, 2 / 3))


@pytest.mark.parametrize("rule", ["worst_group", "balanced"])
@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_better_with_two_classes(seed: int, rule: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    count = 60
    label, attribute = torch.randint(2, (2, count), generator=draw)
    logits = torch.randint(-8, 9, (count, 2), generator=draw).double() / 4  # with ties
    logits[:, 1] += label + attribute - 2
    images = table(label, attribute)
    offsets = decide(logits, images, rule)

    def value(shift: float) -> tuple[float, float]:
        found = group_metrics((logits + torch.tensor([0.0, shift])).argmax(dim=1), images)
        return (found["worst_group"], found["group_mean"]) if rule == "worst_group" else (found["balanced"], 0.0)

    assert value(float(offsets[1])) == max(value(shift) for shift in torch.arange(-12, 12.01, 0.125).tolist())
    assert offsets[0] == 0


@pytest.mark.parametrize("seed", range(10))
def test_several_classes_are_never_worse_off(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    label, attribute = torch.randint(4, (200,), generator=draw), torch.randint(2, (200,), generator=draw)
    bias = torch.tensor([3.0, 0.0, -1.0, 0.5])
    logits = 2 * nn.functional.one_hot(label) + torch.randn(200, 4, generator=draw) + bias
    images = table(label, attribute, classes=4)
    offsets = decide(logits, images, "worst_group")
    assert worst(logits + offsets, images) > worst(logits, images)
    assert offsets[0] == 0
    balanced = decide(logits, images, "balanced")
    assert group_metrics((logits + balanced).argmax(1), images)["balanced"] > 0.6


def test_balanced_asks_for_no_groups() -> None:
    """Two tables that differ in the attribute alone are given the same line."""
    draw = torch.Generator().manual_seed(0)
    label = torch.randint(2, (50,), generator=draw)
    logits = torch.randn(50, 2, generator=draw)
    one, other = (decide(logits, table(label, attribute), "balanced") for attribute in torch.randint(2, (2, 50)))
    assert torch.equal(one, other)


def test_no_image_moves_nothing() -> None:
    none = torch.zeros(0, 2)
    assert decide(none, table([], []), "balanced").tolist() == [0, 0]
    assert draw_line(none, lambda _: none, table([], []), "worst_group").tolist() == [0, 0]


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no offsets for 'argmax'"):
        decide(torch.zeros(1, 2), table([0], [0]), "argmax")


# -- lines as a network draws them ------------------------------------------------------------------------------------


def coarse(logits: Tensor) -> Tensor:
    """Rounded as bf16 rounds them around 20: to eighths."""
    return (8 * logits).round() / 8


def drawn(seed: int, count: int = 800) -> tuple[Tensor, ImageTable]:
    """Logits of a network that answers one class too often, and their images."""
    draw = torch.Generator().manual_seed(seed)
    label, attribute = torch.randint(2, (2, count), generator=draw)
    logits = torch.randn(count, 2, generator=draw, dtype=torch.float64)
    logits[:, 1] += 1.5 * label + 0.5 * attribute - 6.05
    return logits, table(label, attribute)


def test_a_line_is_worth_what_the_network_says_with_it() -> None:
    """Never worse than no line and the line that is best on paper, and better than the latter where it misleads."""
    gains = []
    for seed in range(10):
        exact, images = drawn(seed)

        def answers(offsets: Tensor, exact: Tensor = exact) -> Tensor:
            return coarse(exact + offsets)

        said = coarse(exact)
        shown = worst(answers(draw_line(said, answers, images, "worst_group")), images)
        on_paper = worst(answers(decide(said, images, "worst_group")), images)
        assert shown >= max(on_paper, worst(said, images))
        gains.append(shown[0] - on_paper[0])
    assert max(gains) > 0.005


def test_a_line_that_breaks_its_promise_is_not_kept() -> None:
    exact, images = drawn(0)
    tried: list[Tensor] = []

    def broken(offsets: Tensor) -> Tensor:
        tried.append(offsets)
        return torch.tensor([0.0, -1.0]).expand_as(exact)  # class 0, whatever is tried

    said = exact + decide(exact, images, "worst_group") / 2
    assert not draw_line(said, broken, images, "worst_group").any()
    assert tried[0].any()


@pytest.mark.parametrize("rule", ["worst_group", "balanced"])
def test_a_line_that_is_kept_as_promised_is_tried_once(rule: str) -> None:
    exact, images = drawn(1)
    tried: list[Tensor] = []

    def answers(offsets: Tensor) -> Tensor:
        tried.append(offsets)
        return exact + offsets

    offsets = draw_line(exact, answers, images, rule)
    assert torch.equal(offsets, decide(exact, images, rule))
    assert len(tried) == 1


def test_the_head_is_as_before_to_the_bit() -> None:
    head = nn.Linear(3, 2)
    before, x = head.bias.detach().clone(), torch.randn(4, 3)
    plain = head(x)
    shift = torch.tensor([0.0, 1 / 3])
    with moved(head, shift):
        torch.testing.assert_close(head(x), plain + shift)
    assert torch.equal(head.bias, before)


def test_a_head_with_a_single_logit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has one logit.*decision='argmax'"):
        movable_head(nn.Sequential(nn.Flatten(), nn.Linear(3, 1)))


def test_a_head_without_biases_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no biases.*decision='argmax'"):
        movable_head(nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False)))
