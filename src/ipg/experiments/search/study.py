"""The trials of a search as Optuna keeps them: handed out once each, taken up again when orphaned, told when done.

The sampler is TPE (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", 2011) with Optuna's settings, stated
here since its defaults change: 10 random trials first, 24 candidates, each setting for itself, trials under way counted
as bad ones. The good ones are the best tenth, at most 25; the newest 25 trials weigh in full, older ones less.

What a trial tries is drawn from the seed, its number and the name of the setting: a search that goes on after a stop is
the search that was not stopped. With the sampler `random` this holds for any number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ipg.config import ConfigError
from ipg.data.names import is_own
from ipg.experiments.search.plan import MACHINE, STARTUP, Plan, State, Tried
from ipg.experiments.search.space import configure
from ipg.experiments.search.storage import Holds, require_optuna
from ipg.experiments.search.trial import SearchTrial, limits
from ipg.experiments.study import ADDED
from ipg.methods.space import Choice, LogUniform, Range, Whole, ZeroOr
from ipg.seeds import derive_seed

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["Ledger"]

SWITCH = "{} above 0"
"""The name of the choice between 0 and the rest of a `ZeroOr`."""
KEPT = (
    "state", "error", "epoch", "refitted_epoch", "group_mean", "without_groups", "metrics", "seconds", "hardware",
    "versions", "commit", "date", "as",
)  # fmt: skip
"""What the storage keeps of a trial's row."""


class Ledger:
    """Hands out the trials of a plan and keeps what became of them."""

    def __init__(self, plan: Plan, storage: BaseStorage, holds: Holds) -> None:
        self.plan, self.storage, self.holds = plan, storage, holds
        self._optuna = require_optuna()
        with holds.turn():
            self.study: optuna.Study = self._optuna.create_study(
                storage=storage,
                study_name=plan.name,
                direction="maximize",
                load_if_exists=True,
                pruner=self._optuna.pruners.NopPruner(),
            )
            self._check()

    def _check(self) -> None:
        """Refuse to go on with another search; one from before a setting could be `auto` keeps what it had."""
        if (before := self.study.user_attrs.get("plan")) is None:
            self.study.set_user_attr("plan", self.plan.identity)
            return
        self.plan = replace(self.plan, base=self.plan.base.as_before(before))
        plan = self.plan.identity
        joined = ADDED | ({"split_seed": plan["seed"]} if is_own(plan["data"]) else {})  # the seed drew the split
        before = {key: joined[key] for key in plan if key in joined} | before
        before = {key: value for key, value in before.items() if key not in MACHINE}  # searches once told the engine
        changed = [
            f"{key} was {before.get(key)!r} and is now {plan.get(key)!r}"
            for key in {**before, **plan}
            if before.get(key) != plan.get(key)
        ]
        if changed:
            more = [f"… and {len(changed) - 3} more"] if len(changed) > 3 else []
            raise ConfigError(
                [
                    f"{self.plan.name} is another search: {'; '.join([*changed[:3], *more])}. Give this one another "
                    f"place with --output, or with --name in a database."
                ]
            )

    # -- handing out ---------------------------------------------------------------------------------------------

    def take(self, busy: Collection[int] = ()) -> SearchTrial | None:
        """The next trial: one that was begun and is nobody's now, else a new one; None where all are given out.

        Trials whose settings have been tried are not handed out: they are worth what those were.

        Args:
            busy: numbers of trials to leave alone.
        """
        while True:
            with self.holds.turn():
                known = self.study.get_trials(deepcopy=False)
                found = self._orphan(known, busy) or self._new(known)
                if found is None:
                    return None
                trial = self._begin(found, known)
            if (same := self._same(trial)) is None:
                return trial
            self.tell(trial, {**same.about, "state": same.state, "value": same.value, "as": same.number})

    def _orphan(self, known: Sequence[FrozenTrial], busy: Collection[int]) -> FrozenTrial | None:
        running = self._optuna.trial.TrialState.RUNNING
        for trial in known:
            if trial.state == running and trial.number not in busy and self.holds.hold(trial.number):
                return trial
        return None

    def _new(self, known: Sequence[FrozenTrial]) -> FrozenTrial | None:
        """A new trial where there is room for one; those that failed leave theirs."""
        states = self._optuna.trial.TrialState
        if sum(trial.state != states.FAIL for trial in known) >= self.plan.trials:
            return None
        asked = self.study.ask()
        self.holds.hold(asked.number)
        return self.storage.get_trial(asked._trial_id)

    def _begin(self, found: FrozenTrial, known: Sequence[FrozenTrial]) -> SearchTrial:
        """Draw what is not drawn yet, and put the trial together."""
        plan, number = self.plan, found.number
        trial = self._optuna.trial.Trial(self.study, found._trial_id)
        settings = {name: self._draw(trial, name, range_) for name, range_ in plan.space.items()}
        if "limits" not in found.user_attrs:
            curves = [list(t.intermediate_values.values()) for t in known if t.state.name == "COMPLETE"]
            trial.set_user_attr("limits", limits(curves, plan.base.epochs) if plan.prune else ())
        config = configure(plan.base, settings)
        return SearchTrial(
            study=plan.name,
            dataset=config.data,
            method=config.method,
            protocol="search",
            seed=config.seed,
            config=config,
            number=number,
            settings=tuple(settings.items()),
            objective=plan.objective,
            limits=tuple(trial.user_attrs["limits"]),
        )

    def _draw(self, trial: optuna.Trial, name: str, range_: Range) -> Any:
        """A value of one setting; the one that it has where it is drawn already."""
        with self._sampling(trial.number, name):
            match range_:
                case Choice(values):
                    return trial.suggest_categorical(name, values)
                case LogUniform(low, high):
                    return trial.suggest_float(name, low, high, log=True)
                case Whole(low, high):
                    return trial.suggest_int(name, low, high)
                case ZeroOr(low, high):
                    above = trial.suggest_categorical(SWITCH.format(name), (False, True))
                    return trial.suggest_float(name, low, high) if above else 0.0
            return trial.suggest_float(name, range_.low, range_.high)

    @contextmanager
    def _sampling(self, number: int, name: str) -> Iterator[None]:
        samplers = self._optuna.samplers
        seed = derive_seed(self.plan.base.seed, "search", number, name) >> 31  # 32 bits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            if self.plan.sampler == "random":
                self.study.sampler = samplers.RandomSampler(seed=seed)
            else:
                self.study.sampler = samplers.TPESampler(
                    n_startup_trials=STARTUP, n_ei_candidates=24, multivariate=False, constant_liar=True, seed=seed
                )
            yield

    def _same(self, trial: SearchTrial) -> Tried | None:
        """An earlier trial of the same settings that has a value."""
        for tried in self.tried():
            known = tried.number < trial.number and tried.state in ("complete", "wrong")
            if known and tried.settings == dict(trial.settings):
                return tried
        return None

    # -- what became of them -------------------------------------------------------------------------------------

    def tell(self, trial: SearchTrial, row: Mapping[str, Any]) -> None:
        """Keep what a trial is worth, and let go of it; nothing changes where somebody else has told already."""
        value = row.get("value")
        if value is None and row["state"] != "pruned":
            row = {"error": "its value could not be measured", **row, "state": "failed"}
        states = {"complete": "COMPLETE", "wrong": "COMPLETE", "pruned": "PRUNED"}
        state = self._optuna.trial.TrialState[states.get(row["state"], "FAIL")]
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        if not frozen.state.is_finished():
            for epoch, reached in enumerate(row.get("curve", ()), start=1):
                if reached is not None:
                    self.storage.set_trial_intermediate_value(frozen._trial_id, epoch, reached)
            kept = {name: row[name] for name in KEPT if name in row}
            self.storage.set_trial_user_attr(frozen._trial_id, "row", kept)
            self.study.tell(
                trial.number, value if state.name == "COMPLETE" else None, state=state, skip_if_finished=True
            )
        self.holds.release(trial.number)

    def fail(self, trial: SearchTrial, line: str) -> None:
        """Keep why a trial has no value; its place is free for another."""
        self.tell(trial, {"state": "failed", "error": line})

    def leave(self, trial: SearchTrial) -> None:
        """Let go of a trial that is not done."""
        self.holds.release(trial.number)

    def tried(self) -> list[Tried]:
        """All trials as they stand, in their order."""
        return [self._tried(trial) for trial in self.study.get_trials(deepcopy=False)]

    def _tried(self, trial: FrozenTrial) -> Tried:
        about = trial.user_attrs.get("row", {})
        states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        state = "wrong" if about.get("state") == "wrong" else states.get(trial.state.name, "running")
        drawn = {name: trial.params.get(name, 0.0) for name in self.plan.space if self._is_drawn(trial, name)}
        value = trial.value if trial.state.name in ("COMPLETE", "PRUNED") else None
        return Tried(trial.number, cast(State, state), value, drawn, about)

    @staticmethod
    def _is_drawn(trial: FrozenTrial, name: str) -> bool:
        return name in trial.params or SWITCH.format(name) in trial.params

    def importances(self) -> dict[str, float]:
        """How much each setting decides over being among the best (PED-ANOVA), largest first; none of few trials."""
        complete = [trial for trial in self.tried() if trial.state in ("complete", "wrong")]
        if len({trial.value for trial in complete}) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            found = self._optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        whole = {name: float(found.get(name, 0) + found.get(SWITCH.format(name), 0)) for name in self.plan.space}
        return dict(sorted(whole.items(), key=lambda item: -item[1]))
