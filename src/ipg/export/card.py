"""The model card beside exported programs: what the model is, how it was made, what it can do, and what not."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ipg.classifier import Classifier
from ipg.evaluation.decision import DECISIONS
from ipg.evaluation.selection import kept_epoch
from ipg.evaluation.statistics import wilson
from ipg.methods import method_class
from ipg.models import describe as describe_network
from ipg.training.provenance import versions

__all__ = ["card", "channels_of"]

PAPER = "https://doi.org/10.1007/s10994-026-07092-0"
SQUARES = {
    "crop": "cut to the largest square in the middle and resized",
    "squeeze": "resized to a square whatever their shape",
    "zoom": "squeezed to 8/7 of the size, of which the middle is kept",
}
"""How an image becomes square, in words."""
FEW = 100
"""Images of a group below which its accuracy is only roughly known."""

PT2 = """
```python
import torch

model = torch.export.load("model.pt2").module()
logits = model(images)  # (B, K)
```
"""
ONNX = """
```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(None, {"images": images})  # (B, K)
```
"""
WEIGHTS = """
```python
from ipg.models import load_model

model = load_model("weights.safetensors")
```
"""
OWN_WEIGHTS = """
```python
from ipg.models import load_model
from safetensors.torch import load_file

model = load_model("{network}")  # your own code, which is run
model.load_state_dict(load_file("weights.safetensors"))
```
"""


def card(classifier: Classifier, name: str, differences: Mapping[str, float], checked_on: int) -> str:
    """The card in Markdown.

    Args:
        classifier: of a run.
        name: what to call it.
        differences: how far each program was from the network, in logits.
        checked_on: on how many images.
    """
    parts = [
        f"# {_plain(name)}",
        _summary(classifier),
        "## Use",
        _use(classifier, differences, checked_on),
        "## How it was made",
        _table(("setting", "value"), _settings(classifier)),
        "## What it can do",
        _results(classifier),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(classifier)),
        "## Origin",
        _table(("", ""), _origin(classifier)),
    ]
    return "\n\n".join(parts) + "\n"


def channels_of(classifier: Classifier) -> str:
    """What the channels of its images are."""
    if classifier.config.get("method") == "shape_only":
        return "as `ipg.data.shape.shape_channels` makes them"
    return {3: "RGB", 2: "red and green", 1: "grey"}.get(classifier.shape[0], f"{classifier.shape[0]} channels")


def _summary(classifier: Classifier) -> str:
    classes = [_plain(name) for name in classifier.classes or ()]
    method = str(classifier.config.get("method"))
    guided = "pairs" in method_class(method).needs
    by = f" by [Invariance Pair Guidance]({PAPER})" if guided else ""
    return (
        f"An image classifier that tells {', '.join(classes[:-1])} and {classes[-1]} apart, trained with `ipg`{by}. "
        f"Method `{method}`: {method_class(method).summary}"
    )


def _use(classifier: Classifier, differences: Mapping[str, float], checked_on: int) -> str:
    kind, (channels, height, width) = channels_of(classifier), classifier.shape
    outputs = ", ".join(f"{number} = {_plain(name)}" for number, name in enumerate(classifier.classes or ()))
    lines = [
        f"**Input**: float32 images in [0, 1], {kind}, of shape (B, {channels}, {height}, {width}) for any B; 8-bit "
        f"images are divided by 255. The network normalises them itself where it needs that: do not normalise."
        + (f" Files were turned as EXIF says and {SQUARES[classifier.fit]}." if channels == 3 else ""),
        f"**Output**: logits of shape (B, {len(classifier.classes or ())}): {outputs}. Their softmax gives "
        f"probabilities.",
    ]
    for file, text in (("model.pt2", PT2), ("model.onnx", ONNX)):
        if file in differences:
            lines += [
                f"`{file}` gave the same logits as the network on {checked_on} images, up to {differences[file]:.1e}.",
                text.strip(),
            ]
    made = str(classifier.origin.get("network"))
    snippet = OWN_WEIGHTS.format(network=made) if made.startswith("python:") else WEIGHTS
    lines += ["`weights.safetensors` holds the weights by the names of their library:", snippet.strip()]
    return "\n\n".join(lines)


def _settings(classifier: Classifier) -> Iterator[tuple[str, str]]:
    config = classifier.config
    yield "data", f"{_code(config['data'])}, {classifier.shape[-1]} pixels"
    yield "network", _plain(describe_network(classifier.model))
    if config.get("start"):
        yield "went on from", f"{_code(config['start'])}, head kept"
    elif config.get("weights"):
        yield "started from", f"{_code(config['weights'])}, new head"
    yield "method", f"`{config['method']}`"
    if "pairs" in method_class(str(config["method"])).needs:
        given = config["pairs"]
        source = str(config["pair_builder"]) if isinstance(given, int) else f"of {_code(given)}"
        yield "pairs", f"{classifier.origin.get('pairs', given)}, {source}"
        yield "guidance", ", ".join(f"{name} {config[name]}" for name in ("alpha", "tau", "margin", "every"))
    names = ("epochs", "batch", "learning_rate", "schedule", "optimizer", "weight_decay", "seed")
    yield "training", ", ".join(f"{name.replace('_', ' ')} {config[name]}" for name in names)
    epoch, refitted = kept_epoch({"config": config, **classifier.result})
    then = "; then its last layer was fitted anew" if refitted else ""
    yield "epoch kept", f"{'one of them' if epoch is None else epoch}, by the rule `{config['selection']}`{then}"
    if (rule := config.get("decision", "argmax")) != "argmax":
        yield "line between classes", f"{DECISIONS[rule]}; it is part of the weights"


def _results(classifier: Classifier) -> str:
    metrics = classifier.result["metrics"]
    groups: Mapping[str, Mapping[str, Any]] = metrics.get("groups") or {}
    rows = [_share(_plain(name), group["accuracy"], group["count"]) for name, group in groups.items()]
    total = sum(group["count"] for group in groups.values())
    rows.insert(0, _share("**all**", metrics.get("average"), total))
    text = _table(("test images", "% right", "95 % interval", "images"), rows)
    held_out = int(classifier.origin.get("held_out_pairs") or 0)
    disagreement = metrics.get("pair_disagreement")
    if disagreement is None or not held_out:
        return text + "\n\nDisagreement on held-out pairs was not measured."
    return (
        text
        + "\n\n"
        + _table(("held-out pairs", "%", "95 % interval", "pairs"), [_share("disagree", disagreement, held_out)])
    )


def _share(name: str, share: float | None, count: int) -> tuple[str, str, str, str]:
    if share is None or not count:
        return name, "–", "–", "0"
    low, high = wilson(round(share * count), count)
    return name, f"{100 * share:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{count:,}"


def _limits(classifier: Classifier) -> Iterator[str]:
    metrics = classifier.result["metrics"]
    groups: Mapping[str, Mapping[str, Any]] = metrics.get("groups") or {}
    yield (
        "The figures are of test images of the data above. They say nothing of images of another kind, and intervals "
        "hold for images drawn as these were."
    )
    if metrics.get("pair_disagreement") is None:
        yield "Whether it leans on a shortcut was not measured."
    else:
        yield "Pairs speak of the shortcut that their members differ in, and of no other."
    if metrics.get("predicted_classes") == 1:
        yield "**It gives every test image the same class**, so that agreement of pairs is no merit."
    if few := [name for name, group in groups.items() if 0 < group["count"] < FEW]:
        names = "; ".join(map(_plain, few))
        yield f"There are fewer than {FEW} test images of {names}: their accuracy is only roughly known."
    if none := [name for name, group in groups.items() if not group["count"]]:
        yield f"There is no test image of {'; '.join(map(_plain, none))}."
    yield "Probabilities were not calibrated."


def _origin(classifier: Classifier) -> Iterator[tuple[str, str]]:
    result = classifier.result
    yield "trained", _plain(str(result.get("date")))
    yield "commit of ipg", _code(result.get("commit") or "unknown")
    for title, found in (("versions in training", result.get("versions")), ("versions in export", versions())):
        if isinstance(found, dict):
            yield title, _plain(", ".join(f"{name} {number}" for name, number in found.items()))
    yield "hardware", _plain(str(result.get("hardware")))


def _plain(text: str) -> str:
    """A name of the user's as text and nothing else: no markup, no link, no new line."""
    return re.sub(r"([\\`\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _code(path: Any) -> str:
    """The last part of a path, as code."""
    return f"`{' '.join(Path(str(path)).name.replace('`', chr(39)).split())}`"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
