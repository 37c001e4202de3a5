"""A study on a real Ray of two nodes, one of which is killed midway: `python two_nodes.py RESULTS NOTES`.

To be run in a network namespace of its own (`unshare -rn`), where nobody else listens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from study_stubs import notes, wait_for

from ipg.config import RunConfig
from ipg.experiments.cluster import Cluster
from ipg.experiments.runner import run_study
from ipg.experiments.study import Study, Trial
from ipg.experiments.trial import run_trial

HEAD = "127.0.0.1:6379"
TRIALS = 8


def study() -> Study:
    """Real training, a second or two a trial."""
    small = RunConfig(method="ipg", batch=1024, epochs=2, pairs=8, held_out_pairs=8, precision="fp32")
    made = (Trial("two", "colored_fashion", "ipg", "paper", n, small.with_changes(seed=n)) for n in range(TRIALS))
    return Study("two", tuple(made), "test")


def run(trial: Trial, **options: Any) -> dict[str, Any]:
    """Note which node begins the trial, and run it; seed 0 fails, the second node's second trial never ends there."""
    node, folder = os.environ["IPG_TEST_NODE"], notes(trial).parent
    with notes(trial).open("a", encoding="utf-8") as file:
        file.write(f"{node}\n")
    if trial.seed == 0:
        raise RuntimeError("seed 0\nis not to be had")
    config = trial.config.with_changes(data_path=None)
    second = [file for file in folder.glob("*.txt") if "two" in file.read_text(encoding="utf-8")]
    if node == "two" and len(second) > 1:
        (folder / "end").touch()
        config = config.with_changes(epochs=100_000)
    return run_trial(Trial(**{**vars(trial), "config": config}), **options) | {"key": trial.key, "node": node}


def loopback_up() -> None:
    """What `ip link set lo up` does."""
    up, get, set_ = 0x1, 0x8913, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(handle, get, asked))
        fcntl.ioctl(handle, set_, struct.pack("16sh14x", b"lo", flags | up))


def listens() -> bool:
    with socket.socket() as handle:
        return handle.connect_ex(("127.0.0.1", 6379)) == 0


def start(name: str, address: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """A node of one core, in a group of processes of its own."""
    ray = Path(sys.executable).with_name("ray")
    options = ["--node-ip-address", address, "--num-cpus", "1", "--object-store-memory", "80000000", "--block"]
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(ray), "start", *options, "--temp-dir", str(folder / name), "--disable-usage-stats", *more],
            env={**os.environ, "IPG_TEST_NODE": name, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill all of a node's processes at once."""
    os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def main() -> None:
    results, folder = map(Path, sys.argv[1:])
    import ray
    import two_nodes  # itself, by the name that the nodes find it by

    loopback_up()
    place = Path(tempfile.mkdtemp(prefix="ipg-ray-"))  # short, since sockets have their names in it
    nodes = [start("one", "127.0.0.1", place, "--head", "--port", "6379", "--include-dashboard", "false")]
    try:
        wait_for(listens)
        nodes.append(start("two", "127.0.0.2", place, "--address", HEAD))
        ray.init(address=HEAD, log_to_driver=False, logging_level="ERROR")
        wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        ray.shutdown()

        def midway() -> None:
            wait_for((folder / "end").exists)
            kill(nodes[1])

        threading.Thread(target=midway, daemon=True).start()
        print(run_study(study(), results, data_path=str(folder), cluster=Cluster(HEAD), run=two_nodes.run))
    finally:
        for node in nodes:
            if node.poll() is None:
                kill(node)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
