"""The pairs that `ipg pairs build` is to make, by the builder and its options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ipg.cli.pairs_data import Data
from ipg.cli.progress import bar
from ipg.data.errors import DataError
from ipg.evaluation.features import features
from ipg.models import build_model
from ipg.pairs import background, counterparts, edited, matched, plan, recolored
from ipg.pairs.features import joined, read_attributes, read_features, thumbnails
from ipg.pairs.masks import Masks
from ipg.pairs.plan import Plan
from ipg.training.device import resolve_device

__all__ = ["plan_of"]


def plan_of(
    builder: str,
    data: Data,
    count: int | None,
    split: str,
    seed: int,
    own: dict[str, Any],
    there: Collection[str] = (),
) -> Plan:
    """The plan of the named builder; `own` are the options that belong to it alone, `there` the splits it has."""
    table, listing = data.table, data.listing
    if builder == "edited":
        prompts = edited.read_prompts(own["prompts"], table) if "prompts" in own else edited.celeba_prompts(table)
        where = {name: own[name] for name in ("model", "device", "side", "steps") if name in own}
        many = {name: own[name] for name in ("per_group", "candidates") if name in own}
        return edited.plan(table, edited.lazy_kontext(**where), prompts=prompts, split=split, seed=seed, **many)
    if builder == "counterparts" and listing is not None:
        images = own.get("images")
        return counterparts.plan(
            table, listing, own["table"], images=images, count=count, split=split, seed=seed, there=there
        )
    if builder == "background" and listing is not None:
        masks = Masks(own["masks"], listing, size=table.images.shape[-1])
        keep = own.get("keep") or ("scene" if table.name.endswith("_reverse") else "object")  # the label is of it
        traces = own.get("traces", "second")
        return background.plan(table, count or 0, masks=masks, keep=keep, traces=traces, split=split, seed=seed)
    if listing is None and builder in ("counterparts", "background"):
        raise DataError(f"{builder} pairs are of image files, and {table.name} has none; use recolored pairs")
    if builder == "matched":
        points = _features(data, split, own)
        return plan.of_pair_set(table, matched.matched(table, points, count or 0, split=split, seed=seed))
    make = {"random": matched.random, "recolored": recolored.build}[builder]
    return plan.of_pair_set(table, make(table, count or 0, split=split, seed=seed))


def _features(data: Data, split: str, own: dict[str, Any]) -> Any:
    """What images are matched in: features, attributes or both; thumbnails where neither is given."""
    table = data.table
    points = read_features(own["features"], table) if "features" in own else None
    if "network" in own:
        points = _computed(table.part(split).images, own)
    if "attributes" not in own:
        return thumbnails(table.part(split).images) if points is None else points
    others, _ = read_attributes(own["attributes"], table)
    rows = table.indices(split)
    if points is None:
        return others[rows]
    if len(points) not in (len(table), len(rows)):
        return points  # which is refused
    inside = points[rows.numpy()] if len(points) == len(table) else points
    return joined(inside, others[rows], weight=own.get("weight", 1.0))


def _computed(images: Tensor, own: dict[str, Any]) -> Any:
    """What a network that is trained already makes of `images`, (n, D)."""
    model = build_model(
        own["network"],
        channels=images.shape[1],
        classes=2,
        weights=own["weights"],
        normalization=own.get("normalization"),
        size=images.shape[-1],
    ).to(resolve_device("auto"))
    found = []
    with bar("features") as progress:
        for part in torch.split(images, 512):
            found.append(features(model, part).cpu())
            progress(sum(map(len, found)), len(images))
    return torch.cat(found).numpy()
