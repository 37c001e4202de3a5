"""Methods under one protocol: their order, needs and time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments.table_rows import PAGE, arguments, cells, row, short_table, write

from ipg.experiments.arms import figure_of, published
from ipg.experiments.store import read_rows
from ipg.experiments.study import load_study
from ipg.experiments.table import main
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rivals import rivals_table
from ipg.experiments.tables.rows import measured

RIVALS = """
dataset = "colored_mnist"
seeds = 2
[base]
model = "mnist_cnn"
epochs = 2
pairs = 388
selection = "training_environments"
[[arm]]
method = "erm"
protocol = "unified"
[[arm]]
method = "dair"
protocol = "unified"
config = { options = { augment = "random", weight = 3.0 } }
[[arm]]
method = "dair"
protocol = "unified"
config = { options = { augment = "swap" } }
[[arm]]
method = "ipg"
protocol = "unified"
"""


@pytest.fixture
def rivals(project: Path) -> Path:
    """The project with a study of the unified protocol; of the second DAIR there is no row."""
    file = project / "studies" / "colored_mnist_unified.toml"
    file.write_text(RIVALS, encoding="utf-8")
    trials = load_study(file).trials
    values = ((0.2, 9.0), (0.3, 13.0), (0.6, 29.0), (0.7, 29.0), None, None, (0.75, 14.0), (0.71, 16.0))
    rows = [
        row(trial, value[0], seconds=value[1]) | {"preparing_seconds": 1.0}
        for trial, value in zip(trials, values, strict=True)
        if value is not None
    ]
    write(project / "results" / "colored_mnist_unified" / "trials.jsonl", rows)
    marks = "<!-- results:colored_mnist_unified -->\n<!-- /results:colored_mnist_unified -->\n"
    (project / "README.md").write_text(PAGE + marks, encoding="utf-8")
    return project


def test_methods_under_one_protocol_are_ranked_with_their_needs_and_their_time(rivals: Path) -> None:
    """ERM takes 8 and 12 seconds without preparing: median 10; DAIR 28, IPG 13 and 15."""
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert cells(text, "IPG") == ["IPG", "pairs", "73.0 ± 2.8", "0.0 ± 0.0", "1.4 ×", "2", "72.1 ± 1.2"]
    name = "DAIR, random copies"
    assert cells(text, name)[:5] == [name, "shortcut rule", "65.0 ± 7.1", "0.0 ± 0.0", "2.8 ×"]
    assert cells(text, "ERM") == ["ERM", "–", "25.0 ± 7.1", "0.0 ± 0.0", "1 ×", "2", "16.1 ± 0.8"]
    assert text.index("| IPG") < text.index("| DAIR") < text.index("| ERM")
    assert "opposite colour" not in text  # has no row
    assert "*Shortcut rule*: a rule that changes the shortcut in every image, or takes it out. *Time*" in " ".join(
        text.split()
    )


def test_a_method_that_takes_the_shortcut_the_other_way_round_does_not_lead(rivals: Path) -> None:
    """DAIR's rows made such: more of all images than IPG, and none of its worst group."""
    file = rivals / "results" / "colored_mnist_unified" / "trials.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for found in rows:
        reads_colour = found["method"] == "dair"
        found["metrics"] |= {"average": 0.9} if reads_colour else {"worst_group": found["metrics"]["average"] / 2}
    write(file, rows)
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert cells(text, "DAIR, random copies")[2:4] == ["90.0 ± 0.0", "0.0 ± 0.0"]
    assert text.index("| IPG") < text.index("| ERM") < text.index("| DAIR")


def test_seconds_of_trials_that_shared_a_gpu_do_not_count(rivals: Path) -> None:
    """Of IPG one had the GPU to itself, which is too few to tell by; of DAIR none had."""
    file = rivals / "results" / "colored_mnist_unified" / "trials.jsonl"
    rows = read_rows(file)
    for line in rows:
        if line["method"] == "dair" or (line["method"], line["seed"]) == ("ipg", 0):
            line["sharing"] = 6
    write(file, rows)
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert [cells(text, name)[4] for name in ("IPG", "DAIR, random copies", "ERM")] == ["–", "–", "1 ×"]
    assert "in the median over at least 2 trials that had the GPU to themselves" in " ".join(text.split())


def test_a_table_without_any_time_says_so(rivals: Path) -> None:
    file = rivals / "results" / "colored_mnist_unified" / "trials.jsonl"
    write(file, [line | {"sharing": 6} for line in read_rows(file)])
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert {cells(text, name)[4] for name in ("IPG", "DAIR, random copies", "ERM")} == {"–"}
    assert "*Time*: not measured yet." in " ".join(text.split())


def test_trials_that_were_run_again_for_their_seconds_tell_the_times(rivals: Path) -> None:
    """ERM takes 4 seconds there and IPG 10, without preparing; DAIR was not run again, whatever it took before."""
    trials = load_study(rivals / "studies" / "colored_mnist_unified.toml").trials
    seconds = {"erm": 4.5, "ipg": 10.5}
    again = [
        row(trial, 0.99, seconds=seconds[trial.method]) | {"preparing_seconds": 0.5}
        for trial in trials
        if trial.seed == 0 and trial.method in seconds
    ]
    write(rivals / "results" / "times" / "colored_mnist_unified" / "trials.jsonl", again)
    assert main(arguments(rivals, "--write")) == 0
    _, _, text = (rivals / "README.md").read_text(encoding="utf-8").partition("<!-- results:colored_mnist_unified -->")
    assert [cells(text, name)[4] for name in ("IPG", "DAIR, random copies", "ERM")] == ["2.5 ×", "–", "1 ×"]
    assert cells(text, "IPG")[2] == "73.0 ± 2.8"  # of the study itself
    assert "(ERM: 4 s). It was measured apart, with 1 seed: one trial at a time" in " ".join(text.split())


def test_the_short_table_does_not_mix_protocols(rivals: Path) -> None:
    before = short_table(rivals)
    (rivals / "results" / "colored_mnist_unified" / "trials.jsonl").unlink()
    assert before == short_table(rivals)


def _table_of(project: Path, dataset: str, arms: str, base: str = "") -> str:
    """The table of a study of the unified protocol on `dataset`, every seed at 50 %."""
    file = project / "studies" / f"{dataset}_unified.toml"
    base = f'model = "mnist_cnn"\nepochs = 2\npairs = 388\n{base}'
    file.write_text(f'dataset = "{dataset}"\nseeds = 2\n[base]\n{base}\n{arms}', encoding="utf-8")
    rows = [row(trial, 0.5) for trial in load_study(file).trials]
    write(project / "results" / f"{dataset}_unified" / "trials.jsonl", rows)
    known = measured(project / "results", project / "studies")
    return rivals_table(next(study for study in known if study.name == f"{dataset}_unified"), published())


def _arm(method: str, options: str = "") -> str:
    return f'[[arm]]\nmethod = "{method}"\nprotocol = "unified"\nconfig = {{ options = {{ {options} }} }}\n'


def test_figures_that_the_paper_quotes_stand_beside_their_methods(project: Path) -> None:
    """DAIR's is that of random copies, which are its default; the opposite colour has none."""
    named = {"irm": "IRM", "meta_irm": "meta-IRM", "dair": "DAIR"}
    arms = "".join(map(_arm, named)) + _arm("dair", 'augment = "swap"') + _arm("shape_only")
    text = _table_of(project, "colored_mnist", arms, 'selection = "last"')
    told = {name: cells(text, name)[-1] for name in (*named.values(), "DAIR, opposite colour", "Shape-only")}
    assert told == {
        "IRM": "66.9 ± 2.5",
        "meta-IRM": "70.4 ± 0.9",
        "DAIR": "73.1 ± 0.1",
        "DAIR, opposite colour": "–",
        "Shape-only": "–",
    }
    assert "†" not in text


def test_a_figure_of_something_else_is_marked_and_the_table_says_of_what(project: Path) -> None:
    text = _table_of(project, "colored_mnist", _arm("ncm") + _arm("fishr") + _arm("irm"), 'selection = "last"')
    assert [cells(text, name)[-1] for name in ("NCM", "Fishr", "IRM")] == ["69.3 †", "68.8 ± 1.4 †", "66.9 ± 2.5"]
    assert (
        "†: not the quantity that its line shows: NCM's is on features of CLIP, where ours stands on pixels; Fishr's "
        "is the mean over three test environments, selected on test images."
    ) in " ".join(text.split())


def test_of_epg_the_attribution_tells_which_figure_it_is(project: Path) -> None:
    arms = _arm("epg", 'attribution = "ixg"') + _arm("epg", 'attribution = "bcos"') + _arm("gals_mask")
    text = _table_of(project, "waterbirds100", arms, 'selection = "worst_group"\nmasks = "masks.zip"')
    told = [cells(text, name)[-1] for name in ("EPG, input × gradient", "EPG", "GALS (masks)")]
    assert told == ["56.1 ± 7.0", "–", "–"]


def test_what_is_rederived_is_called_so_beside_the_figure_of_its_paper(project: Path) -> None:
    text = _table_of(project, "celeba_subset", _arm("eva_e") + _arm("dkt"), 'selection = "worst_group"')
    assert [cells(text, name)[-1] for name in ("EvA-E (re-derived)", "DKT (re-derived)")] == ["82.7", "92.3"]


def test_quoted_figures_stand_in_no_other_table(project: Path) -> None:
    """Where no head says that the protocol is another one."""
    figures = published()
    _table_of(project, "colored_mnist", _arm("irm") + _arm("erm"), 'selection = "last"')
    known = measured(project / "results", project / "studies")
    arms = {arm.method: arm for study in known if study.name == "colored_mnist_unified" for arm in study.arms}
    assert figure_of(arms["irm"], figures) is None
    assert figure_of(arms["erm"], figures) is not None
    assert "66.9" not in results_page(known, figures, [])
