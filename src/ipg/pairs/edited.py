"""Pairs by instruction: an image model changes the shortcut and is asked to leave the rest as it is.

As the paper makes its CelebA pairs (its appendix on pair generation): FLUX.1 Kontext [dev] changes the gender of 1,300
training images of each group, three candidates an image, by two templates of instruction, one of which names the hair
where it is blond. Failures (hair changed, gender unchanged, more changed) are for `ipg pairs audit` to reject; of the
candidates of an image that pass it keeps the best.

Differs from the paper: which of the candidates it kept, its sampler's steps and guidance it does not say; here they are
the audit's best, and the model's own 28 and 2.5. Needs the extra `edit`: pip install "invariance-pair-guidance[edit]".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ipg.config import read_toml
from ipg.data.errors import DataError, ProblemsError
from ipg.data.table import ImageTable
from ipg.models.hub import fetched, is_unanswered
from ipg.pairs.balance import deal
from ipg.pairs.plan import Plan
from ipg.pairs.references import name_of, to_rgb
from ipg.pairs.rows import DATA, Pair
from ipg.seeds import derive_seed

__all__ = [
    "HAIR_PROMPT",
    "KONTEXT",
    "PROMPT",
    "Editor",
    "Kontext",
    "celeba_prompts",
    "lazy_kontext",
    "plan",
    "read_prompts",
]

KONTEXT = "black-forest-labs/FLUX.1-Kontext-dev"
PROMPT = (
    "Transform this {old} person into a {new} version, retaining the unique characteristics, especially hair color, "
    "age, and position. The result is photorealistic, with natural lighting."
)
HAIR_PROMPT = (
    "Transform this {old} person into a {new} version with clearly {hair} hair, retaining the unique characteristics, "
    "especially age and position. The result is photorealistic, with natural lighting."
)
Editor = Callable[[Tensor, str, int], Tensor]
"""Changes an image, (3, H, W) of uint8, as a prompt says, from a seed; to the same shape."""


def plan(
    table: ImageTable,
    editor: Editor,
    *,
    prompts: Mapping[str, str],
    per_group: int = 1300,
    candidates: int = 3,
    split: str = "train",
    seed: int = 0,
) -> Plan:
    """Draw up to `per_group` images of each group of `split`, in turn, each to be edited `candidates` times.

    Args:
        table: the data set, of RGB images.
        editor: what changes them.
        prompts: for every group (`table.group_names`) that has images in the split.
        per_group: images of each group.
        candidates: versions of each image.
        split: whose images to use.
        seed: of the draw and of every edit.
    """
    if per_group < 1 or candidates < 1:
        raise ValueError(f"per_group={per_group} and candidates={candidates} must both be at least 1")
    if table.images.shape[1] != 3:
        raise ValueError(
            f"{table.name}: only photographs can be edited, its images have {table.images.shape[1]} channels"
        )
    rows = table.indices(split)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    group = table.group[rows]
    queues = {table.group_names[g]: rows[group == g][:per_group] for g in sorted(set(group.tolist()))}
    if missing := [name for name in queues if name not in prompts]:
        raise ProblemsError([f"{table.name}: there is no prompt for the group {name!r}" for name in missing])
    chosen = [
        (row, number) for row in deal(queues, sum(map(len, queues.values()))).tolist() for number in range(candidates)
    ]

    def pair(row: int, candidate: int) -> Pair:
        name = name_of(table, row)
        return Pair(
            first=DATA + name,
            second=f"images/{Path(name).with_suffix('')}-{candidate}.png",
            label=table.classes[int(table.label[row])],
            split=split,
            builder="edited",
            made_of=(name,),
            extra={"prompt": prompts[table.group_names[int(table.group[row])]]},
        )

    pairs = tuple(pair(row, candidate) for row, candidate in chosen)

    def make(number: int) -> dict[str, Tensor]:
        row, candidate = chosen[number]
        made = pairs[number]
        own = derive_seed(seed, "edit", made.made_of[0], candidate)
        image = editor(table.images[row], made.extra["prompt"], own)
        if image.shape != table.images.shape[1:] or image.dtype != torch.uint8:
            raise ValueError(
                f"the editor gave {image.dtype} of shape {tuple(image.shape)}, expected uint8 of "
                f"{tuple(table.images.shape[1:])}"
            )
        return {made.second: image}

    return Plan(table, pairs, make, parallel=False)


def celeba_prompts(table: ImageTable) -> dict[str, str]:
    """The paper's prompts for the four groups of hair and gender."""
    if (table.classes, table.attributes) != (("not blond hair", "blond hair"), ("not male", "male")):
        raise DataError(f"{table.name} is not about blond hair and gender; give a prompt for each group with --prompts")
    words = {"not male": {"old": "female", "new": "male"}, "male": {"old": "male", "new": "female"}}
    return {
        f"{label}, {attribute}": (HAIR_PROMPT if label == "blond hair" else PROMPT).format(**gender, hair="blond")
        for label in table.classes
        for attribute, gender in words.items()
    }


def read_prompts(path: Path, table: ImageTable) -> dict[str, str]:
    """Prompts from a TOML file: a line a group, `"landbird, on land" = "Move this bird to the sea."`."""
    prompts = read_toml(path, "file of prompts")
    groups = ", ".join(repr(name) for name in table.group_names)
    problems = [
        f"{path}: there is no group {name!r}; there are {groups}" for name in prompts if name not in table.group_names
    ]
    problems += [
        f"{path}: the prompt of {name!r} is no text" for name, text in prompts.items() if not isinstance(text, str)
    ]
    if problems:
        raise ProblemsError(problems)
    return prompts


@dataclass(frozen=True)
class Kontext:
    """An editor by diffusers' `FluxKontextPipeline`."""

    pipeline: Any
    side: int = 1024
    """Pixels at which it works; FLUX.1 Kontext was trained at 1024."""
    steps: int = 28
    guidance: float = 2.5

    def __call__(self, image: Tensor, prompt: str, seed: int) -> Tensor:
        """The image as the prompt says, at its own size."""
        picture = Image.fromarray(to_rgb(image).permute(1, 2, 0).numpy())
        made = self.pipeline(
            image=picture.resize((self.side, self.side), Image.Resampling.BICUBIC),
            prompt=prompt,
            height=self.side,
            width=self.side,
            max_area=self.side**2,
            num_inference_steps=self.steps,
            guidance_scale=self.guidance,
            generator=torch.Generator("cpu").manual_seed(seed),  # the same on every device
            _auto_resize=False,
        ).images[0]
        size = (image.shape[-1], image.shape[-2])
        pixels = np.asarray(made.convert("RGB").resize(size, Image.Resampling.LANCZOS))
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def lazy_kontext(model: str = KONTEXT, *, device: str = "cuda", side: int = 1024, steps: int = 28) -> Editor:
    """An editor whose weights, from a folder or a hub, are loaded when the first image is to be edited.

    Raises:
        DataError: diffusers is missing.
    """
    diffusers = _diffusers()

    @cache
    def load() -> Kontext:
        try:
            pipeline = fetched(
                lambda: diffusers.FluxKontextPipeline.from_pretrained(
                    model, dtype=torch.bfloat16, use_safetensors=True, trust_remote_code=False
                ),
                asks=not Path(model).exists(),
            )
        except (OSError, ValueError) as error:
            reason: object = error
            if is_unanswered(error):
                reason = (
                    "the hub does not answer, and no copy of it is on this machine; without a network, name a folder "
                    "as save_pretrained writes it"
                )
            raise DataError(f"the editing model {model} cannot be loaded: {reason}") from error
        pipeline.set_progress_bar_config(disable=True)
        return Kontext(pipeline.to(device), side=side, steps=steps)

    return lambda image, prompt, seed: load()(image, prompt, seed)


def _diffusers() -> Any:
    try:
        return importlib.import_module("diffusers")
    except ImportError:
        raise DataError(
            'editing needs diffusers, transformers and accelerate: pip install "invariance-pair-guidance[edit]"'
        ) from None
