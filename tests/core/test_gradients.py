"""Gradients of many parameters: how they are added up, and which of them a loss reaches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ipg.gradients import (
    add_gradients,
    check_place,
    check_reach,
    first_part,
    global_norm,
    reaches_all,
    widest,
)  # fmt: skip


def test_gradients_are_added_to_those_there_are_and_others_are_taken() -> None:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    held = torch.tensor([1.0, 2.0])
    parameters[0].grad = held
    parameters[2].grad = torch.tensor([5.0, 5.0])
    add_gradients(parameters, [torch.tensor([10.0, 20.0]), torch.tensor([3.0, 4.0]), None])
    assert parameters[0].grad is held  # in place, as graphs that were captured need
    assert [parameter.grad.tolist() for parameter in parameters] == [[11.0, 22.0], [3.0, 4.0], [5.0, 5.0]]


def test_the_first_part_of_an_output_is_one_that_a_backward_pass_reaches() -> None:
    plain, instead = torch.ones(2), torch.zeros(1)
    first, second = (torch.ones(2, requires_grad=True) * factor for factor in (2, 3))
    assert first_part({"loss": None, "hidden": (plain, [first, second])}, instead) is first
    assert first_part({"loss": None, "hidden": (plain, [])}, instead) is instead


def test_whether_an_output_reaches_all_parameters() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    assert reaches_all((torch.ones(2), {"logits": 2 * used}), [used])
    assert not reaches_all((torch.ones(2), {"logits": 2 * used}), [used, unused])
    assert reaches_all([2 * used, 3 * unused], [used, unused])
    assert not reaches_all([torch.ones(2), "text"], [used])


def test_the_length_of_all_in_the_widest_precision_there_is() -> None:
    narrow = torch.full((4,), 200.0, dtype=torch.float16)  # whose squares are infinite in half precision
    assert global_norm([narrow, narrow]).item() == pytest.approx(200 * 8**0.5)
    assert global_norm([narrow]).dtype == widest([narrow]) == torch.float32
    wide = torch.full((4,), 1e-3, dtype=torch.float64)
    assert global_norm([narrow, wide]).dtype == torch.float64
    assert global_norm([narrow, wide]).item() > 400


def test_features_that_arrive_detached_are_refused_unless_the_backbone_is_found_behind_them() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    output, parameters = model(torch.ones(1, 3)), list(model.parameters())
    check_reach(output, model, model[1], parameters, sharded=False)
    check_reach(output.detach(), model, model[1], list(model[1].parameters()), sharded=False)  # only the head learns
    for found, sharded in ((output.detach(), False), (output, True)):  # to look for shards is to gather them
        with pytest.raises(RuntimeError, match="its features arrive detached"):
            check_reach(found, model, model[1], parameters, sharded=sharded)


def test_a_model_may_lie_on_several_devices_but_has_to_be_on_its_guidances_own() -> None:
    here, away = torch.ones(1), torch.ones(1, device="meta")
    check_place([away, here], torch.device("cpu"))
    check_place([], torch.device("cpu"))
    with pytest.raises(RuntimeError, match="the model is on meta, and was on cpu when its Guidance was made"):
        check_place([away, away], torch.device("cpu"))
