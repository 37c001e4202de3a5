"""A study on many machines: every trial is a Ray task, and its row comes back to this process, which alone writes.

Ray finds a machine with the CPUs and GPUs that a trial states, and another one when a machine dies. Ray is an extra and
loaded when it is used: `pip install 'invariance-pair-guidance[cluster]'`.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ipg.config import RunConfig
from ipg.experiments.attempt import Ended, Job, RunTrial, in_a_line
from ipg.experiments.study import Trial

if TYPE_CHECKING:
    from ipg.experiments.progress import View

__all__ = ["Cluster", "Tasks"]

RETRIES = 5
"""How often a trial is begun again after the machine or the process that ran it has died."""
TELL_SECONDS = 5.0
"""How often a trial says how far it is."""
LEAST_IN_FLIGHT = 64
"""Ray is given at least so many trials at once, so that a cluster which grows by itself sees what it is needed for."""


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and what a trial takes of it."""

    address: str = "auto"
    """`auto` is the cluster of this machine, or of `RAY_ADDRESS`."""
    cpus: float = 1
    gpus: float | None = None
    """One where the cluster has GPUs and the device is not `cpu`, if not given."""

    def __post_init__(self) -> None:
        if self.cpus < 0 or (self.gpus or 0) < 0:
            raise ValueError(f"a trial cannot take {self.cpus:g} CPUs and {self.gpus or 0:g} GPUs; expected 0 or more")


class Tasks:
    """Trials as tasks of a Ray cluster."""

    def __init__(self, job: Job, view: View, cluster: Cluster, *, device: str = "auto") -> None:
        self.job, self.view, self.cluster, self.device = job, view, cluster, device
        self.ray = _ray()
        self._stops: Counter[str] = Counter()

    def __enter__(self) -> Tasks:
        ray, address = self.ray, self.cluster.address
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except OSError:
            where = "on this machine" if address == "auto" else f"at {address}"
            raise ValueError(f"there is no Ray cluster {where}; start one with: ray start --head") from None
        try:
            self._submit = self._task()
            if not any(map(self._fitting, ray.nodes())):
                takes = " and ".join(f"{amount:g} {name}" for name, amount in self._takes.items() if amount)
                self.view.say(f"no machine of the cluster has {takes} for a trial: waiting until one joins")
            self._mailbox = ray.remote(num_cpus=0, max_restarts=-1)(Mailbox).remote()
            self._letters = self._mailbox.take.remote()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; it ends what still runs for us."""
        self.ray.shutdown()

    def _task(self) -> Callable[..., Any]:
        cpus, gpus = self.cluster.cpus, self.cluster.gpus
        if gpus is None:
            gpus = float(self.device != "cpu" and self.ray.cluster_resources().get("GPU", 0) >= 1)
        self._takes = {"CPU": cpus, "GPU": gpus}
        self.job = replace(self.job, sharing=max(1, int(1 / gpus)) if gpus else 1)
        task = self.ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False)(run_task)
        submit: Callable[..., Any] = task.remote
        return submit

    def run(self, trials: Iterable[Trial]) -> Iterator[Ended]:
        """Have all trials attempted; each is reported once."""
        waiting = deque(trials)
        with ExitStack() as claims:
            flying: dict[Any, tuple[Trial, ExitStack]] = {}
            while waiting or flying:
                while waiting and len(flying) < self._most_in_flight():
                    trial = waiting.popleft()
                    claim = claims.enter_context(ExitStack())
                    store = self.job.store_of(trial)
                    mine = claim.enter_context(store.claim(trial.key))
                    if mine and trial.key not in store.done():
                        flying[self._fly(trial)] = trial, claim
                        continue
                    claim.close()
                    yield Ended(trial.key, "done" if mine else "elsewhere")
                landed, _ = self.ray.wait(list(flying), timeout=1.0) if flying else ([], [])
                self._listen()
                for task in landed:
                    trial, claim = flying.pop(task)
                    ended = self._land(trial, task)
                    claim.close()
                    if ended is not None:
                        yield ended
                    else:
                        waiting.append(trial)

    def _fly(self, trial: Trial) -> Any:
        self.view.started(trial)
        values = asdict(trial)
        return self._submit(values, self.job.metrics_split, self.job.run, self._mailbox)

    def _land(self, trial: Trial, task: Any) -> Ended | None:
        """Keep what came of a trial; None where its machine was shut down and it has to be run once more."""
        try:
            row, text, line = self.ray.get(task)
        except self.ray.exceptions.RayError as lost:
            return self.job.failed(trial, f"{lost}\n", in_a_line(lost))
        if row is not None and row["key"] != trial.key:
            line = f"the machine that ran it has another version of ipg: {row['versions']}"
            return self.job.failed(trial, f"{line}\n", line)
        if row is not None:
            self.job.store_of(trial).finish(row := {**row, **self.job.company(others=False)})
            return Ended(trial.key, "done", row)
        if text is not None:
            return self.job.failed(trial, text, line)
        self._stops[trial.key] += 1
        if self._stops[trial.key] <= RETRIES:
            self.view.lost(trial, "its machine was shut down; another begins it anew")
            return None
        line = f"its machine was shut down {RETRIES + 1} times"
        return self.job.failed(trial, f"{line}\n", line)

    def _most_in_flight(self) -> int:
        """Twice what fits; every trial in flight is claimed, which takes an open file."""
        return max(LEAST_IN_FLIGHT, 2 * sum(map(self._fitting, self.ray.nodes())))

    def _fitting(self, node: Mapping[str, Any]) -> int:
        """How many trials a machine can run at once."""
        has = node["Resources"] if node["Alive"] else {}
        return min((int(has.get(name, 0) / amount) for name, amount in self._takes.items() if amount), default=1)

    def _listen(self) -> None:
        """Pass on how far the trials are, if word has come."""
        if not self.ray.wait([self._letters], timeout=0)[0]:
            return
        with suppress(self.ray.exceptions.RayError):  # the machine that kept them has died
            for key, share in self.ray.get(self._letters).items():
                self.view.moved(key, share)
        self._letters = self._mailbox.take.remote()


def _knock(address: str) -> None:
    """OSError where nobody answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _ray() -> Any:
    """Ray, if it is installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError(
            "a cluster needs Ray, which is not installed: pip install 'invariance-pair-guidance[cluster]'"
        ) from None
    return ray


# -- on the machines of the cluster ------------------------------------------------------------------------------------


class Mailbox:
    """Keeps the last word of every running trial until it is fetched."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def put(self, key: str, share: float) -> None:
        """A trial is so far."""
        self._shares[key] = share

    def take(self) -> dict[str, float]:
        """What has come since the last time."""
        shares, self._shares = self._shares, {}
        return shares


def run_task(
    values: dict[str, Any], metrics_split: str, run: RunTrial, mailbox: Any
) -> tuple[dict[str, Any] | None, str | None, str | None]:
    """The row of a trial, or a traceback and a line on what went wrong; nothing where this machine is shut down."""
    last = -TELL_SECONDS

    def tell(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_SECONDS:
            last = time.monotonic()
            mailbox.put.remote(trial.key, share)

    try:
        trial = Trial(**{**values, "config": RunConfig(**values["config"])})
        return run(trial, metrics_split=metrics_split, folder=None, tell=tell), None, None
    except Exception as error:
        return None, traceback.format_exc(), in_a_line(error)
    except KeyboardInterrupt:
        return None, None, None
