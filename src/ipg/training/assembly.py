"""The parts that a run is made of, put together as its configuration says: network, method, batches, step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ipg.collectives import GlobalCrossEntropy
from ipg.config import RunConfig
from ipg.data.augment import Augmentation
from ipg.data.batches import Batches
from ipg.methods import Method, Setup, method_class
from ipg.methods.optimizers import load_optimizer
from ipg.methods.options import parse_options
from ipg.pairs.pairset import PairSampler
from ipg.seeds import derive_seed
from ipg.training.capture import CapturedStep
from ipg.training.device import autocast_dtype
from ipg.training.distributed import Team
from ipg.training.engine import compile_model, lay_out, traces
from ipg.training.judging import Judge
from ipg.training.materials import Materials
from ipg.training.optimization import class_weights, make_optimizer
from ipg.training.outcome import Outcome
from ipg.training.sharding import laid_like, optimizer_laid, whole
from ipg.training.stepping import EagerStep, Means, PairFeed, PreparedStep

__all__ = ["Assembly"]


class Assembly:
    """The parts of a run, put together once. `step` makes an iteration with a batch's rows, as `batches` gives them."""

    def __init__(
        self,
        config: RunConfig,
        materials: Materials,
        device: torch.device,
        evaluate_on: Sequence[str] | None,
        team: Team,
        first: Outcome | None = None,
        evaluate_once: Sequence[str] = (),
    ) -> None:
        config = config.suited()
        self.config, self.device, self.team = config, device, team
        kind = method_class(config.method)
        trained_on = materials.pairs if "pairs" in kind.needs and len(materials.pairs or ()) else None
        self.autocast = autocast_dtype(config)
        self.plain = materials.model
        self.model = self._sharded(materials) if team.shares(config) else lay_out(materials.model, config, device)
        self.fast = compile_model(self.model, config, device)
        self.judge = Judge(config, materials, evaluate_on, self.model, self.fast, team, trained_on, once=evaluate_once)
        train_table, self.validation = self.judge.training, self.judge.validation
        self.optimizer = make_optimizer(self.model, config, device)
        compile = traces(config, device)
        views = Augmentation(config.crop, config.flip)
        options = parse_options(kind, config.options)
        self._learns = first is not None
        if first is not None:
            learnt = kind.learn(first.model.to(device), train_table, options, autocast=self.autocast)
            sampling = team.first(lambda: learnt)  # which other GPUs may see a little differently
        else:
            sampling = kind.sampling(train_table, options, seed=derive_seed(config.seed, "sampling"))
        masks = materials.masks if kind.needs & {"masks", "attention"} else None
        self.batches = Batches(
            train_table,
            config.batch,
            seed=config.seed,
            sampling=sampling,
            augmentation=views,
            share=team.rows,
            compile=compile,
            masks=masks,
            steps=config.steps,
        )
        self.total = config.epochs * len(self.batches)
        sampler = None
        if trained_on is not None:
            seed, part = derive_seed(config.seed, "pair batches"), (team.index, team.size)
            sampler = PairSampler(trained_on, config.pair_batch, seed=seed, part=part)
        feed = PairFeed(sampler, augmentation=views, compile=compile) if sampler is not None else None
        criterion = GlobalCrossEntropy(class_weights(train_table) if config.class_weighted else None)
        replica = team.replica(self.fast, device, batch_norm=config.batch_norm)
        loss = torch.compile(criterion.to(device), dynamic=False) if compile else criterion.to(device)
        setup = Setup(
            replica,
            self.optimizer,
            loss,
            config,
            feed,
            self.autocast,
            table=train_table,
            make_optimizer=lambda network: make_optimizer(network, config, device),
            validation=self.validation,
            pair_set=materials.pairs,
            masks=masks,
            make_network=_maker(materials, config, device),
        )
        self.method: Method = kind(setup)
        self.sampler = sampler
        self.means = Means(compile=compile)
        stepper = EagerStep if config.engine == "eager" else CapturedStep if device.type == "cuda" else PreparedStep
        self.step: EagerStep = stepper(self.method, self.batches, feed, self.means)

    def _sharded(self, materials: Materials) -> nn.Module:
        """A copy of the network in shards; the network itself stays as it is until the run has finished."""
        config, bf16 = self.config, self.autocast == torch.bfloat16
        return self.team.sharded(
            materials.model, materials.table.images, self.device, batch_norm=config.batch_norm, bf16=bf16
        )

    def state(self) -> dict[str, Any] | None:
        """What the parts need to go on from here. All processes have to ask; those that do not lead are given None."""
        means = self.means.over(self.team.peers)
        self.team.settle(self.model)
        own = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
        own = whole(own, keep=self.team.leads)
        if not self.team.leads:
            return None
        return {
            "drawn": self.batches.drawn if self._learns else None,
            **own,
            "method": self.method.state_dict(),
            "sampler": self.sampler.state_dict() if self.sampler is not None else None,
            "means": means.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state` gave."""
        if state.get("drawn") is not None:  # predicted again it may be a little different
            self.batches.draw_from(state["drawn"])
            self.total = self.config.epochs * len(self.batches)
        self.model.load_state_dict(laid_like(self.model.state_dict(), state["model"]))
        load_optimizer(self.optimizer, optimizer_laid(self.optimizer, state["optimizer"]))
        self.method.load_state_dict(state["method"])
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
        self.means.load_state_dict({name: total.to(self.device) for name, total in state["means"].items()})


def _maker(materials: Materials, config: RunConfig, device: torch.device) -> Callable[[], nn.Module] | None:
    """Makes networks as that of `materials` was made, laid out as it is; None where it is not known how."""
    make = materials.make_network
    return None if make is None else lambda: lay_out(make().to(device), config, device)
