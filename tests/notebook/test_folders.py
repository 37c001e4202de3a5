"""Runs in folders, read back, and shown as a report."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stripes import SMALL, net, repainted

from ipg.data.load import DATASETS, load
from ipg.files import write_json
from ipg.guidance import CollapseError
from ipg.notebook import Run, fit
from ipg.training import loop
from ipg.training.folder import FolderError
from ipg.training.interrupt import StopRequest
from ipg.training.listeners import Listener

pytestmark = pytest.mark.usefixtures("one_thread")


class StopAfterFirst(Listener):
    """Raises once an epoch has ended and been saved."""

    def epoch(self, row) -> None:
        raise InterruptedError


@pytest.mark.parametrize("listeners", [[], [Listener()]])
def test_a_run_that_began_again_says_so_where_nobody_listens(
    bars: dict[str, Any], monkeypatch: pytest.MonkeyPatch, listeners: list[Listener]
) -> None:
    between = loop.Training._between_steps

    def collapsing(run: loop.Training, request: StopRequest) -> None:
        if not run.progress.restarts:
            raise CollapseError("collapsed")
        between(run, request)

    monkeypatch.setattr(loop.Training, "_between_steps", collapsing)
    said = pytest.warns(UserWarning, match="began again once, with a learning rate of 0.0005 in the place of 0.001")
    with said if not listeners else nullcontext() as caught:
        run = fit(**bars, method="ipg", learning_rate=1e-3, listeners=listeners)
    assert run.result["restarted"] == 1
    assert listeners or [warning.filename for warning in caught] == [__file__]


def test_a_run_in_a_folder_goes_on_where_it_stopped(own: dict[str, Any], tmp_path: Path) -> None:
    whole = fit(**own | {"model": net()})
    with pytest.raises(InterruptedError):
        fit(**own | {"model": net()}, folder=tmp_path / "run", listeners=[StopAfterFirst()])
    started = []

    class Notes(Listener):
        def started(self, config, *, step, total) -> None:
            started.append((step, total))

    model = net()
    resumed = fit(**own | {"model": model}, folder=tmp_path / "run", listeners=[Notes()])
    assert started == [(6, 12)]
    again = fit(**own | {"model": net()}, folder=str(tmp_path / "run"), listeners=[Notes()])
    assert started == [(6, 12)]  # it was done
    for run in (resumed, again):
        assert run.result["metrics"] == whole.result["metrics"]
        assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), whole.model.parameters(), strict=True))
    assert resumed.model is model


def test_reading_a_run_back(bars: dict[str, Any], tmp_path: Path) -> None:
    run = fit(**bars, method="joint", options={"order": "sum"}, folder=tmp_path)
    back = Run.load(tmp_path, device="cpu")
    assert back.config == run.config.suited().with_changes(device="cpu", options=back.config.options, precision="fp32")
    assert dict(back.config.options) == {"order": "sum", "loss": "alignment"}
    assert back.result == run.result
    assert list(back.epochs) == list(run.epochs)
    assert back.evaluate() == run.result["metrics"]
    assert not back.model.training
    assert back.materials.fingerprints() == run.materials.fingerprints()


def test_reading_back_leaves_the_generator_alone(bars: dict[str, Any], tmp_path: Path) -> None:
    fit(**bars, folder=tmp_path)
    before = torch.get_rng_state()
    Run.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_changed_data_is_not_read_back(
    bars: dict[str, Any], tmp_path: Path, make_table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(**bars, folder=tmp_path)
    table = make_table()
    images = table.images.clone()
    images[-1, 0, 0, 0] += 1  # one grey value of one test image
    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: replace(table, images=images))
    with pytest.raises(FolderError, match=r"has changed since: table\. Give the files of then"):
        Run.load(tmp_path)


def test_runs_on_own_objects_are_not_read_back(own: dict[str, Any], tmp_path: Path, make_table) -> None:
    fit(**own, folder=tmp_path / "all")
    fit(data=make_table(), pairs=8, folder=tmp_path / "table", **SMALL)
    for name in ("all", "table"):
        with pytest.raises(FolderError, match=rf"{name} was trained on objects of your own"):
            Run.load(tmp_path / name)


def test_unfinished_and_missing_runs_are_not_read_back(bars: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is not the folder of a run"):
        Run.load(tmp_path / "run")
    with pytest.raises(InterruptedError):
        fit(**bars, folder=tmp_path / "run", listeners=[StopAfterFirst()])
    with pytest.raises(FolderError, match="is not finished"):
        Run.load(tmp_path / "run")


def test_a_result_with_parts_missing_is_damaged(bars: dict[str, Any], tmp_path: Path) -> None:
    fit(**bars, folder=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    write_json(tmp_path / "result.json", {key: value for key, value in result.items() if key != "versions"})
    with pytest.raises(FolderError, match=r"result\.json is damaged or missing\. Delete .*done and run"):
        Run.load(tmp_path)


def test_images_and_pairs_by_their_paths(tmp_path: Path) -> None:
    """Strings or paths; a run on files can be read back."""
    rows, pairs = ["path,label,split"], ["first,second,label,split"]
    for number in range(24):
        label, split = number % 2, ("train", "validation", "test")[number % 3]
        for color in (0, 1):
            pixels = np.zeros((8, 8, 3), dtype=np.uint8)
            pixels[4 * label : 4 * label + 4, :, color] = 200
            Image.fromarray(pixels).save(tmp_path / f"{number}-{color}.png")
        rows.append(f"{number}-0.png,{'ab'[label]},{split}")
        if split != "test":
            pairs.append(f"{number}-0.png,{number}-1.png,{'ab'[label]},{split}")
    (tmp_path / "images.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "pairs.csv").write_text("\n".join(pairs) + "\n")
    small: dict[str, Any] = {"model": "small_cnn", "size": 8, "epochs": 1, "batch": 4, "device": "cpu"}
    run = fit(data=tmp_path / "images.csv", pairs=tmp_path / "pairs.csv", folder=tmp_path / "run", **small)
    assert len(run.materials.pairs or ()) == 8
    again = fit(data=str(tmp_path / "images.csv"), pairs=str(tmp_path / "pairs.csv"), **small)
    assert again.evaluate() == run.evaluate()
    assert Run.load(tmp_path / "run", device="cpu").evaluate() == run.evaluate()
    (tmp_path / "pairs.csv").write_text("\n".join(pairs[:-1]) + "\n")  # the last is held out
    with pytest.warns(UserWarning, match="held-out pairs of .* are others than when it was trained"):
        fewer = Run.load(tmp_path / "run", device="cpu")
    assert fewer.evaluate()["groups"] == run.evaluate()["groups"]
    assert len(load(tmp_path / "images.csv", size=8)) == 24


# -- the report ---------------------------------------------------------------------------------------------------


def test_the_report_of_a_run_and_of_those_beside_it(own: dict[str, Any], tmp_path: Path) -> None:
    held_out = repainted(own["data"], "validation", 30)
    guided = fit(**own, held_out=held_out)
    plain = fit(**own | {"model": net()}, held_out=held_out, method="erm")
    path = guided.report(tmp_path / "new" / "page.html", beside=[plain])
    assert path == tmp_path / "new" / "page.html"
    page = path.read_text(encoding="utf-8")
    assert page.index("Plain training (ERM)") < page.index("Guided by pairs (IPG)")
    assert "middle, blue" in page
    assert "Training used 24 pairs for 180 images" in page


def test_the_report_lands_beside_the_notebook(
    bars: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fit(**bars).report() == Path("report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
