"""Gradients of many parameters at once: their common length, and where they are left. This file needs torch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ipg.collectives import in_shards

__all__ = [
    "add_gradients", "check_cleared", "check_dense", "check_found", "check_none_yet", "check_place", "check_reach",
    "check_reentry", "first_part", "global_norm", "reaches_all", "set_gradients", "unscale", "widest",
]  # fmt: skip


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Leave `gradients` in `.grad` as a backward pass would have: each in its parameter's layout and in its own memory.

    Fused optimizers read a gradient by its parameter's strides and a GradScaler divides in place, while
    `autograd.grad` returns what it has: another layout, or one tensor for two parameters. A parameter that the loss
    does not touch (the head's bias) gets a zero gradient and not None, so that momentum and weight decay act on it.
    """
    taken: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            parameter.grad = torch.zeros_like(parameter)
            continue
        if gradient is parameter.grad:
            continue
        memory = gradient.untyped_storage()._cdata
        usable = gradient.stride() == parameter.stride() and memory not in taken
        parameter.grad = gradient if usable else torch.empty_like(parameter).copy_(gradient)
        taken.add(memory)


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add `gradients` to what is in `.grad` already, in place; a parameter that has none takes its own."""
    found = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    both = [(p.grad, g) for p, g in found if p.grad is not None]
    if both:
        torch._foreach_add_([grad for grad, _ in both], [gradient for _, gradient in both])
    alone = [(p, g) for p, g in found if p.grad is None]
    set_gradients([p for p, _ in alone], [g for _, g in alone])


def first_part(output: object, instead: Tensor) -> Tensor:
    """The first tensor with a graph in `output`, tensors in any structure; `instead` where none is found."""
    parts = (part for part in tree_leaves(output) if isinstance(part, Tensor) and part.requires_grad)
    return next(parts, instead)


def reaches_all(output: object, parameters: Sequence[Tensor]) -> bool:
    """Whether all `parameters` have a part in `output`, tensors in any structure, that a backward pass finds."""
    parts = [part for part in tree_leaves(output) if isinstance(part, Tensor) and part.requires_grad]
    if not parts:
        return False
    ones = [torch.ones_like(part) for part in parts]
    gradients = torch.autograd.grad(parts, list(parameters), ones, retain_graph=True, allow_unused=True)
    return all(gradient is not None for gradient in gradients)


def check_reach(
    output: object, model: nn.Module, head: nn.Module, parameters: Sequence[Tensor], *, sharded: bool
) -> None:
    """Refuse features without a graph where the optimizer's `parameters` hold some of the model's before its head."""
    beyond = _beyond(model, head, parameters)
    if not beyond or not torch.is_grad_enabled():
        return
    if sharded or not reaches_all(output, beyond):  # what is behind the head reaches the output
        raise RuntimeError(
            "the corrective loss reaches the head alone: its features arrive detached. Let the model compute "
            "them with gradients, or leave the backbone's parameters out of the optimizer."
        )


def check_reentry(loss: Tensor, model: nn.Module, head: nn.Module, parameters: Sequence[Tensor]) -> None:
    """Refuse layers that are checkpointed by re-entry where the optimizer's `parameters` hold some before the head.

    torch differentiates those in `backward` alone: to `autograd.grad` their parameters seem unused.
    """
    if not _beyond(model, head, parameters):
        return
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise RuntimeError(
                "the corrective loss cannot reach layers that are checkpointed by re-entry: checkpoint them with "
                "use_reentrant=False, for models of transformers model.gradient_checkpointing_enable("
                "gradient_checkpointing_kwargs={'use_reentrant': False})"
            )
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)


def _beyond(model: nn.Module, head: nn.Module, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those of the optimizer's `parameters` that are the model's, but not its head's."""
    kept = {id(p) for p in parameters} - {id(p) for p in head.parameters()}
    return [p for p in model.parameters() if id(p) in kept]


def check_found(gradients: Sequence[Tensor | None]) -> None:
    """Refuse a corrective loss that reaches no parameter, or makes sparse gradients."""
    if all(gradient is None for gradient in gradients):
        raise RuntimeError("the corrective loss reaches no parameter of the optimizer: give it the model's own")
    check_dense(gradients)


def check_dense(gradients: Sequence[Tensor | None]) -> None:
    """Refuse gradients that are sparse: corrections are of all rows, and one length is that of all entries."""
    for gradient in gradients:
        if gradient is not None and gradient.layout != torch.strided:
            raise RuntimeError(
                f"a parameter of shape {tuple(gradient.shape)} has a sparse gradient, and guidance needs dense ones: "
                f"make its layer with sparse=False, e.g. nn.Embedding(..., sparse=False)"
            )


def check_place(parameters: Sequence[Tensor], device: torch.device) -> None:
    """Refuse `parameters` of which none is on the `device` that a Guidance was made for any more."""
    if parameters and not any(parameter.device == device for parameter in parameters):
        raise RuntimeError(
            f"the model is on {parameters[0].device}, and was on {device} when its Guidance was made: move it first, "
            f"then build optimizer and Guidance"
        )


def check_none_yet(parameters: Sequence[Tensor]) -> None:
    """Refuse to begin where `parameters` have gradients, which would be lost, and where none can be had."""
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "gradients are switched off here: guide outside of torch.no_grad() and torch.inference_mode()"
        )
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError(
            "gradients are already accumulated: correct before the first backward of an iteration, after "
            "optimizer.zero_grad(set_to_none=True); to accumulate, run backward between correct and rescale"
        )


def check_cleared(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Refuse an optimizer that has kept the gradients of `parameters`."""
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError(
            f"{type(optimizer).__name__}.zero_grad left gradients behind, which would join those of the task: a "
            f"wrapper that accumulates skips updates, the correction's too. Give Guidance the optimizer that is "
            f"inside, e.g. optimizer.optimizer of Accelerate's."
        )


def unscale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Unscale the gradients of `optimizer`, unless the caller's code has done so, as Lightning does by itself."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "unscale_() has already been called" not in str(error):
            raise


def widest(tensors: Sequence[Tensor]) -> torch.dtype:
    """Double precision where one of them has it, else single."""
    double = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in tensors)
    return torch.float64 if double else torch.float32


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm over all entries of all tensors, in single precision or better."""
    wide = widest(tensors)
    if in_shards(tensors[0]):  # sharded by FSDP2: its norm takes no dtype and is itself in shards
        norms = torch._foreach_norm([tensor.to(wide) for tensor in tensors], 2.0)
    else:
        real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        norms = torch._foreach_norm(real, 2.0, dtype=wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total.full_tensor() if in_shards(total) else total
