"""`ipg train`: the folder it leaves, reading it back, going on, and where settings come from."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path

import pytest
import torch
from stopping import stop_at

from ipg.config import TRAINED_CROP
from ipg.guidance import CollapseError
from ipg.training import loop
from ipg.training.checkpoint import load_checkpoint


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())["config"]


def test_training_on_the_embedded_images_leaves_a_whole_folder(embedded_runs: Path) -> None:
    folder = embedded_runs / "guided"
    names = {entry.name for entry in folder.iterdir()}
    assert names - {"lock"} == {
        "checkpoint.safetensors", "config.json", "done", "metrics.jsonl", "model.safetensors", "result.json",
    }  # fmt: skip
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1]
    assert result["metrics"]["average"] == rows[-1]["test"]["average"]
    assert result["config"]["pairs"] == 8
    assert result["config"]["seed"] == 0
    assert result["versions"].keys() >= {"ipg", "python", "torch"}


def test_guided_training_shows_its_epochs_and_beats_plain_training(embedded_runs: Path) -> None:
    guided, plain = (json.loads((embedded_runs / name / "result.json").read_text()) for name in ("guided", "plain"))
    assert guided["metrics"]["average"] > plain["metrics"]["average"] + 0.3
    out = (embedded_runs / "guided.txt").read_text()
    lines = out.splitlines()
    assert lines[0] == "ipg on colored_fashion"
    assert lines[1].startswith("  small_cnn, random weights, 12,000 training, ")
    assert "test images of 14x14, 8 pairs to guide and 8 pairs held out, " in lines[1]
    assert lines[1].endswith(f", kept in {embedded_runs / 'guided'}")
    assert lines[2].startswith("  epoch 1/1  loss ")
    assert f"test {100 * guided['metrics']['average']:.1f}" in out
    assert "Test images, % right, after epoch 1 (kept by rule: last)" in out
    assert f"The run is in {embedded_runs / 'guided'}. See it with: ipg report " in out


def test_the_same_command_again_reads_the_run_back(ipg, bars: list[str], tmp_path: Path) -> None:
    first = ipg("train", *bars, "--output", "run")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "run").iterdir()}
    again = ipg("train", *bars, "--output", "run")
    assert again.code == 0
    assert again.out.startswith("run holds this run, finished on ")
    assert "epoch 1/1" not in again.out
    assert again.out.partition("Test images")[2] == first.out.partition("Test images")[2]
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "run").iterdir()}
    assert {k: v for k, v in after.items() if k != "lock"} == {k: v for k, v in before.items() if k != "lock"}


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_stopped(ipg, bars: list[str], tmp_path: Path) -> None:
    line = ["train", *bars, "--epochs", "3", "--output"]
    ipg(*line, "whole")
    with stop_at(6):
        stopped = ipg(*line, "run")
    assert stopped.code == 130
    assert stopped.err == "ipg: stopped after 6 of 12 iterations; run the same command again to go on\n"
    assert not (tmp_path / "run" / "done").exists()
    resumed = ipg(*line, "run")
    assert resumed.code == 0
    assert resumed.out.startswith("ipg on bars, from iteration 6 of 12\n  small_cnn, random weights, 120 training, ")
    assert "kept in run\n  epoch 2/3" in resumed.out
    went_on, whole = (load_checkpoint(tmp_path / name / "model.safetensors") for name in ("run", "whole"))
    assert went_on.keys() == whole.keys()
    assert all(torch.equal(went_on[name], whole[name]) for name in whole)


def test_a_stop_in_the_last_part_of_a_run_loses_nothing(
    ipg, bars: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.Training._finish

    def late(run) -> object:
        signal.raise_signal(signal.SIGINT)
        return real(run)

    monkeypatch.setattr(loop.Training, "_finish", late)
    done = ipg("train", *bars, "--output", "run")
    assert (done.code, done.err) == (0, "")
    assert "The run is in run." in done.out
    assert (tmp_path / "run" / "done").exists()


def test_interrupting_while_the_data_loads_says_how_to_go_on(
    ipg, bars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ipg.training.materials.load", interrupt)
    done = ipg("train", *bars, "--output", "run")
    assert (done.code, done.err) == (130, "ipg: interrupted; run the same command again to go on\n")


def test_settings_from_a_file_and_options_that_win_over_it(ipg, bars: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('data = "bars"\nmargin = 0.2\nbatch = 64\nepochs = 2\nseed = 4\nstrict = true\n')
    done = ipg("train", "--config", "run.toml", "--seed", "5", "--no-strict", "--pairs", "4", "--held-out-pairs", "4")
    assert done.code == 0, done
    config = config_of(tmp_path / "runs" / "bars-ipg-5")
    expected = {"margin": 0.2, "batch": 64, "epochs": 2, "seed": 5, "strict": False, "pairs": 4}
    assert {name: config[name] for name in expected} == expected


def test_options_of_the_method(ipg, bars: list[str], tmp_path: Path) -> None:
    line = ["train", *bars, "--method", "joint", "-o", "order=sum", "--option", "loss=corrective", "--output", "run"]
    assert ipg(*line).code == 0
    config = config_of(tmp_path / "run")
    assert (config["order"], config["loss"]) == ("sum", "corrective")
    assert ipg("evaluate", "run").code == 0  # they are found again when it is read back


def test_two_values_of_a_setting_make_two_runs(ipg, bars: list[str], tmp_path: Path) -> None:
    for rate in ("1e-3", "0.002"):
        assert ipg("train", *bars, "--learning-rate", rate, "--output", rate).code == 0
    assert [config_of(tmp_path / rate)["learning_rate"] for rate in ("1e-3", "0.002")] == [0.001, 0.002]


def test_a_folder_is_named_after_data_method_and_seed(ipg, bars: list[str], tmp_path: Path) -> None:
    assert ipg("train", *bars, "--method", "erm", "--seed", "7").code == 0
    assert (tmp_path / "runs" / "bars-erm-7" / "done").exists()


def test_the_folder_of_a_run_on_a_path_is_in_runs(ipg, photos: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "pictures").symlink_to(photos)
    monkeypatch.chdir(tmp_path / "here")
    line = ["train", "--size", 16, "--model", "small_cnn", "--method", "erm", "--epochs", 1, "--batch", 8]
    done = ipg(*line, "--data", "../pictures/photos.csv")
    assert done.code == 0, done
    assert (tmp_path / "here" / "runs" / "photos-erm-0" / "done").exists()
    assert "The run is in runs/photos-erm-0." in done.out
    images = "40 training, 12 validation and 24 test images of 16x16"
    assert f"small_cnn, random weights, {images}, no pairs, cpu in fp32, kept in runs/" in done.out
    assert "pretrained" not in done.out  # of which there are none


def test_a_network_without_weights_says_so(ipg, photos: Path) -> None:
    line = ["train", "--data", photos / "photos.csv", "--size", 16, "--method", "erm", "--epochs", 1, "--batch", 8]
    notice = "test_resnet starts from random weights; for pretrained ones give --weights pretrained or --weights FILE"
    done = ipg(*line, "--model", "test_resnet", "--output", "random")
    assert done.code == 0, done
    assert "  test_resnet, random weights, 40 training" in done.out
    assert done.out.count(notice) == 1
    done = ipg(*line, "--model", "test_resnet", "--weights", "random/model.safetensors", "--output", "file")
    assert "  test_resnet, weights from random/model.safetensors, 40 training" in done.out, done
    assert notice not in done.out
    done = ipg(*line, "--from", "random", "--output", "further")
    assert "  test_resnet, from random, 40 training" in done.out, done
    assert notice not in done.out


def test_crops_and_flips_of_a_network_from_weights_are_told(ipg, bars: list[str], finished: Path) -> None:
    """What is not asked for is said; of a fresh network there is nothing to say."""
    line = ["train", *bars, "--model", "small_cnn", "--epochs", "2", "--method", "erm"]
    weights = ["--weights", finished / "model.safetensors"]
    flags = ["--crop", "auto", "--no-flip", "--warmup", "3"]
    crop = f"images cropped to {TRAINED_CROP:g} of their area or more"
    cases = {
        "fresh": ([], None, (1.0, False, 0)),
        "from": (weights, f"{crop}, images mirrored at random", (TRAINED_CROP, True, 0)),
        "told": ([*weights, *flags], f"{crop}, warm-up over 3 iterations", (TRAINED_CROP, False, 3)),
        "asked": (["--crop", "0.9", "--warmup", "1"], "images cropped to 0.9 of their area or more, warm-up over 1 "
                  "iteration", (0.9, False, 1)),
        "none": ([*weights, "--crop", "1", "--no-flip", "--warmup", "0"], None, (1.0, False, 0)),
    }  # fmt: skip
    for name, (options, says, kept) in cases.items():
        done = ipg(*line, *options, "--output", name)
        assert done.code == 0, done
        told = done.out.partition(f"kept in {name}\n")[2].splitlines()[0]
        assert told == f"  {says}" if says else told.startswith("  epoch 1/2"), done
        assert tuple(config_of(Path(name))[key] for key in ("crop", "flip", "warmup")) == kept


def test_the_order_of_outputs_that_is_taken_for_granted_is_told(ipg, photos: Path, tmp_path: Path) -> None:
    """Of a network from elsewhere; a run has said which classes it tells apart."""
    line = ["train", "--data", photos / "photos.csv", "--size", 16, "--method", "erm", "--epochs", 1, "--batch", 8]
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))\n"
    )
    done = ipg(*line, "--from", "python:mine.py:make", "--output", "own")
    assert done.code == 0, done
    (told,) = [text for text in done.out.splitlines() if "outputs taken" in text]
    assert told.strip() == (
        "python:mine.py:make: outputs taken as 0 = above, 1 = below; its head is kept and has to have this order"
    )
    for known in (photos / "plain", photos / "plain" / "model.safetensors"):
        done = ipg(*line, "--model", "small_cnn", "--from", known, "--output", f"further {known.name}")
        assert done.code == 0, done
        assert "outputs taken" not in done.out


def test_a_warning_is_one_line_without_the_programs_source(ipg, bars: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = ipg("train", *bars, "--every", "4", "--alpha", "0.5", "--output", "run")
    assert done.code == 0, done
    (line,) = done.err.splitlines()
    assert line.startswith("ipg: warning: every * alpha = 2 is not below 1")
    with pytest.raises(UserWarning, match="every"):  # an error where warnings are
        ipg("train", *bars, "--every", "4", "--alpha", "0.5", "--output", "other")


def test_tensorboard_events_beside_the_run(ipg, bars: list[str], tmp_path: Path) -> None:
    done = ipg("train", *bars, "--tensorboard", "--output", "run")
    assert done.code == 0, done
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_the_folder_is_quoted_in_the_command_it_advises(ipg, bars: list[str]) -> None:
    assert "See it with: ipg report 'my run'\n" in ipg("train", *bars, "--output", "my run").out


def test_a_trained_network_is_repaired(ipg, assert_refused, bars: list[str], finished: Path) -> None:
    done = ipg("train", *bars, "--from", finished, "--output", "repaired")
    assert done.code == 0, done
    assert json.loads(Path("repaired/result.json").read_text())["config"]["start"] == str(finished)
    assert ipg("evaluate", "repaired").code == 0
    assert_refused("train", *bars, "--from", "nowhere", says=("there is no model 'nowhere'",))
    assert bars[0] == "--data"
    told = f"{finished} was trained on bars: say what to go on with, e.g. --data bars"
    assert_refused("train", *bars[2:], "--from", finished, "--output", "other", says=(told,))
    (finished / "model.safetensors").write_bytes(b"junk")
    assert_refused("train", *bars, "--from", finished, "--output", "other", says=("model.safetensors is damaged",))


@pytest.mark.parametrize("splits", [("train", "validation", "test"), ("train", "validation")])
def test_a_run_that_gives_every_image_one_class_ends_with_a_word_of_it(
    ipg, bars: list[str], make_table, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]
) -> None:
    from ipg.data.load import DATASETS

    def part(path, size, seed):
        table = make_table(seed=seed)
        return table.take(torch.cat([table.indices(split) for split in splits]))

    monkeypatch.setitem(DATASETS, "bars", part)
    fast = ("--method", "erm", "--learning-rate", "1", "--schedule", "constant")
    done = ipg("train", *bars, *fast, "--output", "run")
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if line.startswith("run gives every image the same class: ")]
    assert "Lower the learning rate (now 1.0) or warm it up (--warmup 300): the task loss is " in line
    assert line.endswith(", where guessing has 0.693.")
    assert "same class" not in ipg("train", *bars, "--method", "erm", "--epochs", "12", "--output", "learnt").out


@pytest.mark.parametrize(("selection", "classes", "end"), [
    ("last", 2, "it is 50.0 % with 0.0 % of the held-out pairs disagreeing."),
    ("last", 1, "every image gets the same class."),
    ("pairs", 2, None),
])  # fmt: skip
def test_a_run_that_loses_what_it_had_learnt_ends_with_a_word_of_it(
    ipg, bars: list[str], monkeypatch: pytest.MonkeyPatch, selection: str, classes: int, end: str | None
) -> None:
    train = loop.train

    def lose(*arguments, **options):
        outcome = train(*arguments, **options)
        first, last = outcome.rows
        first["validation"]["balanced"], last["validation"]["balanced"] = 1.0, 0.5
        first["pair_disagreement"] = last["pair_disagreement"] = 0.0
        last["validation"]["predicted_classes"] = classes
        return outcome

    monkeypatch.setattr(loop, "train", lose)
    done = ipg("train", *bars, "--method", "erm", "--selection", selection, "--epochs", "2", "--output", "run")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.startswith("After epoch 1 ")]
    assert len(lines) == (end is not None), done
    for line in lines:
        assert f"; after epoch 2, which is kept, {end} Train again with another --output" in line
        assert "(--selection pairs)" in line
        assert "same class:" not in done.out  # said once


def test_a_worst_group_that_lacks_groups_is_told_of(
    ipg, bars: list[str], make_table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.data.load import DATASETS

    monkeypatch.setitem(DATASETS, "bars", lambda path, size, seed: make_table(seed=seed, validation=1))
    worst = ("--method", "erm", "--selection", "worst_group", "--held-out-pairs", "0")
    assert "  no validation image is of " in ipg("train", *bars, *worst, "--output", "run").out


def test_a_run_that_began_again_says_so_now_and_when_it_is_read_back(
    ipg, bars: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = loop.Training._between_steps

    def collapsing(self, request) -> None:
        if (self.progress.step, self.progress.restarts) == (2, 0):
            raise CollapseError("collapsed")
        between(self, request)

    monkeypatch.setattr(loop.Training, "_between_steps", collapsing)
    command = ("train", *bars, "--method", "ipg", "--learning-rate", "0.004", "--output", tmp_path / "run")
    ended = "Training collapsed and began again once, with half the learning rate, 0.002 where 0.004 was asked for"
    out = ipg(*command).out
    assert "  collapsed: begins again with half the learning rate, 0.002 (restart 1)" in out
    assert ended in out
    assert ended in ipg(*command).out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["restarted"] == 1


def test_a_refit_is_not_called_an_epoch(ipg, bars: list[str]) -> None:
    done = ipg("train", *bars, "--method", "eva_e", "--output", "run")
    assert done.code == 0, done
    assert "after epoch 1 and a refit (kept by rule: last)" in " ".join(done.out.split())
    assert "eva_e, finished, 1 of 1 epochs" in ipg("doctor", "run").out


def test_photographs_need_a_folder_of_pairs_and_the_error_says_how_to_make_one(
    assert_refused, photos: Path, tmp_path: Path
) -> None:
    data = photos / "photos.csv"
    made = f"ipg pairs build background --data {data} --size 16 --masks MASKS --count 40 --output pairs"
    line = ("--data", data, "--size", "16")
    says = ("ipg: method 'ipg' needs pairs, ", "with 3 channels", f"e.g. {made}; or")
    assert_refused("train", *line, "--output", tmp_path / "run", says=says)
    assert_refused(*made.split()[1:], says=("MASKS",))  # all that is left to say
    says = ("ipg: methods ipg, joint: each needs pairs, ", made, "--methods erm")
    assert_refused("compare", *line, "--methods", "ipg,joint,erm", "--output", tmp_path / "compared", says=says)
