"""Rationales: what each feature contributes to each class, and the distances between them.

Surner, Khelil and Bothmann, "Invariance Pair Guidance: Robustness to Spurious Correlations via Corrective
Gradients", Machine Learning 2026, section 3; the rationale itself is Chen et al., "Domain Generalization via
Rationale Invariance", ICCV 2023.

A classifier is a feature extractor and a linear head, `o = z W^T + b` with `z ∈ R^D` and `W ∈ R^{K×D}`. The rationale

    R = diag(z) W^T ∈ R^{D×K},    R[d, k] = z_d W_kd,    1^T R + b = o

is never built here: with `s_d = ‖W[:, d]‖₂`, the distance between two rationales is the distance between *scaled
features*,

    ‖R_i − R_j‖_F = ‖(z_i − z_j) ⊙ s‖₂,

so at 2,048 features and 1,000 classes a sample costs 2,048 numbers and not 2 million.

Differs from the paper: in nothing but the way the distances are computed. This file needs torch alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.parameter import is_lazy

from ipg.collectives import in_shards, wrapped_in

__all__ = [
    "HeadNotFoundError", "HeadTap", "alignment", "can_be_read", "disagreeing", "double_precision", "find_head",
    "full_precision", "pairwise_distances", "predicted_class", "rationale", "scaled_features", "share", "uniformity",
    "unwrap", "verify_head",
]  # fmt: skip

_HEAD_NAMES = ("fc", "classifier", "head", "heads")
"""Where torchvision, timm and Hugging Face models keep their classifier."""

_ADAPTED = (
    "It is a linear layer with an adapter, such as LoRA, and puts out more than its own weight says. Leave the head "
    'without one and train it whole: in PEFT name it in modules_to_save=["classifier"], and not in target_modules.'
)


MOST_DIFFERENCES = 2**26
"""Numbers that the differences between rationales may be at most where all are held at once: 256 MB in single
precision, those of 128 pairs with 2,048 features."""


class HeadNotFoundError(ValueError):
    """A model in which no linear head could be found, or a wrong one; the message says what to pass instead."""


def find_head(model: nn.Module) -> nn.Linear:
    """Return the linear layer that turns the features of `model` into its logits.

    Understood are timm models (through their own `get_classifier`), the torchvision style (`fc`, `classifier`,
    `head`, `heads.head`), Hugging Face image classifiers, an `nn.Sequential` that ends in `nn.Linear`, an `nn.Linear`
    itself, any of these inside DistributedDataParallel, `torch.compile` or Lightning Fabric, and heads that PEFT trains
    whole (`modules_to_save`).

    Raises:
        HeadNotFoundError: nothing of the kind is there, or several layers that could be the head.
    """
    bare = unwrap(model)
    if (head := _last_linear(bare)) is not None:
        return head
    candidates: dict[str, object]
    if callable(get_classifier := getattr(bare, "get_classifier", None)):
        candidates = {"get_classifier()": get_classifier()}  # its word is final: it may say "two heads"
    else:
        candidates = {name: getattr(bare, name) for name in _HEAD_NAMES if hasattr(bare, name)}
    heads = {name: head for name, candidate in candidates.items() if (head := _last_linear(candidate)) is not None}
    if len(set(heads.values())) > 1:
        found = " and ".join(_described(bare, head) for head in dict.fromkeys(heads.values()))
        raise HeadNotFoundError(
            f"several layers of {type(bare).__name__} could be its head: {found}. Pass the one that produces the "
            f"logits, e.g. head=model{_path(bare, next(reversed(heads.values())))}."
        )
    if heads:
        return next(iter(heads.values()))
    looked_at = ", ".join(
        f"{name} ({type(candidate).__name__})" for name, candidate in {"the model itself": bare, **candidates}.items()
    )
    layers = [layer for layer in bare.modules() if isinstance(layer, nn.Linear)]
    if any(_is_adapted(candidate) for candidate in candidates.values()):
        remedy = _ADAPTED
    elif not layers:
        remedy = "It has no nn.Linear, and rationales need one that produces the logits."
    elif callable(get_classifier):
        remedy = "Pass the nn.Linear that produces the logits, e.g. head=model.my_classifier."
    else:
        last = layers[-1]
        remedy = (
            f"Pass the nn.Linear that produces the logits, e.g. head=model{_path(bare, last)} "
            f"({last.in_features} -> {last.out_features}), the last there is."
        )
    raise HeadNotFoundError(f"no linear head found in {type(bare).__name__}: looked at {looked_at}. {remedy}")


def verify_head(model: nn.Module, head: nn.Linear, logits: Tensor, output: object) -> None:
    """Refuse a `head` that cannot have made what the model returned; asks the device for nothing.

    Args:
        model: the whole network.
        head: its supposed head.
        logits: what that put out, (B, K).
        output: what the model returned in the same forward pass. A tensor, or `logits` in an object or a dict, must
            have as many columns as the head; of anything else nothing can be said. One number a row may stand for
            one logit or for two, and one logit may be given as two, (0, o).
    """
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    returned = output if isinstance(output, Tensor) else named
    if not isinstance(returned, Tensor) or returned is logits or returned.ndim not in (1, 2):
        return
    if returned.ndim == 1 and head.out_features <= 2:
        return
    columns = 1 if returned.ndim == 1 else returned.shape[1]
    if columns != head.out_features and (head.out_features, columns) != (1, 2):
        raise HeadNotFoundError(
            f"the head, {_described(unwrap(model), head)}, puts out {head.out_features} columns where the model "
            f"returns {columns}: it is not the layer that produces the logits. Pass the one that does as head=."
        )


def _path(model: nn.Module, layer: nn.Module) -> str:
    """Where `layer` is in `model`, as one would write it: ".classifier[1]"."""
    name = next(name for name, module in model.named_modules() if module is layer)
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))


def _described(model: nn.Module, layer: nn.Linear) -> str:
    name = next((name for name, module in model.named_modules() if module is layer), "")
    return f"{name or 'a layer'} (nn.Linear {layer.in_features} -> {layer.out_features})"


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own module from inside DistributedDataParallel, torch.compile or Lightning Fabric."""
    while (inner := wrapped_in(model)) is not None:
        model = inner
    return model


def _last_linear(module: object) -> nn.Linear | None:
    """`module` if it is linear, else the last layer of a sequence that ends in one, or the one that PEFT trains."""
    if isinstance(module, nn.Linear):
        return module
    if isinstance(module, nn.Sequential) and len(module):
        return _last_linear(module[-1])
    if isinstance(trained := getattr(module, "modules_to_save", None), nn.ModuleDict):
        active = getattr(module, "active_adapters", [])
        return _last_linear(trained[active[0]]) if active else None
    return None


def _is_adapted(layer: object) -> bool:
    """Whether a layer is a linear one with an adapter around it, as those of PEFT are."""
    return isinstance(getattr(layer, "base_layer", None), nn.Linear)


def can_be_read(weight: Tensor) -> bool:
    """Whether a weight has values, and this process all of them."""
    return not (weight.is_meta or is_lazy(weight) or is_fake(weight) or in_shards(weight))


@torch.no_grad()
def _is_linear(head: nn.Linear) -> bool:
    """Whether a head with a `forward` of its own is linear, by what it makes of two vectors, if any can pass."""
    weight = head.weight
    if not can_be_read(weight):
        return True
    x = torch.arange(2 * head.in_features, device=weight.device).sin().view(2, -1).to(weight.dtype)
    expected = nn.functional.linear(x, weight, head.bias)
    try:
        found = head(x)
    except TypeError:  # it takes more than features, as heads with margins do
        return False
    return found.shape == expected.shape and bool((found - expected).norm() <= 0.05 * expected.norm())


def _stays_linear(head: nn.Linear) -> bool:
    """Whether training moves nothing of a head but weight and bias; adapters, such as LoRA, begin at zero."""
    others = [name for name, parameter in head.named_parameters() if parameter.requires_grad]
    return all(name in ("weight", "bias") or name.startswith("parametrizations.") for name in others)


class HeadTap:
    """Listens at the head of a model: the features that enter it and the logits that leave it.

    The hooks are registered once, when the tap is made, so that `torch.compile` sees them; they keep tensors only
    inside `with tap.listen():`. An ordinary `model(x)` fills the tap, so wrappers need no special case.
    """

    def __init__(self, head: nn.Linear) -> None:
        if not isinstance(head, nn.Linear):
            raise HeadNotFoundError(
                f"head must be an nn.Linear, got {type(head).__name__}" + (f". {_ADAPTED}" if _is_adapted(head) else "")
            )
        if type(head).forward is not nn.Linear.forward and not (_is_linear(head) and _stays_linear(head)):
            raise HeadNotFoundError(
                f"{type(head).__name__} is no linear head: it does not put out its weight times its input plus its "
                f"bias, or will not once further parameters of it are trained, so its rationales are not contributions "
                f"to the logits. Train with a plain nn.Linear."
            )
        self.head = head
        self._listening = False
        self._calls: list[tuple[Tensor, Tensor]] = []
        self._hook = head.register_forward_hook(self._record, with_kwargs=True)

    def _record(self, head: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        if self._listening:
            features = inputs[0] if inputs else next(iter(named.values()))
            self._calls.append((features, output))

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Keep what passes through the head while the context is open."""
        self._calls.clear()
        self._listening = True
        try:
            yield
        except BaseException:
            self._calls.clear()  # with the graph behind them
            raise
        finally:
            self._listening = False

    def take(self, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Return (features (B, D), logits (B, K)) of the one forward pass that was listened to, and forget them.

        Args:
            rows: how many images there were; B must be that, where it is given.
        """
        calls, self._calls = self._calls, []
        if not calls:
            raise RuntimeError(
                "no features reached the head during the forward pass. Either this Guidance was closed, or the model "
                "bypasses this head (pass the layer it really uses as head=), or was given another one since (make a "
                "Guidance after that), or it, or another of its class, was compiled and run before the hook was there "
                "(make the Guidance before the compiled model runs; after another model has run, call "
                "torch.compiler.reset())."
            )
        if len(calls) > 1:
            raise RuntimeError(
                f"the head ran {len(calls)} times in one forward pass; rationales need a head that runs once. "
                f"Pass another layer as head=."
            )
        features, logits = calls[0]
        if features.ndim != 2:
            raise ValueError(
                f"the head's input has shape {tuple(features.shape)}, expected (batch, features). "
                f"Pass the layer after pooling as head=."
            )
        if rows is not None and len(features) != rows:
            raise ValueError(
                f"the head saw {len(features)} rows of features for {rows} images; rationales need one row an image. "
                f"Let the model pool before its head, or pass the layer after pooling as head=."
            )
        return features, logits

    def remove(self) -> None:
        """Take the hook off the head."""
        self._hook.remove()


def scaled_features(features: Tensor, weight: Tensor) -> Tensor:
    """`z ⊙ s` with `s_d = ‖W[:, d]‖₂`, in float32 or better: their distances are the rationales' distances.

    Args:
        features: z, of shape (B, D).
        weight: the head's W, of shape (K, D). Gradients reach it through s.
    """
    scale: Tensor = torch.linalg.vector_norm(full_precision(weight), dim=0)  # (D,)
    return full_precision(features) * scale  # (B, D)


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """`L_A`, the mean distance between the two members of each pair; its gradient at distance 0 is 0.

    Args:
        first: scaled features of the first members, (n, D).
        second: those of the second members, (n, D).
    """
    distances: Tensor = torch.linalg.vector_norm(first - second, dim=1)  # (n,)
    return distances.mean()


def pairwise_distances(embedded: Tensor) -> Tensor:
    """All distances inside each of the sets stacked in `embedded` (…, n, D), as (…, n, n).

    The matrix-product form of `cdist` loses small distances to cancellation (0.0153 for a true 0.0045), and
    `sqrt(sum of squares)` has no gradient at 0; this form has neither fault. Compiled, the differences are never in
    memory, forward or backward; as written, the backward pass of `cdist` holds all of them at once on a GPU, and where
    they are more than `MOST_DIFFERENCES` ours takes its place, which makes none. On other devices, such as Apple's
    GPUs, torch has no way back through `cdist` or one that cancels: there the differences are taken as they are.
    """
    if torch.compiler.is_compiling() or embedded.device.type not in ("cpu", "cuda"):
        differences = embedded.unsqueeze(-2) - embedded.unsqueeze(-3)  # (…, n, n, D), fused away where compiled
        distances: Tensor = torch.linalg.vector_norm(differences, dim=-1)
        return distances
    if embedded.is_cuda and embedded.numel() * embedded.shape[-2] > MOST_DIFFERENCES:
        many: Tensor = _ManyDistances.apply(embedded)
        return many
    return _cdist(embedded)


def _cdist(embedded: Tensor) -> Tensor:
    return torch.cdist(embedded, embedded, compute_mode="donot_use_mm_for_euclid_dist")


class _ManyDistances(torch.autograd.Function):
    """`cdist` whose gradient, `∂/∂x_i = Σ_j w_ij (x_i − x_j)` with `w_ij = (g_ij + g_ji) / d_ij`, is a matrix product.

    In double precision, which leaves small differences of large numbers alone, and which neither TF32 nor autocast
    rounds. At distance 0, where there is no gradient, it is 0, as that of `cdist` is.
    """

    @staticmethod
    def forward(ctx: Any, embedded: Tensor) -> Tensor:
        distances = _cdist(embedded)
        ctx.save_for_backward(embedded, distances)
        return distances

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        embedded, distances = (saved.double() for saved in ctx.saved_tensors)
        both = gradient.double() + gradient.double().mT
        weights = torch.where(distances > 0, both / distances, 0.0)  # (…, n, n)
        pulled: Tensor = weights.sum(dim=-1, keepdim=True) * embedded - weights @ embedded
        return pulled.to(gradient.dtype)


def uniformity(distances: Tensor, different: Tensor, margin: Tensor | float) -> Tensor:
    """`L_U`, the hinge that keeps rationales of different classes at least `margin` apart.

    Args:
        distances: inside the first and inside the second members, (2, n, n).
        different: whether labels i and j differ, (n, n).
        margin: m.
    """
    hinge = torch.relu(margin - distances) * different  # (2, n, n)
    return hinge.sum() / distances.numel()


def predicted_class(logits: Tensor) -> Tensor:
    """The class each row predicts: its largest logit, or the sign where there is a single one."""
    return logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()


def disagreeing(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Whether the two members of each pair are classified differently, (n,)."""
    return predicted_class(first_logits) != predicted_class(second_logits)


def share(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """The share of true `flags` (n,), which is `δ` of those that disagree, rounded as `7 / 10` is."""
    count = flags.sum(dtype=dtype)
    # by a tensor: CUDA divides by a number as it multiplies by its reciprocal, and then 7/10 can miss a τ of 0.7
    return count / torch.full_like(count, len(flags))


def rationale(model: nn.Module, images: Tensor, *, head: nn.Linear | None = None) -> Tensor:
    """Return the rationale matrices (B, D, K) of `images`, for looking at; training never builds them.

    The model runs as it is (call `model.eval()` first for the rationales of a trained model). Column sums plus the
    head's bias are the logits.
    """
    tap = HeadTap(head if head is not None else find_head(model))
    try:
        with tap.listen():
            output = model(images)
        features, logits = tap.take()
        verify_head(model, tap.head, logits, output)
    finally:
        tap.remove()
    return full_precision(features).unsqueeze(2) * full_precision(tap.head.weight).T  # (B, D, 1) * (D, K) -> (B, D, K)


def full_precision(x: Tensor) -> Tensor:
    """`x` in at least single precision."""
    return x if x.dtype == torch.float64 else x.float()


def double_precision(x: Tensor) -> Tensor:
    """`x` in double precision, on the CPU where its device has none, as Apple's GPUs."""
    return (x.cpu() if x.device.type == "mps" else x).double()


class _CallableModule(ModuleType):
    """Lets `ipg.rationale` be this module and the function of the same name, whichever was imported first."""

    def __call__(self, model: nn.Module, images: Tensor, *, head: nn.Linear | None = None) -> Tensor:
        return rationale(model, images, head=head)


sys.modules[__name__].__class__ = _CallableModule
