"""What a `Guidance` is given, settings and states: which are accepted, and what is said of the others.

This file needs torch alone.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from ipg.rationale import can_be_read

__all__ = [
    "check_head", "check_loss", "check_numbers", "check_optimizer", "check_parameters", "check_settings",
    "check_state", "check_task", "check_wrappers", "parse_margin", "takes", "warn_of_half", "warn_of_others",
]  # fmt: skip


def check_settings(
    *,
    alpha: float,
    tau: float,
    every: object,
    floor: float,
    batch_norm: str,
    autocast: object,
    distance: str,
    jitter: float,
) -> None:
    """Raise a ValueError that names a setting that is out of range, and its range; warn of corrections too rare."""
    check_numbers(alpha=alpha, tau=tau, floor=floor, jitter=jitter)
    k = int(every) if isinstance(every, Integral) else 0
    known = every == "auto" or k >= 1
    _check("every", every, known, 'a whole number of iterations, at least 1, or "auto"')
    _check("batch_norm", batch_norm, batch_norm in ("train", "eval"), '"train" or "eval"')
    known = autocast in (None, torch.bfloat16, torch.float16, torch.float32)
    _check("autocast", autocast, known, "None or a dtype that autocast knows, such as torch.bfloat16")
    known = distance in ("rationale", "features", "logits")
    _check("distance", distance, known, '"rationale", "features" or "logits"')
    if k > 1 and k * alpha >= 1:
        warnings.warn(
            f"every * alpha = {k * alpha:g} is not below 1: the corrective loss is no longer guaranteed to "
            f"fall, even under plain gradient descent. Lower every or alpha.",
            stacklevel=3,
        )


def check_numbers(*, alpha: float, tau: float, floor: float, jitter: float) -> None:
    """Raise a ValueError that names a number that is out of range: of those that may change between iterations."""
    for name, value in {"alpha": alpha, "tau": tau, "floor": floor, "jitter": jitter}.items():
        _check(name, value, isinstance(value, Real), "a number")
    _check("alpha", alpha, 0 <= alpha < 1, "0 <= alpha < 1: the correction must stay longer than the task gradient")
    _check("tau", tau, 0 <= tau <= 1, "0 <= tau <= 1: it is a share of the pairs")
    _check("floor", floor, 0 < floor < math.inf, "a positive number")
    _check("jitter", jitter, 0 <= jitter < math.inf, "a number, at least 0")


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise a TypeError where either is none, and a ValueError where a step needs a closure, or climbs.

    Warn of Lightning's wrapper, which counts the steps of a run.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {_kind(model)}: Guidance(model, optimizer)")
    if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer must be a built optimizer, e.g. torch.optim.Adam(model.parameters()), got {_kind(optimizer)}"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__}.step needs a closure, which it may call several times; guidance makes "
            f"two plain updates an iteration. Use an optimizer that steps without one, e.g. Adam or SGD."
        )
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise ValueError(
            f"{type(optimizer).__name__} climbs (maximize=True), and with it a correction would push the members of "
            f"pairs apart: minimise the negative of what you maximise."
        )
    if any(kind.__name__ == "LightningOptimizer" for kind in type(optimizer).__mro__):
        warnings.warn(
            "through this wrapper Lightning counts the correction as a step of its own, and runs its hooks: max_steps, "
            "logs and checkpoints go at twice the pace. Give Guidance the optimizer that is inside, "
            "self.optimizers(use_pl_optimizer=False), as examples/lightning_module.py does.",
            stacklevel=3,
        )


def check_wrappers(model: nn.Module) -> None:
    """Raise a ValueError where the model is inside a wrapper in which its head cannot be listened to."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):  # its module loads long
        raise ValueError(
            "the model is inside FullyShardedDataParallel (FSDP1), where no layer has its own weights between passes: "
            "shard it with torch.distributed.fsdp.fully_shard (FSDP2; with Accelerate fsdp_version=2, with Lightning "
            "ModelParallelStrategy)"
        )
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise ValueError(
            f"nn.DataParallel runs copies of the model on {len(model.device_ids)} GPUs, as the Trainer of Hugging Face "
            f"lets it without a launcher, and pairs are compared in one: let torchrun start a process for each GPU, or "
            f"show this process a single one (CUDA_VISIBLE_DEVICES=0)"
        )


def check_parameters(parameters: Sequence[Tensor]) -> None:
    """Raise a ValueError where there is nothing to train, or where it is spread over several devices."""
    if not parameters:
        raise ValueError("the optimizer holds no trainable parameter")
    if len(places := {str(parameter.device) for parameter in parameters}) > 1:
        raise ValueError(
            f"the optimizer's parameters are on {' and '.join(sorted(places))}, and guidance is for a model on one "
            f"device: load it without device_map, or let a process for each device hold a part of it (fully_shard)"
        )


def check_task(task_loss: object) -> None:
    """Raise a TypeError where `task_loss` cannot be called."""
    if not callable(task_loss):
        raise TypeError(
            f"task_loss must be a function that returns the loss, got {_kind(task_loss)}: it has to run after the "
            f"correction. Write lambda: criterion(model(x), y)."
        )


def check_loss(loss: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise where what `task_loss` returned cannot be followed back to the `parameters`, or has been already."""
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError("task_loss must only return the loss; it ran backward itself")
    if not isinstance(loss, Tensor):
        raise TypeError(f"task_loss must return the loss, a tensor, got {_kind(loss)}")
    if loss.numel() != 1:
        raise ValueError(
            f"task_loss returned a loss of shape {tuple(loss.shape)}; reduce it to one number, e.g. .mean()"
        )
    if not loss.requires_grad:
        raise RuntimeError("task_loss returned a loss without a graph; compute it with gradients enabled")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def takes(function: Callable[..., object], name: str) -> bool:
    """Whether `function` has a parameter of that name."""
    return name in inspect.signature(function).parameters


def check_head(head: nn.Linear) -> None:
    """Raise a ValueError where the weights of a linear head are all zero; waits for the device."""
    if isinstance(head, nn.Linear) and can_be_read(head.weight) and not head.weight.any():
        raise ValueError(
            "the head's weights are all zero, as some networks begin: so is every rationale, no correction moves "
            "anything, and neither does the task, whose steps are measured by corrections. Draw them anew first, e.g. "
            "torch.nn.init.normal_(head.weight, std=0.016)."
        )


def warn_of_half(autocast: torch.dtype | None, device: torch.device) -> None:
    """Warn where pairs run in fp16 and no GradScaler is known."""
    if autocast is None and torch.is_autocast_enabled(device.type):
        autocast = torch.get_autocast_dtype(device.type)
    if autocast == torch.float16:
        warnings.warn(
            "the model runs in fp16, and Guidance knows of no GradScaler: small gradients vanish, and where one scales "
            "the task's gradient without being known the task is hardly learnt. Give it as scaler=, or use bfloat16.",
            stacklevel=4,
        )


def warn_of_others(model: nn.Module, parameters: Sequence[Tensor]) -> None:
    """Warn where the task's gradient reached parameters of the model that the optimizer, with `parameters`, lacks."""
    known = {id(parameter) for parameter in parameters}
    reached = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.grad is not None]
    others = [name for name, parameter in reached if id(parameter) not in known]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        warnings.warn(
            f"the task's gradient reaches {', '.join(others[:3])}{more}, which the optimizer does not hold: guidance "
            f"neither corrects nor rescales them. Give one optimizer all parameters that are trained, in groups where "
            f"they differ, and set requires_grad of the others to False.",
            stacklevel=4,
        )


def check_state(owner: str, state: object, like: Mapping[str, Any], *, may_lack: Collection[str] = ()) -> None:
    """Raise a ValueError that names a key of `state` that is missing, unknown or not of the kind that it has to be.

    Args:
        owner: whose state it has to be.
        state: what was given.
        like: for each key an example of its values, or a tuple of examples. A tensor stands for those of its shape
            whose type fits into its own.
        may_lack: keys that may be missing, or unknown.
    """
    told = f"this is not the state of a {owner}"
    if not isinstance(state, Mapping):
        raise ValueError(f"{told}: expected a dictionary, got {_kind(state)}")
    if unknown := (state.keys() ^ like.keys()) - set(may_lack):
        raise ValueError(f"{told}: missing or unknown {sorted(unknown, key=str)}")
    for name in [name for name in like if name in state]:
        examples = like[name] if isinstance(like[name], tuple) else (like[name],)
        if not any(_is_like(state[name], example) for example in examples):
            expected = " or ".join(map(_with_shape, examples))
            raise ValueError(f"{told}: {name} must be {expected}, got {_with_shape(state[name])}")


def _with_shape(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return _kind(value)


def _is_like(value: object, example: object) -> bool:
    if isinstance(value, Tensor) and isinstance(example, Tensor):
        return value.shape == example.shape and torch.can_cast(value.dtype, example.dtype)
    kinds: dict[type, type] = {int: Integral, float: Real}  # those of numpy are welcome
    return isinstance(value, kinds.get(type(example), type(example)))


def parse_margin(margin: float | str) -> tuple[float, bool]:
    """Return (number, whether it is relative) for 0.1 or "0.5x"."""
    text = str(margin).strip()
    relative = text.endswith("x")
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        number = math.nan
    _check("margin", margin, 0 <= number < math.inf, 'a number, at least 0, or a multiple such as "0.5x"')
    return number, relative


def _check(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name}={value!r} is out of range: expected {expected}")
