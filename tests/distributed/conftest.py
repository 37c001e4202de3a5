"""Starts processes that train together, bounded in time, and gives what each of them found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forking import Template
from modules import load_file

WORKER = Path(__file__).with_name("worker.py")
LIMIT_SECONDS = 240

Launch = Callable[[int, Sequence[str]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    """The same trainings, by this process alone."""
    return load_file(WORKER)


@pytest.fixture(scope="session")
def launch(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run cases of `worker.py` by so many processes; what each of them found, in their order."""

    def start(count: int, names: Sequence[str]) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("processes")
        processes, logs = [], []
        for index in range(count):
            logs.append(folder / f"{index}.log")
            line = [WORKER, index, count, folder / "store", folder, *names]
            processes.append(template.start(*line, log=logs[-1], environment={"GLOO_SOCKET_IFNAME": "lo"}))
        try:
            codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * count, "\n".join(log.read_text()[-3000:] for log in logs)
        return [torch.load(folder / f"{index}.pt", weights_only=True) for index in range(count)]

    return start
