"""Pages that are written by hand say what the code and the rows say."""

from __future__ import annotations

import inspect
import json
import math
import re
import tomllib
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from ipg.benchmarks.rows import newest, read
from ipg.cli import search, train
from ipg.config import MARGIN, RunConfig
from ipg.data import colored_mnist
from ipg.data.load import DATASETS, load
from ipg.evaluation.groups import evaluate
from ipg.evaluation.selection import pairs
from ipg.experiments.reproduce import list as reproduce_list
from ipg.experiments.reproduce.headline import find_headlines
from ipg.experiments.reproduce.plan import load_reproduction, names
from ipg.experiments.search.space import gather_space
from ipg.experiments.study import STUDIES
from ipg.experiments.tables.rows import measured
from ipg.guidance import Guidance
from ipg.methods import METHODS, method_class
from ipg.methods.options import option_defaults
from ipg.methods.space import Uniform
from ipg.models import build_model
from ipg.training.folder import RunFolder


def page(root: Path, name: str) -> str:
    return (root / "docs" / name).read_text(encoding="utf-8")


def plain_text(file: Path) -> str:
    """A file in one line."""
    return " ".join(file.read_text(encoding="utf-8").split())


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next of its level."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the rows below the table heading whose first cell is `first`."""
    lines = text.split(f"\n| {first} |")[1].splitlines()[2:]
    rows = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_method_has_a_page_and_every_page_a_method(repo_root: Path) -> None:
    assert {path.stem for path in (repo_root / "docs" / "methods").glob("*.md")} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method(repo_root: Path, name: str) -> None:
    text = page(repo_root, f"methods/{name}.md")
    assert re.search(rf"--method\s{name}\b", text)
    assert re.search(r"^(```|    \S)", text, re.MULTILINE)  # a formula
    for part in ("needs", "cost"):
        assert re.search(rf"(\*\*{part}\*\*|^\| {part} \|)", text, re.MULTILINE | re.IGNORECASE)
    plain = " ".join(text.split())
    assert re.search(r"\bsearch(es)? (also )?(looks?|tries)\b", plain)  # its space
    assert re.search(r"\*\*Differs from", plain)
    assert f"Source: [{Path(inspect.getfile(METHODS[name])).name}]" in plain
    defaults = option_defaults(METHODS[name])
    assert [option for option in defaults if f"`{option}`" not in text] == []
    for option, default in re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE):
        assert _same(default, defaults[option]), option
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (repo_root / "docs" / "methods" / target).exists()] == []


def _same(told: str, default: object) -> bool:
    if isinstance(default, bool):
        return told == str(default).lower()
    if isinstance(default, str):
        return told == (default or "none")
    return float(told) == default


def test_all_folders_of_pairs_that_reproductions_take_are_told_of(repo_root: Path) -> None:
    """But for edited pairs, which need a model."""
    needed = " ".join(reproduce_list.needs(load_reproduction(name)) for name in names())
    asked = set(re.findall(r"pairs-[\w-]+", needed))
    text = page(repo_root, "results.md")
    told = text.split("\n### Pairs of photographs\n")[1].split("\n## ")[0]
    made = set(re.findall(r"--output (\S+)", told)) | set(re.findall(r"`(pairs-\d+)`", told))
    assert asked - {"pairs-edited-1208"} <= made
    assert "pairs-matched" in asked


def test_every_coloured_mnist_is_described(repo_root: Path) -> None:
    text = section(page(repo_root, "data.md"), "ColoredMNIST")
    assert set(re.findall(r"`(colored_mnist\w*)`", text)) == {
        name for name in DATASETS if name.startswith("colored_mnist")
    }


def test_the_splits_of_coloured_mnist_are_as_large_as_told(repo_root: Path, mnist_path: Path) -> None:
    found = colored_mnist.load(mnist_path)
    counts = {split: len(found.part(split)) for split in found.splits}
    told = table(section(page(repo_root, "data.md"), "ColoredMNIST"), "split")
    assert {row[0].strip("`"): int(row[1].replace(",", "")) for row in told} == counts


def test_the_scores_of_margins_are_those_of_the_rows(repo_root: Path) -> None:
    scores: dict[tuple[str, str], list[float]] = {}
    for line in (repo_root / "results" / "margin" / "trials.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["config"]["learning_rate"] != 3e-3:  # which was tried afterwards
            continue
        found = row["metrics"]
        (score,) = pairs({"validation": found, "pair_disagreement": found["pair_disagreement"]})
        assert score is not None
        scores.setdefault((row["config"]["margin"], row["dataset"]), []).append(100 * score)
    told = table(page(repo_root, "models.md"), "margin")
    datasets = ("colored_fashion", "colored_fashion_noisy")
    assert {(row[0], name): cell for row in told for name, cell in zip(datasets, row[1:], strict=True)} == {
        case: f"{mean(values):.1f} ± {stdev(values):.1f}" for case, values in scores.items()
    }


def test_the_accuracies_of_margins_on_digits_are_those_of_the_rows(repo_root: Path) -> None:
    found: dict[str, list[float]] = {}
    file = repo_root / "results" / "colored_mnist_defaults_tuning" / "trials.jsonl"
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        config = row["config"]
        if (config["epochs"], config["learning_rate"], config["alpha"]) == (6, 3e-3, 0.1):
            found.setdefault(config["margin"], []).append(100 * row["metrics"]["average"])
    text = page(repo_root, "models.md")
    (head,) = [line for line in text.splitlines() if line.startswith("| margin on ColoredMNIST")]
    (told,) = table(text, "margin on ColoredMNIST")
    margins = [cell.strip() for cell in head.strip("|").split("|")][1:]
    assert dict(zip(margins, told[1:], strict=True)) == {name: f"{mean(values):.1f}" for name, values in found.items()}


def test_the_worst_groups_of_margins_on_birds_are_those_of_the_rows(repo_root: Path) -> None:
    """Of the runs that differ in nothing but the margin."""
    same = {"pairs": 124, "pair_batch": 124, "alpha": 0.1, "every": 1, "epochs": 6, "learning_rate": 1e-4,
            "schedule": "cosine", "crop": 0.7, "batch_norm": "eval"}  # fmt: skip
    found: dict[str, list[float]] = {}
    file = repo_root / "results" / "waterbirds100_tuning" / "trials.jsonl"
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if (row["dataset"], row["protocol"]) == ("waterbirds100", "tuning") and same.items() <= row["config"].items():
            found.setdefault(row["config"]["margin"], []).append(100 * row["metrics"]["worst_group"])
    assert {len(values) for values in found.values()} == {2}
    a, b, c = (f"{mean(found.pop(margin)):.1f}" for margin in ("0.5x", "0.85x", "2x"))
    assert not found
    text = " ".join(page(repo_root, "models.md").split())
    assert f"has {a} % at a margin of 0.5x, {b} at 0.85x and {c} at 2x" in text


def test_what_does_not_keep_runs_from_collapsing_is_what_rows_say(repo_root: Path) -> None:
    files = sorted((repo_root / "results").glob("*/trials.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    collapsed = [row for row in rows if row.get("collapse")]
    assert {row["dataset"] for row in collapsed} == {"celeba_subset"}
    warmed = [row for row in collapsed if row["config"]["warmup"] > 0]
    wide = [row for row in rows if (row["dataset"], row["config"].get("margin")) == ("celeba_subset", "2x")]
    failed = sum(row in collapsed for row in wide)
    text = " ".join(page(repo_root, "decisions.md").split())
    assert f"of the {len(collapsed)} runs in our [rows](../results/README.md) that collapsed" in text
    assert f"all on CelebA, {len(warmed)} had one" in text
    assert f"{failed} of the {len(wide)} runs there with a margin of 2x collapsed" in text


def test_what_the_readme_makes_of_the_rows(repo_root: Path) -> None:
    """How IPG stands beside a plain regulariser on the same pairs, and how often it collapses on CelebA."""

    def rows(study: str, **wanted: Any) -> list[dict[str, Any]]:
        file = repo_root / "results" / study / "trials.jsonl"
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [row for row in found if wanted.items() <= {**row["config"], **row}.items()]

    text = " ".join((repo_root / "README.md").read_text(encoding="utf-8").split())
    ours, theirs = (
        {row["seed"]: 100 * row["metrics"]["average"] for row in rows("colored_mnist_unified", **wanted)}
        for wanted in ({"method": "ipg", "every": 4}, {"method": "joint_weighted"})
    )
    ahead = [theirs[seed] - ours[seed] for seed in range(5)]
    assert min(ahead) > 0
    assert f"ahead of IPG at every fourth step in each of five seeds, by {mean(ahead):.1f} points on average" in text

    searched = rows("celeba_subset_unified", method="ipg")
    chosen = rows("celeba_subset_tuned", method="ipg", pair_builder="matched")
    default = rows("defaults", dataset="celeba_subset", pairs=890, restarts=3)
    counts = [
        (sum("collapse" in row or "restarted" in row for row in found), len(found))
        for found in (searched, chosen, default)
    ]
    assert counts == [(2, 3), (0, 5), (1, 3)]
    assert "two of three other seeds collapse. At the default rate none of five did with 128 pairs" in text
    assert "and one of three with the default of 32" in text


def test_guidance_lifts_the_worst_group_where_the_readme_says_so(repo_root: Path) -> None:
    """By ten points and more, by our settings and the paper's everywhere, under the one protocol but for CelebA."""
    results = repo_root / "results"
    lifted = []
    for one in find_headlines(results, measured(results, STUDIES)):
        plain, ours, paper = (mean(found.values("worst_group")) for found in (one.plain, one.ours, one.paper))
        assert min(ours, paper) > plain + 0.1, one.column.title
        worst: dict[str, list[float]] = {"ipg": [], "erm": []}
        for arm in one.contenders:
            if arm.method in worst:
                worst[arm.method].append(mean(row["metrics"]["worst_group"] for row in arm.rows))
        lifted += [one.column.title] if min(worst["ipg"]) > max(worst["erm"]) + 0.1 else []
    assert lifted == ["ColoredMNIST", "Waterbirds-100", "Waterbirds-100 reversed"]
    text = plain_text(repo_root / "README.md")
    assert "lifts the worst group far above plain training** on all four tasks; under the one protocol on three" in text
    assert "on three of them (CelebA: see below)" in text


def test_which_methods_with_pairs_ran_is_what_rows_say(repo_root: Path) -> None:
    ran = {}
    for dataset in ("colored_mnist", "waterbirds100", "waterbirds100_reverse", "celeba_subset"):
        lines = (repo_root / "results" / f"{dataset}_unified" / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        methods = {json.loads(line)["method"] for line in lines} - {"ipg", "continuous"}
        ran[dataset] = {name for name in methods if method_class(name).needs == {"pairs"}}
    assert [dataset for dataset, methods in ran.items() if "joint_weighted" not in methods] == ["celeba_subset"]
    assert ran["celeba_subset"] == {"pair_augmentation", "pair_contrastive"}
    assert "on the three tasks where it ran (not CelebA)" in plain_text(repo_root / "README.md")
    told = "only pair augmentation and pair-contrastive"
    assert f"**Few others use pairs here**: {told} ran" in plain_text(repo_root / "docs" / "benchmarks.md")
    assert f"On the part of CelebA {told} compete" in plain_text(repo_root / "docs" / "compare.md")


def test_the_readme_names_the_defaults_and_every_extra(repo_root: Path) -> None:
    text = plain_text(repo_root / "README.md")
    own, config = inspect.signature(Guidance).parameters, RunConfig()
    theirs, margin = f"(`every={own['every'].default}`, margin {own['margin'].default})", MARGIN
    assert f"the paper's defaults {theirs}, `ipg train` ours (`every={config.every}`, `{margin}`)" in text
    project = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = section((repo_root / "README.md").read_text(encoding="utf-8"), "Install")
    assert [
        name for name in project["optional-dependencies"] if name != "dev" and not re.search(rf"[`\[]{name}[`\]]", told)
    ] == []
    assert f'"{project["name"]}[' in told


def test_plain_training_by_two_protocols_is_as_its_page_has_it(repo_root: Path) -> None:
    told = []
    for study, dataset in (("colored_mnist", "colored_mnist"), ("colored_mnist_originals", "colored_mnist_irm")):
        lines = (repo_root / "results" / study / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines) if (row["dataset"], row["method"]) == (dataset, "erm")]
        values = [100 * row["metrics"]["average"] for row in rows]
        assert len({row["seed"] for row in rows}) == len(values) == 10
        told.append(f"{mean(values):.1f} ± {stdev(values):.1f}")
    text = " ".join(page(repo_root, "methods/erm.md").split())
    assert f"plain training has {told[0]} % by the paper's settings" in text
    assert f"it has {told[1]} (ten seeds each)" in text
    published = float(re.search(r"the paper has ([\d.]+) ±", text)[1])  # type: ignore[index]
    assert abs(float(told[1].split()[0]) - published) < 1


def test_the_model_of_scaling_follows_from_the_rows(repo_root: Path) -> None:
    """The arithmetic of docs/scale.md, in milliseconds and bytes."""
    rows = newest(read(repo_root / "results" / "speed.jsonl"), "NVIDIA H200")
    step = rows["gpu", "resnet50 erm", "ms", None]["value"]
    small, large = (rows["gpu", f"resnet50 ipg b{n}", "ms", "resnet50 erm"]["value"] - step for n in (32, 128))
    each = (large - small) / 96
    fixed = small - 32 * each
    text = section(page(repo_root, "scale.md"), "How it should scale: a model")
    words = " ".join(text.split())
    assert f"takes {step:.1f} ms, a correction {small:.1f} ms on 32 pairs and {large:.1f} ms on 128" in words
    assert f"a correction is {fixed:.1f} ms and {each:.2f} ms for each pair" in words
    assert f"commit `{rows['gpu', 'resnet50 erm', 'ms', None]['commit'][:7]}`" in words

    gradients, features = 94e6, 2048
    expected = []
    for gpus in (8, 64, 1024):
        n, bandwidth = min(32 * gpus, 1024), 300e6 if gpus <= 8 else 40e6
        reduced = 2 * (gpus - 1) / gpus * gradients / bandwidth + 2 * math.log2(gpus) * 0.01
        gathered = (gpus - 1) / gpus * 4 * n * (2 * features + 2) / bandwidth + math.log2(gpus) * 0.01
        distances = 2 * (n / 1024) ** 2
        shares = [step / (step + 0.27 * reduced)]
        for every in (1, 4):
            computing = step + (fixed + each * n / gpus) / every
            shares.append(computing / (computing + 0.27 * reduced + (reduced + gathered + distances) / every))
        times = (f"{reduced:.1f} ms", f"{gathered:.1g} ms", f"{distances:.1g} ms")
        expected.append([f"{gpus:,}", f"{n:,}", *times, *(f"{share:.0%}".replace("%", " %") for share in shares)])
    assert table(text, "GPUs") == expected


def test_the_two_sets_of_defaults_are_as_docs_decisions_has_them(repo_root: Path) -> None:
    rows = table(section(page(repo_root, "decisions.md"), "Two sets of defaults"), "setting")
    told = {name.strip("`"): (guidance, train) for name, guidance, train, _ in rows}
    parameters = inspect.signature(Guidance).parameters.values()
    own = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    config = RunConfig()
    differing = {name for name in own if name in vars(config) and vars(config)[name] != own[name]}
    assert differing == {"margin", "batch_norm", "every"} == {name for name in told if name in own}
    for name in differing:
        guidance, train = told[name]
        assert guidance.strip("`") == str(own[name])
        assert train.partition(":")[0].strip("`") == str(vars(config)[name])


def test_the_index_leads_to_every_page_and_says_what_each_method_needs(repo_root: Path) -> None:
    text = page(repo_root, "README.md")
    pages = {path.name for path in (repo_root / "docs").glob("*.md")} - {"README.md"}
    assert [name for name in pages if f"({name})" not in text] == []
    told = {name: needs for needs, methods in table(text, "Needs, beside labelled images") for name in _linked(methods)}
    words = {
        "nothing": set(),
        "pairs": {"pairs"},
        "groups of training images": {"groups"},
        "groups of validation images": {"validation groups"},
        "two training environments or more": {"environments"},
        "a rule that changes the shortcut, or removes it": {"shortcut rule"},
        "masks, or maps of where CLIP looks": {"masks", "attention"},
    }
    assert set(told) == set(METHODS)
    for name, needs in told.items():
        found = set(method_class(name).needs)
        assert found == words[needs] or (len(found) == 1 and found < words[needs]), name


def test_the_ranges_of_ipg_are_those_that_a_search_takes(repo_root: Path) -> None:
    usual, widest = (gather_space(config)["alpha"] for config in (RunConfig(), RunConfig(every=1)))
    assert isinstance(usual, Uniform)
    assert isinstance(widest, Uniform)
    text = " ".join(page(repo_root, "methods/ipg.md").split())
    told = f"`alpha` from {usual.low:g} to {usual.high:g} (1/k of the default; to {widest.high:g} with `--every 1`)"
    assert told in text
    assert (usual.low, usual.high) == (widest.low, 1 / RunConfig().every)  # type: ignore[operator]


@pytest.mark.parametrize(("verb", "name"), [("train", "methods/ipg.md"), ("search", "search.md")])
def test_the_papers_settings_are_the_same_in_the_help_and_on_the_page(repo_root: Path, verb: str, name: str) -> None:
    """But for where the data lie."""
    said = {"train": train.EXAMPLES, "search": search.EXAMPLES}[verb]
    (shown,) = re.findall(rf"`(ipg {verb} --data colored_mnist [^`]+)`", said)
    (told,) = re.findall(rf"(ipg {verb} --data colored_mnist (?:[^\n]*\\\n)*[^\n]*)", page(repo_root, name))
    lines = [line.replace("\\\n", " ").replace(" --data-path mnist.npz", "") for line in (shown, told)]
    settings = [set(re.findall(r"--[\w-]+(?: [^-\s]\S*)?", " ".join(line.split()))) for line in lines]
    assert settings[0] == settings[1]
    assert "--selection training_environments" in settings[0]


def test_the_page_on_runs_names_their_files_and_metrics(repo_root: Path) -> None:
    text = section(page(repo_root, "export.md"), "What a run folder holds")
    files = {value.name for value in vars(RunFolder(Path())).values() if value.name}
    assert {row[0].strip("`") for row in table(text, "file")} == files
    model = build_model("linear", channels=2, classes=2, size=14)
    found = evaluate(model, load("colored_fashion").part("validation"))
    assert {row[0].strip("`") for row in table(text, "key")} == {*found, "pair_disagreement"}


def _linked(cell: str) -> list[str]:
    return re.findall(r"\(methods/(\w+)\.md\)", cell)
