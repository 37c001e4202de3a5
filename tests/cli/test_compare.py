"""`ipg compare` as its user meets it."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from ipg.experiments.store import Store

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()]


def test_methods_side_by_side_then_one_more(ipg, bars: list[str], tmp_path: Path) -> None:
    command = ["compare", *bars, "--seeds", "2", "--workers", "1", "--output", "here"]
    done = ipg(*command, "--methods", "erm,ipg")
    assert done.code == 0, done
    assert done.out.startswith("4 runs: erm, ipg with 2 seeds each\n")
    assert done.out.endswith("Report: here/report.html\n")
    assert "\ncompare: 4 runs, 0 done\n" in done.out
    assert "\ncompare: 4 of 4 runs done\n" in done.out
    assert "trial" not in done.out  # one word for one thing
    found = rows(tmp_path / "here")
    assert [(row["method"], row["seed"]) for row in found] == [("erm", 0), ("ipg", 0), ("erm", 1), ("ipg", 1)]
    page = (tmp_path / "here" / "report.html").read_text(encoding="utf-8")
    for method, name in (("erm", "ERM"), ("ipg", "IPG")):
        mine = [row for row in found if row["method"] == method]
        worst = statistics.fmean(row["metrics"]["worst_group"] for row in mine)
        average = statistics.fmean(row["metrics"]["average"] for row in mine)
        line = re.search(rf"<tr><th[^>]*>.*? {name}</th>(.*?)</tr>", page)
        assert line
        assert f"<td>{100 * worst:.1f}\u00a0%" in line[1]
        assert f"<td>{100 * average:.1f}\u00a0%" in line[1]
        assert re.search(rf"│ {name} +│ +{100 * worst:.1f} │ +{100 * average:.1f} │", done.out)
    assert "2 seeds are few" in page

    other = ipg(*command, "--methods", "erm,jtt", "--epochs", "9")
    assert (other.code, "here holds another comparison: epochs was" in other.err, other.out.count("\n")) == (2, True, 1)
    assert (tmp_path / "here" / "report.html").read_text(encoding="utf-8") == page

    more = ipg(*command, "--methods", "erm,ipg,jtt", "-o", "jtt.copies=3")
    assert more.code == 0, more
    assert "6 runs, 4 done" in more.out
    assert rows(tmp_path / "here")[:4] == found
    assert [row["config"]["copies"] for row in rows(tmp_path / "here")[4:]] == [3, 3]
    assert "jtt.copies 3" in (tmp_path / "here" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "says"),
    [("commit", "does not name its commit, so that no table may quote it"), ("metrics", "is damaged (metrics is not")],
)
def test_a_row_that_no_run_has_written_enters_no_page(
    ipg, assert_refused, bars: list[str], tmp_path: Path, name: str, says: str
) -> None:
    """Nor does a command train for hours before it says so."""
    command = ["compare", *bars, "--methods", "erm", "--workers", "1", "--output", "here", "--seeds"]
    assert ipg(*command, "1").code == 0
    (made,) = rows(tmp_path / "here")
    page = (tmp_path / "here" / "report.html").read_bytes()
    (tmp_path / "here" / "trials.jsonl").write_text(json.dumps({**made, name: []}) + "\n", encoding="utf-8")
    assert_refused(*command, "2", says=(f"the row of erm, seed 0, {says}",))
    assert len(rows(tmp_path / "here")) == 1
    assert (tmp_path / "here" / "report.html").read_bytes() == page


def test_the_page_tells_what_was_given_from_what_follows(ipg, bars: list[str], finished: Path, tmp_path: Path) -> None:
    """Weights are given; crops, flips, warm-up, margin and rate follow from them."""
    command = ["compare", *bars, "--methods", "erm", "--seeds", "1", "--workers", "1", "--model", "small_cnn"]
    for name, extra in (("weights", ["--weights", finished / "model.safetensors"]), ("from", ["--from", finished])):
        done = ipg(*command[: -2 if name == "from" else None], *extra, "--alpha", "0.2", "--output", name)
        assert done.code == 0, done
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        given = re.search(r"Settings that you gave: (.*?)\. All others are defaults", page)
        assert given
        names = {part.split()[0] for part in given[1].split(", ")}
        assert names & {"crop", "flip", "warmup", "margin", "learning_rate", "batch_norm"} == set()
        assert {"alpha", "epochs", "start" if name == "from" else "weights"} <= names
        (row,) = rows(tmp_path / name)
        told = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
        assert float(told["crop"]) == row["config"]["crop"]
        assert told["warmup"] == str(row["config"]["warmup"])


def test_runs_are_given_to_a_cluster(ipg, bars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.experiments import runner
    from ipg.experiments.cluster import Cluster

    given: list[Any] = []
    whole = runner.run_study

    def here(*arguments: Any, cluster: Any, workers: Any, **options: Any) -> Any:
        given.append((cluster, workers))
        return whole(*arguments, workers=1, **options)

    monkeypatch.setattr(runner, "run_study", here)
    command = ["compare", *bars, "--seeds", "1", "--methods", "erm,ipg", "--output", "here"]
    assert ipg(*command, "--cluster", "auto", "--gpus", "0.5").code == 0
    assert given == [(Cluster("auto", 1, 0.5), None)]
    assert "on machines of a cluster" in Path("here/report.html").read_text(encoding="utf-8")
    done = ipg(*command, "--cluster", "auto", "--workers", "2")
    assert (done.code, done.err.startswith("ipg: --workers is for one machine")) == (2, True)


def test_a_run_that_fails_stops_no_other(ipg, bars: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.experiments import trial

    whole = trial.train

    def failing(config: Any, *arguments: Any, **options: Any) -> Any:
        if (config.method, config.seed) == ("ipg", 0):
            raise RuntimeError("no <luck>")
        return whole(config, *arguments, **options)

    monkeypatch.setattr(trial, "train", failing)
    command = ["compare", *bars, "--seeds", "2", "--workers", "1", "--output", "here"]
    done = ipg(*command)
    assert done.code == 1
    assert "1 failed, tried again when the command is given again" in done.out
    page = (tmp_path / "here" / "report.html").read_text(encoding="utf-8")
    assert "<td>IPG</td><td>0</td><td>RuntimeError: no &lt;luck&gt;</td>" in page
    assert "IPG has no result for 1 seed of 2 (0)" in page
    monkeypatch.setattr(trial, "train", whole)
    assert ipg(*command).code == 0
    assert "Runs without a result" not in (tmp_path / "here" / "report.html").read_text(encoding="utf-8")


def test_runs_that_another_process_is_at_have_not_failed(ipg, bars: list[str], tmp_path: Path) -> None:
    command = ["compare", *bars, "--methods", "erm", "--workers", "1", "--output", "here"]
    assert ipg(*command, "--seeds", "2").code == 0
    (first, second), file = rows(tmp_path / "here"), tmp_path / "here" / "trials.jsonl"
    file.write_text(json.dumps(first) + "\n", encoding="utf-8")
    with Store(tmp_path / "here").claim(second["key"]):
        done = ipg(*command, "--seeds", "2")
        assert done.code == 0
        assert "1 being run by another runner" in done.out
        page = (tmp_path / "here" / "report.html").read_text(encoding="utf-8")
        assert "<td>ERM</td><td>1</td><td>another process is at it</td>" in page
        file.unlink()
        with Store(tmp_path / "here").claim(first["key"]):
            done = ipg(*command, "--seeds", "2")
    assert (done.code, done.err) == (
        2, "ipg: other processes are at all runs of the comparison; give the command again when they are done\n",
    )  # fmt: skip


def test_nothing_to_show_when_all_fail(ipg, assert_refused, bars: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.experiments import trial

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no luck")

    monkeypatch.setattr(trial, "train", failing)
    assert_refused(
        "compare", *bars, "--seeds", "1", "--workers", "1", "--output", "x", says=("no run of the comparison",)
    )


def test_what_cannot_be_is_refused_before_anything_is_made(assert_refused, bars: list[str], tmp_path: Path) -> None:
    options = [*bars, "--pairs", "0", "--methods", "erm,ipg,joint", "--output", "here"]
    says = (
        "ipg: methods ipg, joint: each is guided by pairs and there are none",
        "ipg: the other can be trained: --methods erm",
    )
    text = assert_refused("compare", *options, says=says)
    assert len(text.splitlines()) == 2
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--methods", "erm,nope"], "there is no method 'nope'"),
        (["--seeds", "three"], "--seeds three: expected how many there are"),
        (["--seeds", "0"], "name a seed"),
        (["-o", "copies=5"], "expected METHOD.NAME=VALUE"),
        (["-o", "jtt.copies=5"], "option of method 'jtt', which is not compared"),
        (["--workers", "0", "--data", "colored_fashion"], "0 workers are asked for"),
        (["--epochs", "0"], "epochs='0': expected at least 1"),
        (["--config", "no.toml"], "there is no configuration file no.toml"),
    ],
)
def test_mistakes_are_one_line(assert_refused, options: list[str], says: str) -> None:
    assert_refused("compare", *options, says=(says,))


def test_settings_from_a_file(ipg, assert_refused, bars: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('learning_rate = 0.01\nmethod = "dfr"\n', encoding="utf-8")
    done = ipg("compare", *bars, "--config", "run.toml", "--methods", "erm", "--seeds", "4,5", "--workers", "1")
    assert done.code == 0, done
    found = rows(tmp_path / "runs" / "compare-bars")
    assert [(row["method"], row["seed"], row["config"]["learning_rate"]) for row in found] == [
        ("erm", 4, 0.01),
        ("erm", 5, 0.01),
    ]
    (tmp_path / "run.toml").write_text("[options]\ncopies = 3\n", encoding="utf-8")
    assert_refused("compare", *bars, "--config", "run.toml", says=("options are of one method",))


def test_your_own_images_with_and_without_groups(ipg, assert_refused, photos: Path, tmp_path: Path) -> None:
    """Without the column attribute accuracy is told by class, and methods that need it are refused."""
    common = ["--data-path", photos, "--pairs", photos / "pairs.csv", "--size", "16", "--model", "small_cnn"]
    common += ["--epochs", "2", "--batch", "8", "--seeds", "2", "--workers", "1"]
    done = ipg("compare", "--data", photos / "photos.csv", *common, "--methods", "erm,ipg", "--output", "groups")
    assert done.code == 0, done
    page = (tmp_path / "groups" / "report.html").read_text(encoding="utf-8")
    assert "above, red" in page
    assert "No training image is of the group above, green or below, red" in page
    assert "All seeds train and are tested on the same images" in page
    assert "of 4 pairs that no method was trained on" in page

    lines = (photos / "photos.csv").read_text(encoding="utf-8").splitlines()
    plain = [",".join(part for place, part in enumerate(line.split(",")) if place != 2) for line in lines]
    (tmp_path / "plain.csv").write_text("\n".join(plain) + "\n", encoding="utf-8")
    text = assert_refused(
        "compare", "--data", "plain.csv", *common, "--methods", "erm,rwg,dfr", says=("rwg: ", "dfr: ")
    )
    assert "give the table a column attribute" in text
    many = ["rwg", "dfr", "irm", "epg", "gals", "oracle", "shape_only"]
    done = ipg("compare", "--data", "plain.csv", *common, "--methods", ",".join(["erm", *many]))
    assert done.code == 2
    *problems, others = done.err.splitlines()  # all of them, for each has a reason of its own
    assert [line.split(":")[1].strip() for line in problems] == [f"method {name}" for name in many]
    assert others == "ipg: the other can be trained: --methods erm"
    done = ipg("compare", "--data", "plain.csv", *common, "--methods", "erm,ipg", "--output", "classes")
    assert done.code == 0, done
    page = (tmp_path / "classes" / "report.html").read_text(encoding="utf-8")
    assert "Worst class" in page
    assert "come without group labels" in page


def test_a_setting_for_one_method_alone(ipg, bars: list[str], tmp_path: Path) -> None:
    line = ["compare", *bars, "--seeds", "1", "--methods", "erm,ncm", "-o", "ncm.model=linear", "-o", "ncm.rank=2"]
    done = ipg(*line, "-o", "ncm.learning-rate=0.01", "--output", "one")
    assert done.code == 0, done
    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    assert "<dt>NCM</dt><dd>rank 2, model linear, learning_rate 0.01</dd>" in page
    assert "ncm.model linear, ncm.rank 2, ncm.learning_rate 0.01. All others are defaults" in page


def test_your_own_images_of_several_environments(ipg, assert_refused, photos: Path, tmp_path: Path) -> None:
    head, *lines = (photos / "photos.csv").read_text(encoding="utf-8").splitlines()
    sites = [f"{line},{('north', 'south')[place // 2 % 2]}" for place, line in enumerate(lines)]
    (tmp_path / "sites.csv").write_text("\n".join([f"{head},site", *sites]) + "\n", encoding="utf-8")
    common = ["--data", "sites.csv", "--data-path", photos, "--size", "16", "--model", "small_cnn", "--epochs", "1"]
    common += ["--batch", "8", "--seeds", "1", "--workers", "1", "--methods", "erm,irm,coral"]
    assert_refused("compare", *common, says=("irm, coral: each needs training images of two environments",))
    done = ipg("compare", *common, "--environment-column", "site", "--output", "sites")
    assert done.code == 0, done
    assert "IRM and CORAL are given the environments of the training images." in (
        tmp_path / "sites" / "report.html"
    ).read_text(encoding="utf-8")


def test_the_same_data_by_another_spelling_is_no_other_data(ipg, photos: Path) -> None:
    line = [
        "--size",
        16,
        "--model",
        "small_cnn",
        "--epochs",
        1,
        "--batch",
        8,
        "--seeds",
        1,
        "--workers",
        1,
        "--output",
        "both",
    ]
    first = ipg("compare", "--data", photos / "photos.csv", "--methods", "erm", *line)
    assert first.code == 0, first
    again = ipg("compare", "--data", f"{photos}/../{photos.name}/photos.csv", "--methods", "erm,rwg", *line)
    assert again.code == 0, again
    assert [row["method"] for row in rows(Path("both"))] == ["erm", "rwg"]


def test_other_data_of_the_same_name_does_not_replace_the_page(
    ipg, assert_refused, photos: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "images").symlink_to(photos / "images")
        lines = (photos / "photos.csv").read_text(encoding="utf-8").splitlines()
        (tmp_path / name / "photos.csv").write_text("\n".join(lines[: -4 if name == "second" else None]) + "\n")
    line = ["--size", 16, "--model", "small_cnn", "--epochs", 1, "--batch", 8, "--methods", "erm", "--workers", 1]
    done = ipg("compare", "--data", "first/photos.csv", *line, "--seeds", "1")
    assert done.code == 0, done
    assert done.out.startswith("1 run: erm with 1 seed\n")
    page = tmp_path / "runs" / "compare-photos" / "report.html"
    before = page.read_bytes()
    says = ("runs/compare-photos holds a comparison on other data (first/photos.csv)", "--output")
    assert_refused("compare", "--data", "second/photos.csv", *line, "--seeds", "7,8", says=says)
    assert page.read_bytes() == before
    again = ipg("compare", "--data", "first/photos.csv", *line, "--seeds", "2")
    assert again.code == 0, again


def test_somebody_elses_page_is_not_replaced(assert_refused, bars: list[str], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "report.html").write_text("mine")
    assert_refused(
        "compare", *bars, "--output", "here", says=("here/report.html exists and is no page of ipg", "--output")
    )
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["report.html"]


def test_the_table_says_that_a_method_gives_every_image_one_class(ipg, bars: list[str], monkeypatch) -> None:
    from ipg.report.compared import MethodRows

    monkeypatch.setattr(MethodRows, "collapsed", property(lambda method: len(method.rows) * (method.method == "ipg")))
    done = ipg("compare", *bars, "--seeds", "2", "--workers", "1", "--output", "here")
    assert done.code == 0, done
    assert done.out.count("gives every image the same class") == 1
    assert "IPG gives every image the same class in 2 of 2 runs." in done.out


@pytest.mark.slow
def test_worker_processes_on_the_embedded_images(process, tiny: tuple[str, ...], tmp_path: Path) -> None:
    done = process(
        *("compare", *tiny, "--methods", "erm,ipg", "--seeds", "2", "--workers", "2", "--output", tmp_path / "x"),
        cwd=tmp_path,
    )
    assert done.code == 0, done
    assert len(rows(tmp_path / "x")) == 4
    assert "with 2 runs at once" in (tmp_path / "x" / "report.html").read_text(encoding="utf-8")
