"""What people see: lines that fit, a bar on terminals alone, tables that lose no number."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from ipg.cli.console import (
    ConsoleListener,
    command_line,
    percent,
    print_metrics,
    same_class,
    shown_groups,
    unseen_groups,
    watching,
)
from ipg.config import RunConfig
from ipg.methods import METHODS
from ipg.report.build import NAMES

SPLIT = {"average": 1.0}


def screen(*, terminal: bool, width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def written(console: Console) -> str:
    return console.file.getvalue()


def row(**changes: object) -> dict:
    values = {"train": {"task_loss": 12.345678}, "validation": SPLIT, "test": SPLIT, "pair_disagreement": 1.0}
    return {"epoch": 100, **values, **changes}


@pytest.mark.parametrize("label", [*(f"{name} on colored_mnist_train_noise" for name in METHODS), *NAMES.values()])
def test_the_widest_lines_fit_eighty_columns(label: str) -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label=label)
    listener.started(RunConfig(epochs=100), step=99_999, total=100_000)
    listener.epoch(row())
    assert written(console).splitlines() == [
        f"{label}, from iteration 99,999 of 100,000",
        "  epoch 100/100  loss 12.346  validation 100.0  test 100.0  pairs disagree 100.0",
    ]
    assert max(map(len, written(console).splitlines())) <= 80


def test_a_line_says_what_there_is_and_no_more() -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="erm")
    listener.started(RunConfig(), step=0, total=10)
    assert listener.trained
    listener.epoch({"epoch": 2, "train": {"task_loss": 1234567.8}, "pair_disagreement": None})
    listener.epoch({"epoch": 3, "train": {}, "test": {"average": 0.25}, "pair_disagreement": None})
    assert written(console) == "erm\n  epoch 2/6  loss 1e+06\n  epoch 3/6  loss nan  test 25.0\n"


def test_a_run_that_begins_again_says_so_and_not_again_what_it_is() -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="ipg")
    listener.about = ["about"]
    listener.started(RunConfig(), step=0, total=10)
    listener.restarted(RuntimeError("why"), number=2, rate=2.5e-5)
    listener.started(RunConfig(), step=0, total=10)
    said = "  collapsed: begins again with half the learning rate, 2.5e-05 (restart 2)"
    assert written(console).splitlines() == ["ipg", "  about", said, "ipg"]


def test_without_a_terminal_there_is_no_bar() -> None:
    console = screen(terminal=False)
    with watching(console, label="ipg") as listener:
        listener.started(RunConfig(), step=0, total=10)
        listener.progress(5, {"task_loss": 0.5, "disagreement": 0.25, "learning_rate": 1e-3})
    assert written(console) == "ipg\n"


def test_on_a_terminal_the_bar_shows_everything_within_eighty_columns() -> None:
    console = screen(terminal=True)
    listener = ConsoleListener(console, label="ipg on colored_mnist_train_noise")
    listener.started(RunConfig(), step=0, total=10_000)
    listener.progress(9_999, {"task_loss": 12.345, "disagreement": 1.0, "learning_rate": 1.25e-3})
    listener.close()
    still = screen(terminal=True)
    still.print(listener._bar.get_renderable())
    (line,) = written(still).splitlines()
    assert len(line) <= 80
    assert " 9999/10000 loss 12.345  disagree 100 %  rate 1.3e-03 " in line
    assert written(console).endswith("\x1b[2K")  # and nothing of it stays


@pytest.mark.parametrize("said", ["", "stopped after 3 of 9 iterations"])
def test_who_interrupts_is_told_how_to_go_on(said: str) -> None:
    listeners = []

    def interrupted() -> None:
        with watching(screen(terminal=True), label="ipg") as listener:
            listeners.append(listener)
            listener.started(RunConfig(), step=0, total=10)
            raise KeyboardInterrupt(said)

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    assert str(caught.value) == f"{said or 'interrupted'}; run the same command again to go on"
    assert not listeners[0]._bar.live.is_started


def test_percentages() -> None:
    assert [percent(value) for value in (None, 0.0, 0.98765, 1.0)] == ["–", "0.0", "98.8", "100.0"]


def test_a_table_with_gaps() -> None:
    console = screen(terminal=False)
    first = {"average": 0.5, "groups": {"cat, [red]": {"accuracy": None, "count": 0}}}
    second = {"groups": {"dog": {"accuracy": 1.0, "count": 2}}, "pair_disagreement": 0.25}
    print_metrics(console, [("a", first, 1.25), ("b", second, None)], title="Test [images]")
    title, *lines = written(console).splitlines()
    assert title == "Test [images]"
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert cells == [
        ["average", "50.0", "–"],
        ["worst group", "–", "–"],
        ["mean of groups", "–", "–"],
        ["cat, [red]", "–", "–"],
        ["dog", "–", "100.0"],
        ["pairs that disagree", "–", "25.0"],
        ["seconds", "1.2", "–"],
    ]


def test_without_an_attribute_groups_are_classes() -> None:
    console = screen(terminal=False)
    groups = {"cat, all": {"accuracy": 0.5, "count": 4}, "rabbit, all": {"accuracy": 1.0, "count": 4}}
    print_metrics(console, [("a", {"worst_group": 0.5, "groups": groups}, None)], title="Test")
    first = [line.strip("│").split("│")[0].rstrip() for line in written(console).splitlines() if line.startswith("│")]
    assert first == [" average", " worst class", " mean of classes", "   cat", "   rabbit", " pairs that disagree"]


def test_an_attribute_that_is_called_all_is_one_of_several() -> None:
    names = ["cat, all", "cat, some"]
    assert shown_groups(names) == ("group", dict(zip(names, names, strict=True)))
    assert shown_groups([]) == ("group", {})


def test_a_narrow_terminal_gets_more_tables() -> None:
    console = screen(terminal=False, width=40)
    print_metrics(console, [(name, {"average": 1.0}, None) for name in "abcde"], title="Test")
    text = written(console)
    assert text.count("100.0") == 5
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize("pairs", [None, [40, 40]])
@pytest.mark.parametrize("name", ["a class whose name is longer than a terminal is wide, " * 2, "\u732b" * 60, "cat"])
def test_long_names_are_wrapped_and_no_figure_is_lost(name: str, pairs: list[int] | None) -> None:
    console = screen(terminal=False, width=60)
    metrics = {"average": 0.625, "groups": {f"{name}, red": {"accuracy": 0.25, "count": 40}}, "pair_disagreement": 0.5}
    print_metrics(console, [("runs/a", metrics, None), ("runs/b", metrics, None)], title="Test", pairs=pairs)
    lines = written(console).splitlines()
    figures = [line.strip("│").split("│")[1:] for line in lines if line.startswith("│")]
    for share in ("62.5", "25.0", "50.0"):
        assert sum(cell.strip() == share for cells in figures for cell in cells) == 2
    assert max(cell_len(line) for line in lines[:-1]) <= 60
    names = [line.strip("│").split("│")[0] for line in lines if line.startswith("│")]
    assert f"{name}, red".replace(" ", "") in "".join(names).replace(" ", "")


def test_the_command_line_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/ipg/__main__.py", "report", "my run", "--output", "$page"])
    assert command_line() == "ipg report 'my run' --output '$page'"


@pytest.mark.parametrize(("predicted", "warned"), [(1, True), (2, False)])
def test_a_model_that_predicts_one_class_is_pointed_out(predicted: int, warned: bool) -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="ipg")
    listener.epoch(row(validation={"average": 0.5, "predicted_classes": predicted}, pair_disagreement=0.0))
    assert ("every image gets the same class" in written(console)) == warned


@pytest.mark.parametrize(("share", "of_pairs"), [(0.0, ", so agreement of pairs means nothing"), (None, "")])
def test_agreement_is_spoken_of_where_there_are_pairs(share: float | None, of_pairs: str) -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="dair")
    listener.epoch(row(validation={"average": 0.5, "predicted_classes": 1}, pair_disagreement=share))
    said = f"    every image gets the same class{of_pairs}; if that stays so, ask ipg doctor"
    assert written(console).splitlines()[-1] == said


def test_one_class_is_pointed_out_once_until_there_are_two_again() -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="ipg")
    for predicted in (1, 1, 2, 1):
        listener.epoch(row(validation={"average": 0.5, "predicted_classes": predicted}, pair_disagreement=0.0))
    lines = ["same class" in line for line in written(console).splitlines()]
    assert lines == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"selection": "worst_group"},
            "--selection worst_group cannot take them into account; --selection pairs needs",
        ),
        ({"decision": "worst_group"}, "--decision worst_group cannot take them into account"),
        (
            {"selection": "worst_group", "decision": "worst_group"},
            "--selection worst_group and --decision worst_group cannot take them into account; --selection pairs needs",
        ),
    ],
)
def test_groups_that_the_worst_group_does_not_see_are_named(make_table, settings: dict, said: str) -> None:
    table = make_table()
    assert unseen_groups(RunConfig(**settings), table) is None
    short = table.take(torch.nonzero((table.split != 1) | (table.label == table.attribute)).flatten())
    told = unseen_groups(RunConfig(**settings), short)
    assert told is not None
    assert told.startswith(f"no validation image is of top, green; bottom, red: {said}")
    assert unseen_groups(RunConfig(), short) is None
    assert unseen_groups(RunConfig(**settings), replace(short, splits=("train", "search", "test"))) is None


def test_what_is_said_of_a_constant_model() -> None:
    assert same_class("run") == "run gives every image the same class: its pairs agree because everything does."
    assert same_class("run", pairs=False) == "run gives every image the same class."


def test_a_network_fitted_anew_is_no_further_epoch() -> None:
    console = screen(terminal=False)
    listener = ConsoleListener(console, label="dfr")
    listener.started(RunConfig(epochs=2), step=0, total=10)
    listener.epoch(row(epoch=3, train={}))
    assert written(console).splitlines()[-1] == "  fitted anew  validation 100.0  test 100.0  pairs disagree 100.0"
