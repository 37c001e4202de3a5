"""What a network is worth at the end of an epoch: on every split and on pairs, with its line drawn as it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.evaluation.batch_norm import batch_norm_gap
from ipg.evaluation.decision import draw_line, movable_head, moved
from ipg.evaluation.groups import metrics
from ipg.evaluation.pairs import disagreement
from ipg.pairs.pairset import PairSet
from ipg.training.device import autocast_dtype
from ipg.training.distributed import Team
from ipg.training.materials import Materials
from ipg.training.sharding import at_rest

__all__ = ["Judge"]


class Judge:
    """Evaluates the network of a run; refuses, before training, what it could not judge.

    Args:
        config: the run.
        materials: its images and pairs.
        splits: those to evaluate after each epoch; all but `train` where not given.
        model: the network as it is.
        fast: the same as it answers fastest.
        team: the processes of the run.
        trained_on: the pairs that the method trains on.
        once: further splits, to evaluate when training is over.
    """

    def __init__(
        self,
        config: RunConfig,
        materials: Materials,
        splits: Sequence[str] | None,
        model: nn.Module,
        fast: nn.Module,
        team: Team,
        trained_on: PairSet | None,
        *,
        once: Sequence[str] = (),
    ) -> None:
        self.config, self.model, self.fast, self.team = config, model, fast, team
        self.held_out, self.trained_on = materials.held_out, trained_on
        self.autocast = autocast_dtype(config)
        table = materials.table
        if splits is None:
            splits = [split for split in table.splits if split != "train"]
        if "train" in (*splits, *once):
            raise ValueError("the train split is named among those to evaluate, and its images are not evaluated")
        self.training = table.part("train")
        self.parts = {split: table.part(split) for split in splits}
        self.once = {split: table.part(split) for split in once if split not in splits}
        validation = self.parts.get("validation")
        if validation is None and "validation" in table.splits:
            validation = table.part("validation")
        self.validation = validation if validation is not None and len(validation) else None
        self._check_selection()
        self._check_decision()

    def _check_selection(self) -> None:
        """A rule that had nothing to measure would keep the first epoch, whatever it is worth."""
        rule = self.config.selection
        if rule != "last" and not len(self.parts.get("validation", ())):
            raise ValueError(f"selection={rule!r} needs validation images and there are none; use selection='last'")
        if rule == "pairs" and not len(self.held_out or ()):
            raise ValueError(
                "selection='pairs' needs held-out pairs and there are none; set held_out_pairs above 0, or for "
                "images of your own build pairs with --split validation and give their folder as --pairs"
            )

    def _check_decision(self) -> None:
        """Before training rather than after its first epoch."""
        if (rule := self.config.decision) == "argmax":
            return
        if self.validation is None:
            raise ValueError(f"decision={rule!r} needs validation images and there are none; use decision='argmax'")
        movable_head(self.model)

    @contextmanager
    def decided(self, row: dict[str, Any]) -> Iterator[None]:
        """The network with the line between classes drawn as the configuration says; training goes on without.

        Lines are judged by what the network says with them, in the precision of the run: the one that scored best is
        the one that is kept.
        """
        if self.config.decision == "argmax" or self.validation is None:
            yield
            return
        images, head = self.validation.images, movable_head(self.model)

        def answers(offsets: Tensor) -> Tensor:
            with moved(head, offsets):
                return self._logits(images)

        offsets = draw_line(self._logits(images), answers, self.validation, self.config.decision)
        row["offsets"] = offsets.tolist()
        with self.drawn(row):
            yield

    def drawn(self, row: Mapping[str, Any]) -> AbstractContextManager[None]:
        """The network with the line that `row` tells of."""
        if "offsets" not in row:
            return nullcontext()
        return moved(movable_head(self.model), torch.tensor(row["offsets"], dtype=torch.float64))

    def prepare(self) -> None:
        """Have what evaluates images compiled, where the network is, before the first of them counts."""
        images = next((part.images for part in self.parts.values() if len(part)), None)
        if self.fast is not self.model and images is not None:
            self._logits(images[:1])

    def evaluate(self, row: dict[str, Any]) -> None:
        """Put what the network is worth on its splits and on pairs into `row`."""
        for split, part in self.parts.items():
            row[split] = self._worth(part)
        pairs = self.trained_on
        row["pair_disagreement"] = disagreement(self._logits, self.held_out)
        row["train_pair_disagreement"] = disagreement(self._logits, pairs)
        if pairs is not None and self.config.batch_norm == "train":
            members = (pairs.first, pairs.second)
            gap = batch_norm_gap(self.model, members, self.training.images, autocast=self.autocast)
            at_rest(self.model)
            row |= {} if gap is None else {"batch_norm_gap": gap}

    def evaluate_once(self, row: dict[str, Any]) -> None:
        """Put what the network is worth on the splits left to the end into `row`, unless `row` already has them."""
        for split, part in self.once.items():
            if split not in row:
                row[split] = self._worth(part)

    def _worth(self, part: ImageTable) -> dict[str, Any]:
        return metrics(self._logits(part.images), part, training=self.training)

    def _logits(self, images: Tensor) -> Tensor:
        return self.team.logits(self.fast, images, autocast=self.autocast)
