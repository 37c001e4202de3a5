"""Starts processes that train together, bounded in time, and gives what each of them found."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

WORKER = Path(__file__).with_name("worker.py")
LIMIT_SECONDS = 240

Launch = Callable[[int, Sequence[str]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    """The same trainings, by this process alone."""
    spec = importlib.util.spec_from_file_location("ipg_distributed_tests_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run cases of `worker.py` by so many processes; what each of them found, in their order."""

    def start(count: int, names: Sequence[str]) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("processes")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-W", "error", str(WORKER)]
        processes, logs = [], []
        for index in range(count):
            logs.append(folder / f"{index}.log")
            arguments = [str(index), str(count), str(folder / "store"), str(folder), *names]
            with logs[-1].open("w") as log:
                processes.append(subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log))
        try:
            codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0] * count, "\n".join(log.read_text()[-3000:] for log in logs)
        return [torch.load(folder / f"{index}.pt", weights_only=True) for index in range(count)]

    return start
