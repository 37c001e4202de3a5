"""What goes wrong ends in a few clear lines that name the thing and the remedy, with exit status 2."""

from __future__ import annotations

import errno
import json
import math
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from ipg.data.errors import DataError
from ipg.files import write_json

# -- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trian", ("No such command 'trian'", "`ipg --help`")),
        ("train --epoch 3", ("No such option: --epoch", "--epochs", "`ipg train --help`")),
        ("train --lr 3", ("No such option: --lr", "--learning-rate", "`ipg train --help`")),
        ("train --method irm --weight 3", ("No such option: --weight", "(Possible options: -o weight=…)")),
        ("compare --step-size 3", ("No such option: --step-size", "(Possible options: -o METHOD.step_size=…)")),
        ("predict --lr 3", ("No such option: --lr", "`ipg predict --help`")),
        ("train --method", ("'--method' requires an argument",)),
        ("train something", ("something", "`ipg train --help`")),
        ("evaluate", ("nothing to measure", "--model")),
        ("predict", ("Missing argument 'RUN'", "`ipg predict --help`")),
        ("demo --epochs six", ("--epochs", "integer", "`ipg demo --help`")),
        ("demo --data colored_cats", ("'colored_cats'", "colored-fashion, colored-mnist")),
        ("demo --pairs -1", ("pairs=-1", "at least 0")),
        ("data fetch cats", ("'cats' cannot be fetched", "mnist")),
        ("data check cats", ("'cats'", "colored_fashion")),
        ("data check colored_fashion --size 13", ("size=13", "14 and 28")),
        ("methods grm", ("'grm'", "erm, oracle, ipg")),
        ("methods ipgg", ("there is no method 'ipgg'; did you mean ipg? There are erm, oracle, ipg",)),
        ("methods xyzzy", ("there is no method 'xyzzy'; there are erm, oracle, ipg",)),
        ("train --method imp", ("'imp'", "erm, oracle, ipg")),
        ("train --data cats", ("'cats'", "colored_fashion")),
        ("train --data-path here", ("takes no path", "'here'", "leave it out")),
        ("train --model resnet", ("'resnet'", "mnist_cnn, small_cnn")),
        ("train --pair-builder edited", ("'edited'", "recolored, random, closest")),
        ("train -o order", ("'order'", "NAME=VALUE", "-o order=sum")),
        ("train --epochs 0", ("epochs=", "at least 1")),
        ("train --margin wide", ("margin='wide'", "0.5x")),
    ],
)
def test_mistakes_in_a_command_line(assert_refused, line: str, says: tuple[str, ...]) -> None:
    assert_refused(*line.split(), says=says)


def test_options_that_the_method_does_not_have(assert_refused, bars: list[str]) -> None:
    line = ["train", *bars, "--method", "joint", "-o", "ordr=sum", "-o", "loss=both"]
    assert_refused(*line, says=("'ordr'; did you mean order?", "loss='both'", "alignment, corrective"))
    assert_refused("train", *bars, "-o", "order=sum", says=("'ipg' has no option 'order'",))


def test_several_wrong_values_are_named_at_once(assert_refused) -> None:
    err = assert_refused("train", "--epochs", "six", "--alpha", "2", "--device", "gpu", "--batch", "1.5", says=())
    assert len(err.splitlines()) == 4
    for part in ("epochs='six': expected a whole number", "alpha=", "0 <= alpha < 1", "auto, cpu, cuda, mps", "batch="):
        assert part in err


def test_no_more_than_five_lines_whatever_is_wrong(assert_refused) -> None:
    names = ("epochs", "batch", "warmup", "pairs", "pair-batch", "every", "seed", "jitter")
    err = assert_refused("train", *(part for name in names for part in (f"--{name}", "-5")), says=())
    assert len(err.splitlines()) == 5
    assert "… and 4 more mistakes" in err


# -- the file of settings -----------------------------------------------------------------------------------------


def test_a_configuration_file_that_is_not_there(assert_refused) -> None:
    assert_refused("train", "--config", "none.toml", says=("there is no configuration file none.toml",))


def test_a_folder_for_a_configuration_file(assert_refused, tmp_path: Path) -> None:
    (tmp_path / "run.toml").mkdir()
    assert_refused("train", "--config", "run.toml", says=("run.toml", "directory"))


def test_invalid_toml(assert_refused, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("epochs = 3\nbatch = \n")
    assert_refused("train", "--config", "run.toml", says=("run.toml is not valid TOML", "line 2"))


def test_unknown_keys_with_suggestions(assert_refused, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("epoch = 3\nalfa = 0.1\nbatch = -1\n[training]\nx = 1\n")
    says = ("run.toml", "'epoch'; did you mean epochs?", "'alfa'; did you mean alpha?", "batch=-1", "'training'")
    assert_refused("train", "--config", "run.toml", says=says)


# -- the data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["train --data", "data check"])
def test_missing_files(assert_refused, verb: str) -> None:
    line = [*verb.split(), "colored_mnist", "--data-path"]
    assert_refused(*line, "nowhere", says=("no MNIST at nowhere", "ipg data fetch mnist", "IPG_MNIST"))


def test_mnist_that_was_never_fetched(assert_refused, tmp_path: Path) -> None:
    says = (f"no MNIST at {tmp_path / 'no-mnist'}", "ipg data fetch mnist")
    assert_refused("train", "--data", "colored_mnist", says=says)
    assert_refused("demo", "--data", "colored-mnist", says=says)


@pytest.mark.parametrize("cut", [0, 10, 500])
def test_a_corrupt_npz(assert_refused, tmp_path: Path, cut: int) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((9, 28, 28), np.uint8))
    whole = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(whole[:cut])
    assert_refused("train", "--data", "colored_mnist", "--data-path", "mnist.npz", says=("mnist.npz", "cannot be read"))


def test_an_npz_of_something_else(assert_refused, tmp_path: Path) -> None:
    np.savez(tmp_path / "cats.npz", cats=np.zeros(3))
    assert_refused(
        "data", "check", "colored_mnist", "--data-path", "cats.npz", says=("cats.npz is not MNIST", "x_train")
    )


def test_a_truncated_idx_file(assert_refused, tmp_path: Path) -> None:
    folder = tmp_path / "idx"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 60_000, 28, 28) + b"\0" * 9)
    says = ("train-images-idx3-ubyte is truncated", "get the file again")
    assert_refused("train", "--data", "colored_mnist", "--data-path", "idx", says=says)
    (folder / "train-images-idx3-ubyte").unlink()
    assert_refused("train", "--data", "colored_mnist", "--data-path", "idx", says=("idx has no train-images", "fetch"))


def test_no_pairs_and_too_many(assert_refused, bars: list[str]) -> None:
    says = ("'ipg' is guided by pairs and there are none", "--pairs", "--method erm")
    assert_refused("train", *bars, "--pairs", "0", says=says)
    assert_refused("train", *bars, "--pairs", "1000", says=("1000 pairs were asked for", "only 120"))
    assert_refused("train", *bars, "--held-out-pairs", "1000", says=("1000 pairs were asked for", "only 40"))
    assert_refused(
        "train", *bars, "--selection", "pairs", "--held-out-pairs", "0", says=("held-out pairs", "held_out_pairs")
    )


# -- the machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["train", "evaluate", "report"])
def test_a_gpu_that_is_not_there(assert_refused, finished: Path, bars: list[str], verb: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = ["train", *bars] if verb == "train" else [verb, finished]
    assert_refused(*line, "--device", "cuda", says=("device 'cuda'", "--device cpu"))


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")])
def test_out_of_memory(assert_refused, bars: list[str], error: Exception, monkeypatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("ipg.training.loop.Training.go", fail)
    assert_refused("train", *bars, says=("out of memory", "--batch"))


def test_a_full_disk_loses_nothing(ipg, assert_refused, bars: list[str], tmp_path: Path, monkeypatch) -> None:
    opened, written = Path.open, []

    def fill_up(path: Path, mode: str = "r", *options: Any, **more: Any) -> Any:
        written.extend([path] if mode == "wb" else [])
        if mode == "wb" and len(written) == 3:  # the checkpoint of the third epoch
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, *options, **more)

    line = ["train", *bars, "--epochs", "3", "--output", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fill_up)
        patch.setattr("ipg.training.loop.SAVE_SHARE", math.inf)  # every epoch is saved, however short
        says = ("checkpoint.safetensors: No space left on device", "free some space and run the command again")
        assert_refused(*line, says=says)
    assert len(written) == 3
    assert not list((tmp_path / "run").glob(".*"))
    resumed = ipg(*line)
    assert resumed.code == 0
    assert ", from iteration 8 of 12" in resumed.out


# -- folders ------------------------------------------------------------------------------------------------------


def test_the_folder_of_another_run(assert_refused, finished: Path, bars: list[str]) -> None:
    before = (finished / "config.json").read_bytes()
    says = (f"{finished} holds another run", "batch was 32 and is now 16", "Name another folder")
    assert_refused("train", *bars, "--batch", "16", "--output", finished, says=says)
    assert (finished / "config.json").read_bytes() == before


def test_a_folder_that_another_process_works_in(assert_refused, finished: Path, bars: list[str]) -> None:
    with FileLock(finished / "lock"):
        assert_refused("train", *bars, "--output", finished, says=(f"{finished} is in use by another process",))


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_folder_that_is_not_of_a_run(assert_refused, tmp_path: Path, verb: str) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("photos", "nowhere"):
        assert_refused(verb, name, says=(f"{name} is not the folder of a run", "ipg train"))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("verb", ["evaluate", "report", "doctor", "export"])
def test_a_folder_of_runs_names_them(assert_refused, embedded_runs: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "runs").symlink_to(embedded_runs)
    says = "runs is not the folder of a run: it has no config.json; it holds runs, name those: runs/guided, runs/plain"
    assert_refused(verb, "runs", says=(says,))


def test_training_into_a_folder_with_something_else_in_it(assert_refused, bars: list[str], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    assert_refused("train", *bars, "--output", "photos", says=("photos is not empty", "cat.jpg", "name another"))
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize("verb", ["evaluate", "report", "predict"])
def test_a_run_that_went_wrong(assert_refused, finished: Path, verb: str) -> None:
    (finished / "done").unlink()
    (finished / "failure.json").write_text('{"kind": "NonFiniteError", "message": "NaN", "step": 3}')
    images = [finished / "nothing"] if verb == "predict" else []
    assert_refused(verb, finished, *images, says=(f"{finished} went wrong", f"`ipg doctor {finished}` says why"))


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_run_that_is_not_finished(assert_refused, finished: Path, verb: str) -> None:
    (finished / "done").unlink()
    assert_refused(verb, finished, says=(f"{finished} is not finished", "the command that began it goes on with it"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "noise": lambda file: file.write_bytes(b"\xff\x00\xfe{" * 20),
    "missing": lambda file: file.unlink(),
    "other": lambda file: file.write_bytes(b"{}" if file.suffix == ".json" else b"[1, 2]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "model.safetensors"])
def test_a_damaged_run_and_the_remedy(
    ipg, assert_refused, finished: Path, bars: list[str], name: str, damage: str
) -> None:
    whole = (finished / name).read_bytes()
    DAMAGES[damage](finished / name)
    for verb in ("evaluate", "report"):
        assert_refused(verb, finished, says=(str(finished / name), f"Delete {finished / 'done'}", "run the command"))
    (finished / "done").unlink()
    assert ipg("train", *bars, "--output", finished).code == 0
    assert ipg("evaluate", finished).code == 0
    if name == "metrics.jsonl":
        assert (finished / name).read_bytes() == whole


@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "model.safetensors", "config.json"])
def test_training_again_into_a_damaged_run(
    assert_refused, finished: Path, bars: list[str], name: str, damage: str
) -> None:
    DAMAGES[damage](finished / name)
    remedy = "Name another folder" if name == "config.json" else f"Delete {finished / 'done'}"
    assert_refused("train", *bars, "--output", finished, says=(f"{finished / name} is damaged", remedy))


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "other", "parts"])
def test_a_damaged_configuration(assert_refused, finished: Path, damage: str) -> None:
    file = finished / "config.json"
    if damage == "parts":
        write_json(file, json.loads(file.read_text()) | {"config": {"epochs": "many"}})
    else:
        DAMAGES[damage](file)
    assert_refused("evaluate", finished, says=(f"{file} is damaged", "train again in another folder"))


def test_a_damaged_checkpoint(ipg, assert_refused, finished: Path, bars: list[str]) -> None:
    for name in ("done", "model.safetensors", "result.json"):
        (finished / name).unlink()
    DAMAGES["cut"](finished / "checkpoint.safetensors")
    line = ["train", *bars, "--output", finished]
    assert_refused(*line, says=("checkpoint.safetensors is damaged", "delete it to start again"))
    (finished / "checkpoint.safetensors").unlink()
    assert ipg(*line).code == 0


def test_the_weights_of_another_network(ipg, assert_refused, finished: Path, bars: list[str]) -> None:
    other = finished.with_name("other")
    assert ipg("train", *bars, "--model", "mnist_cnn", "--output", other).code == 0
    shutil.copy(other / "model.safetensors", finished)
    assert_refused("evaluate", finished, says=("model.safetensors is damaged",))


def test_data_that_has_changed_since(
    assert_refused, finished: Path, make_table: Callable[..., Any], monkeypatch
) -> None:
    monkeypatch.setitem(_datasets(), "bars", lambda path, size, seed: make_table(seed=seed + 1))
    assert_refused("evaluate", finished, says=(f"{finished} was trained on has changed", "table", "train again"))


def test_files_that_have_moved_since(
    ipg, assert_refused, bars: list[str], make_table, tmp_path: Path, monkeypatch
) -> None:
    def read(path: str | None, size: object, seed: int) -> Any:
        if path is None or not Path(path).exists():
            raise DataError(f"there is nothing at {path}")
        return make_table(seed=seed)

    monkeypatch.setitem(_datasets(), "bars", read)
    old = f"old-{tmp_path.name}"  # of which no folder above has one, where it would be found
    (tmp_path / old).mkdir()
    assert ipg("train", *bars, "--data-path", old, "--output", "run").code == 0
    assert ipg("evaluate", "run").code == 0
    (tmp_path / old).rename(tmp_path / "new")
    assert_refused("evaluate", "run", says=(f"there is nothing at {old}", "have moved", "--data-path"))
    assert ipg("evaluate", "run", "--data-path", "new").code == 0


def test_a_split_that_the_data_does_not_have(assert_refused, finished: Path) -> None:
    assert_refused("evaluate", finished, "--split", "holiday", says=("'holiday'", "train, validation, test"))


def test_a_report_on_different_data_sets(ipg, assert_refused, finished: Path, bars, make_table, monkeypatch) -> None:
    monkeypatch.setitem(_datasets(), "poles", lambda path, size, seed: replace(make_table(seed=seed), name="poles"))
    other = finished.with_name("poles")
    assert ipg("train", *bars, "--data", "poles", "--output", other).code == 0
    assert_refused("report", finished, other, says=("different data sets (bars, poles)", "one data set"))


def test_places_that_cannot_be_written(assert_refused, finished: Path, bars: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run"):
        says = (f"{place}: ", "A file is in the way", "--output")
        assert_refused("train", *bars, "--output", place, says=says)
        assert_refused("demo", "--epochs", "1", "--output", place, says=("file/", "A file is in the way", "--output"))
    assert_refused("report", finished, "--output", "file/page.html", says=("file", "A file is in the way", "--output"))
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "folder").mkdir()
    assert_refused("report", finished, "--output", "folder", says=("folder is a folder", "--output folder/report.html"))
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_folder_one_may_not_write_to(assert_refused, finished: Path, bars: list[str], monkeypatch) -> None:
    def forbid(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", forbid)
    says = ("Permission denied", "Name a place that you may write to with --output")
    assert_refused("train", *bars, "--output", "theirs", says=("theirs: ", *says))
    assert_refused("report", finished, "--output", "theirs/page.html", says=("theirs: ", *says))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_the_remedy_fits_a_command_that_has_no_place_to_name(
    assert_refused, photos: Path, number: int, monkeypatch
) -> None:
    from ipg.pairs.rows import Manifest

    def forbid(manifest: Manifest) -> None:
        raise OSError(number, "It cannot be written", "pairs.csv")

    monkeypatch.setattr(Manifest, "write", forbid)
    line = ["pairs", "audit", photos / "pairs.csv", "--data", photos / "photos.csv"]
    remedy = "A file is in the way: move it" if number == errno.ENOTDIR else "You may not write there: change who may"
    assert "--output" not in assert_refused(*line, says=("pairs.csv: It cannot be written", remedy))


def test_a_study_is_told_its_own_option(assert_refused, monkeypatch) -> None:
    def forbid(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "theirs")

    monkeypatch.setattr("ipg.experiments.runner.run_study", forbid)
    assert_refused(
        "study", "margin", "--results", "theirs", says=("Name a place that you may write to with --results",)
    )


# -- training that goes wrong -------------------------------------------------------------------------------------


def test_a_collapse_ends_training_with_its_remedies(assert_refused, bars: list[str], make_table, monkeypatch) -> None:
    def blank(path: object, size: object, seed: int) -> Any:
        table = make_table(seed=seed)
        return replace(table, images=torch.zeros_like(table.images))

    monkeypatch.setitem(_datasets(), "bars", blank)
    line = ["train", *bars, "--epochs", "6", "--every", "1"]
    assert_refused(*line, says=("the model has collapsed", "Remedies", "lower the learning rate", "the shortcut alone"))


@pytest.mark.parametrize("method", ["erm", "ipg"])
def test_numbers_that_are_none(assert_refused, bars: list[str], method: str) -> None:
    line = ["train", *bars, "--method", method, "--learning-rate", "1e30"]
    assert_refused(*line, says=("NaN or infinite", "learning rate that is too high"))


def test_a_bug_keeps_its_traceback(ipg, bars: list[str], monkeypatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("ipg.training.loop.Training.go", fail)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ipg("train", *bars)


def _datasets() -> dict[str, Any]:
    from ipg.data.load import DATASETS

    return DATASETS
