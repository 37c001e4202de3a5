from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from report.reader import Reader

from ipg.report.html import GENERATOR, check_page
from ipg.report.page import Flip, Look, PageData, render, write
from ipg.report.verdict import Evidence
from ipg.report.views import PairAnswers

NAN = float("nan")
HOSTILE = '</td></figure><script>alert("1")</script><img src=https://example.org/x.png onerror=alert(1)>'


def make_look(*runs) -> Look:
    image, heat = torch.zeros(2, 6, 6, dtype=torch.uint8), torch.zeros(6, 6)
    return Look("garment", [image], {run.name: [heat] for run in runs})


def rows(page: str, table: str) -> dict[str, list[str]]:
    """The rows of a table of class `table`: head to cells."""
    body = re.search(rf'<table class="{table}">.*?<tbody>(.*?)</tbody>', page, re.S)
    assert body
    found = {}
    for row in re.findall(r"<tr.*?</tr>", body[1], re.S):
        cells = [Reader(cell).text for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        found[cells[0]] = cells[1:]
    return found


def test_headline_and_numbers(page) -> None:
    text = Reader(render(page())).text
    assert "On clothes whose colour changed: plain training 12 % , guided 97 % in the worst group" in text
    assert "Guidance came from 40 pairs" in text
    card = "12.5 % right in the worst group: garment, green (5.3–29.7) 56.2 % on average"
    assert f"{card} 75.0 % of pairs change the answer (68.6–80.5)" in text
    without = Reader(render(page(runs=[replace(each, pairs=None) for each in page().runs], flips=[], looks=[]))).text
    assert card in without
    assert "of pairs change the answer" not in without
    assert "Training used 40 pairs for 12,000 images, or 0.3 %; 4 are shown." in text


def test_a_run_that_does_not_tell_its_worst_group_has_its_average_in_the_headline(page, run) -> None:
    old = run("Guided (IPG)", "after", result={"metrics": {"average": 0.98}})
    text = Reader(render(page(runs=[run(), old], flips=[], looks=[]))).text
    assert "On clothes whose colour changed: plain training 56 % , guided 98 % In training" in text


def test_no_number_of_a_run_stands_before_its_figure_in_the_headline(page, run) -> None:
    runs = [run(), run("Guided 1 (IPG)", "after"), run("Guided 2 (IPG)", "after")]
    text = Reader(render(page(runs=runs, flips=[], looks=[]))).text
    assert "plain training 12 % , guided 12 % in the worst group" in text


@pytest.mark.parametrize(("disagreement", "agree"), [(0.0, ": its pairs agree because everything does"), (None, "")])
def test_a_run_that_gives_every_image_the_same_class_is_named(page, run, disagreement, agree) -> None:
    before, after = run(), run("Guided (IPG)", "after", 0.0, 1.0, disagreement=disagreement, folder="guided")
    constant = replace(after, result={**after.result, "metrics": {**after.metrics, "predicted_classes": 1}})
    told = f'Guided (IPG) <span class="folder">guided</span> gives every test image the same class{agree}.'
    told += " The command ipg doctor says why, and what to do."
    assert f'<p class="warning">{told}</p>' in render(page(runs=[before, constant]))
    assert "the same class" not in render(page(runs=[before, after]))


@pytest.mark.parametrize(
    ("worst", "told"),
    [
        (
            0.9,
            "helped: the worst group gained 77.5 points (95 % interval +54.1 to +87.0), the average gained 38.",
        ),
        (0.0, "No clear difference: the worst group lost 12.5 points (95 % interval −29.7 to +0.6, of 30 test images)"),
        (0.125, "the worst group stayed the same (95 % interval"),
    ],
)
def test_the_first_screen_says_whether_it_helped(page, run, worst: float, told: str) -> None:
    text = Reader(render(page(runs=[run(), run("Guided (IPG)", "after", 1.0, worst)], looks=[], flips=[]))).text
    assert told in text
    assert text.index(told) < text.index("right in the worst group")


def test_without_groups_held_out_pairs_say_whether_it_helped(page, run) -> None:
    """Where the shortcut holds in the test images, losing it costs accuracy, and that is no harm."""
    plain = replace(run(red=1.0, green=1.0), pairs=PairAnswers(100, 90, 10))
    guided = replace(run("Guided (IPG)", "after", 0.9, 0.9), pairs=PairAnswers(100, 5, 90))
    text = Reader(render(page(runs=[plain, guided], evidence=Evidence(grouped=False), looks=[], flips=[]))).text
    told = "the share of held-out pairs with both answers right gained 80.0 points (95 % interval +69.5 to +86.3), the"
    assert "Guidance helped: " + told in text
    assert "the average lost 10.0 points." in text
    silent = page(runs=[plain, replace(guided, pairs=None)], evidence=Evidence(grouped=False), looks=[], flips=[])
    assert "Whether guidance helped cannot be told without held-out pairs." in Reader(render(silent)).text


def test_harm_is_called_harm_and_a_run_that_learnt_nothing_is_not_judged(page, run) -> None:
    good, bad = run(red=1.0, green=1.0), run("Guided (IPG)", "after", 1.0, 0.1)
    assert "Guidance did harm: the worst group lost 90.0 points" in Reader(render(page(runs=[good, bad]))).text
    constant = replace(bad, result={**bad.result, "metrics": {**bad.metrics, "predicted_classes": 1}})
    unjudged = render(page(looks=[], flips=[], runs=[good, constant]))
    assert 'class="verdict"' not in unjudged
    assert unjudged.index("gives every test image the same class") < unjudged.index('class="card ')


def test_the_worst_group_stands_before_the_average(page) -> None:
    assert list(rows(render(page()), "results"))[:2] == ["Worst group", "Average"]


def test_runs_are_known_by_their_folders_and_the_page_says_whom_it_leaves_out(page, run) -> None:
    runs = [
        run(folder="plain"),
        run("Guided 1 (IPG)", "after", folder="rep"),
        run("Guided 2 (IPG)", "after", folder="rep<2>", disagreement=None),
    ]
    made = render(page(runs=runs, flips=[], looks=[make_look(*runs[:2])], pairs_of="Guided 1 (IPG)"))
    text = Reader(made).text
    assert "Large figures are of the first run of plain and the first of guided training. Below also: guided 2" in text
    assert "Not shown, for want of held-out pairs: guided 2 (rep<2>)." in text
    assert "the figures above measure. Not shown: guided 2 (rep<2>)." in text
    assert "Guided 1 (IPG) used 40 pairs for 12,000 images" in text
    legend = re.search(r'<ul class="legend">(.*?)</ul>', made, re.S)
    head = re.search(r'<table class="results">.*?</thead>', made, re.S)
    assert legend
    assert head
    for part in (legend[1], head[0]):
        words = " ".join(Reader(part + "</table>" * ("<table" in part)).words)
        assert re.search(r"Guided 1 \(IPG\)\s+rep\s.*Guided 2 \(IPG\)\s+rep<2>", words, re.S)
    assert [cells[0] for name, cells in rows(made, "settings").items() if "Guided" in name] == ["rep", "rep<2>"]
    whole = Reader(render(page())).text
    for words in ("Large figures", "Not shown", "Folder"):
        assert words not in whole


def test_runs_that_were_tested_on_different_images_are_told(page) -> None:
    assert "not all tested on the same images" in Reader(render(page(evidence=Evidence(alike=False)))).text
    assert "not all tested on the same images" not in Reader(render(page())).text


def test_a_page_is_known_again_and_no_other_file_is_taken_for_one(page, tmp_path: Path) -> None:
    ours = write(tmp_path / "ours.html", page())
    check_page(ours, remedy="")
    check_page(tmp_path / "new.html", remedy="")
    older = tmp_path / "older.html"
    older.write_text(ours.read_text(encoding="utf-8").replace(GENERATOR, ""), encoding="utf-8")
    check_page(older, remedy="")
    theirs = tmp_path / "theirs.html"
    theirs.write_bytes(b"<!doctype html>\xff<title>mine</title>")
    with pytest.raises(ValueError, match=r"theirs.html exists and is no page of ipg; go elsewhere"):
        check_page(theirs, remedy="go elsewhere")


def test_results_table(page) -> None:
    assert rows(render(page()), "results") == {
        "Worst group": ["", "12.5 % 5.3–29.7", "97.0 % 83.3–99.4"],
        "Average": ["1,230", "56.2 % 53.5–59.0", "97.5 % 96.4–98.2"],
        "Mean of groups": ["", "56.2 %", "97.5 %"],
        "Gap, best to worst group": ["", "87.5 points 70.3–94.7", "1.0 points −1.6 to 14.7"],
        "garment, red": ["1,200", "100.0 % 99.7–100.0", "98.0 % 97.0–98.7"],
        "garment, green": ["30", "12.5 % 5.3–29.7", "97.0 % 83.3–99.4"],
        "Pair disagreement": ["200", "75.0 % 68.6–80.5", "1.0 % 0.3–3.6"],
        "Training time": ["", "6.1 s", "1 min 5 s"],
    }


def test_metrics_that_runs_of_older_versions_lack_are_rows_where_there_are_any(page, run, metrics) -> None:
    newer = {**metrics(1.0, 0.5), "average_reweighted": 0.9, "auroc": 0.875, "calibration_error": 0.05}
    made = rows(render(page(runs=[run(), run("Guided", "after", result={"metrics": newer})])), "results")
    assert made["Average, reweighted to training"] == ["", "–", "90.0 %"]
    assert made["AUROC"] == ["", "–", "87.5 %"]
    assert made["Calibration error"] == ["", "–", "5.0 %"]


def test_the_gap_of_equal_groups_is_zero_and_of_one_group_none(page, run) -> None:
    groups = {name: {"accuracy": 0.5, "count": 10} for name in ("a", "b")}
    equal = run(result={"metrics": {"groups": groups}}, pairs=None)
    assert rows(render(page(runs=[equal])), "results")["Gap, best to worst group"] == ["", "0.0 points −37.3 to 37.3"]
    alone = run(result={"metrics": {"groups": {"a": groups["a"], "b": None}}}, pairs=None)
    assert rows(render(page(runs=[alone])), "results")["Gap, best to worst group"] == ["", "–"]


def test_flips_say_who_changes_and_mark_wrong_answers(page) -> None:
    made = render(page())
    text = Reader(made).text
    assert "plain training changes its answer on 3 of 3, guided changes its answer on 0 of 3." in text
    assert made.count('<td class="wrong">✗ shoe</td>') == 3
    assert made.count("<td>garment</td>") == 9


def test_how_it_was_made(page, run) -> None:
    data = page()
    data = replace(
        data, runs=[data.runs[0], run("Guided (IPG)", "after", config={"seed": 7, "pairs": 40, "every": None})]
    )
    made = render(data)
    text = Reader(made).text
    assert "ipg demo --seed 7" in text
    assert "Commit 0123abc" in text
    assert "Time in all 1 min 12 s" in text  # 6.1 + 65.4
    assert "Plain training (ERM) erm 7 the last epoch 3 of 3 6.1 s" in text
    assert "No rule for keeping a model looks at the test images." in text
    assert "<dt>seed</dt><dd>7</dd>" in made
    differing = rows(made[made.index("Settings that differ") :], "settings differing")
    assert differing == {
        "learning_rate": ["0.001", ""],
        "optimizer.name": ["adam", ""],
        "augment": ["no", ""],
        "pairs": ["", "40"],
        "every": ["", "–"],
    }


def test_a_refit_is_not_called_an_epoch(page, run) -> None:
    rows = run().epochs
    refitted = {"selected_epoch": 3, "refitted_epoch": 1, "selection": "worst_group"}
    told = render(page(runs=[run(epochs=[*rows[:2], {**rows[2], "refitted": 1}], result=refitted)]))
    assert "<td>1 of 2, refitted</td>" in told
    assert "fitted anew when training was over" in told
    older = render(page(runs=[run(config={"epochs": 2}, result={"selected_epoch": 3, "config": {"epochs": 2}})]))
    assert "<td>refitted</td>" in older
    plain = render(page(runs=[run()]))
    assert "<td>3 of 3</td>" in plain
    assert "refit" not in plain


def test_page_is_self_contained(page) -> None:
    made = render(page())
    reader = Reader(made)
    assert reader.loads
    assert all(load.startswith(("data:", "#")) for load in reader.loads)
    assert "http:" not in made.replace("http-equiv", "")
    assert "https:" not in made
    assert "@import" not in made
    assert "url(" not in made.replace("url(#", "")
    assert not {"script", "iframe", "object", "embed", "base", "form"} & set(reader.tags)
    assert "default-src 'none'" in made
    assert len(reader.ids) == len(set(reader.ids))


def test_hostile_names_are_shown_and_do_nothing(page, run, image) -> None:
    groups = {f"{HOSTILE}, {i}": {"accuracy": 0.5, "count": 3} for i in range(2)}
    hostile = run(
        HOSTILE,
        method=HOSTILE,
        config={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        result={"selection": HOSTILE, "metrics": {"average": 0.5, "groups": groups}},
    )
    data = PageData(
        title=HOSTILE,
        shortcut=HOSTILE,
        runs=[hostile],
        pairs=[(image(), image(), HOSTILE)],
        pair_count=1,
        train_count=1,
        flips=[Flip(image(), image(), HOSTILE, {HOSTILE: (HOSTILE, HOSTILE), "unknown run": ("a", "b")})],
        command=HOSTILE,
        environment={HOSTILE: HOSTILE},
    )
    reader = Reader(render(data))
    assert "script" not in reader.tags
    assert reader.handlers == []
    assert all(load.startswith(("data:", "#")) for load in reader.loads)
    assert HOSTILE in reader.text


def test_without_group_labels_the_page_says_so_and_what_pairs_tell(page, run) -> None:
    text = Reader(render(page(evidence=Evidence(grouped=False)))).text
    assert "Accuracy by class" in text
    assert "These images come without group labels" in text
    assert "12.5 % right in the worst class" in text
    assert "What pairs alone can tell" in text
    lonely = Reader(
        render(page(evidence=Evidence(grouped=False), runs=[run(disagreement=None)], flips=[], looks=[]))
    ).text
    assert "Held-out pairs would tell what happens when it does not." in lonely
    assert "What pairs alone can tell" not in lonely
    assert "without group labels" not in Reader(render(page())).text


def test_pair_disagreement_before_and_after(page) -> None:
    made = render(page())
    assert "When only the shortcut changes" in Reader(made).text
    assert made.count('aria-label="Held-out pairs.') == 2
    assert "Plain training (ERM): The answer changes 75.0" in made
    assert "When only the shortcut changes" not in render(page(runs=[], flips=[], looks=[]))


def test_looks_stand_side_by_side_with_a_legend(page) -> None:
    made = render(page())
    section = made[made.index('id="looks"') : made.index('id="made"')]
    assert section.count("<img") == 2 * 2 * 3  # two pairs: the images, then two runs
    assert 'alt="where plain training looks in image 2"' in section
    assert "linear-gradient(to right, #" in section
    assert "needs captum" not in made


def test_without_captum_the_page_says_how_to_get_it(page) -> None:
    made = render(page(looks=[], looks_install="pip install it"))
    assert "This section needs captum: pip install it" in Reader(made).text.replace(" ,", ",")
    assert 'id="looks"' not in render(page(looks=[]))


EMPTY = PageData("Nothing yet", "", [], [], 0, 0, [], "", {})


def test_nothing_at_all() -> None:
    reader = Reader(render(EMPTY))
    assert "Nothing yet" in reader.text
    assert not {"img", "svg", "table"} & set(reader.tags)


def test_one_run(page, run) -> None:
    text = Reader(render(page(runs=[run("Plain training (ERM)", "reference")], flips=[], looks=[]))).text
    assert "On clothes whose colour changed: plain training 12 % in the worst group" in text
    assert "Settings that differ" not in text
    assert "One image, two answers" not in text


def test_no_pairs(page) -> None:
    text = Reader(render(page(pairs=[], pair_count=0))).text
    assert "What must not matter" not in text
    assert "Guidance came" not in text


def test_pairs_without_a_gallery(page) -> None:
    text = Reader(render(page(pairs=[], pair_count=1, train_count=0))).text
    assert "Training used 1 pair." in text


@pytest.mark.parametrize("missing", [None, NAN])
def test_missing_metrics_are_dashes(page, run, missing: float | None) -> None:
    metrics = {
        "average": missing,
        "worst_group": missing,
        "groups": {"a": {"accuracy": missing, "count": 0}, "b": None},
    }
    epochs = [{"epoch": 1, "test": metrics, "pair_disagreement": missing, "train_pair_disagreement": missing}]
    made = render(page(runs=[run(result={"metrics": metrics, "seconds": missing}, epochs=epochs, pairs=None)]))
    reader = Reader(made)
    assert {cells[1] for cells in rows(made, "results").values()} == {"–"}
    assert "<h1>On clothes whose colour changed</h1>" in made
    assert "svg" not in reader.tags
    assert "nan" not in reader.text
    assert "None" not in reader.text
    assert "No rule for keeping" not in reader.text  # the rule is unknown


def test_run_without_an_epoch_or_a_result(page, run) -> None:
    made = render(page(runs=[run(epochs=[], result={}, config={})], flips=[]))
    assert rows(made, "results")["Training time"] == ["", "–"]


def test_many_groups_and_runs(page, run) -> None:
    groups = {f"class {i % 5}, attribute {i // 5}": {"accuracy": i / 20, "count": i} for i in range(20)}
    runs = [
        run(f"run {i}", "reference", result={"metrics": {"average": 0.5, "worst_group": 0.0, "groups": groups}})
        for i in range(7)
    ]
    made = render(page(runs=runs))
    assert len(rows(made, "results")) == 26
    assert made.count("<svg") == 2 + 2 + 3  # bars in two columns, pairs, three curves
    reader = Reader(made)
    assert len(reader.ids) == len(set(reader.ids))


def test_names_keep_their_capitals(page, run) -> None:
    for name, said in (
        ("Plain training (ERM)", "plain training"),
        ("Group DRO", "Group DRO"),
        ("IPG", "IPG"),
        ("Invariance Pair Guidance", "Invariance Pair Guidance"),
    ):
        assert f": {said} 12 %" in Reader(render(page(runs=[run(name)], flips=[]))).text


def test_equal_data_gives_equal_bytes(page, tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.html", page()), write(tmp_path / "b.html", page())
    assert first.read_bytes() == second.read_bytes()


def test_write_leaves_nothing_but_the_page(page, tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "report.html"
    assert write(target, page()) == target
    write(target, EMPTY)
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    assert "Nothing yet" in target.read_text(encoding="utf-8")


def test_failed_write_keeps_the_old_page(page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path / "report.html", EMPTY)
    old = target.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(target, page())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert target.read_bytes() == old


def test_command_that_is_no_unicode(tmp_path: Path) -> None:
    text = write(tmp_path / "a.html", replace(EMPTY, command="ipg --out caf\udce9")).read_text(encoding="utf-8")
    assert "ipg --out caf?" in text
