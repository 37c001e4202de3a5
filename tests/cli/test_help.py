"""Help, version, and what they cost."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from typer.main import get_command

from ipg.cli import app, compare, search, train
from ipg.config import PANELS, RunConfig, field_help

VERBS = [
    "demo",
    "train",
    "evaluate",
    "predict",
    "export",
    "doctor",
    "compare",
    "study",
    "table",
    "search",
    "report",
    "reproduce",
    "methods",
    "bench",
    "data list",
    "data fetch",
    "data check",
    "data cache",
    "data prepare waterbirds",
    "data prepare celeba",
    "pairs build",
    "pairs show",
    "pairs accept",
    "pairs audit",
    "pairs merge",
    "pairs reject",
]
ROOT = get_command(app)
SETTLING = {"train": train.train, "compare": compare.compare, "search": search.search}
"""Verbs that take every setting."""


def command_of(words: list[str]):
    """The innermost command that `words` begin with, and the words left over."""
    command, context, rest = ROOT, typer.Context(ROOT, info_name="ipg"), words
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, context, rest


def leaves(command, path=()) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [" ".join(path)]
    return [name for key, child in inner.items() for name in leaves(child, (*path, key))]


def test_the_verbs_are_those_tested_here() -> None:
    assert sorted(leaves(ROOT)) == sorted(VERBS)


@pytest.mark.parametrize(("group", "what"), [("data", "data sets."), ("pairs", "invariance pairs.")])
def test_the_help_of_a_group_names_its_verbs(group: str, what: str) -> None:
    command, _, _ = command_of([group])
    assert command.help.endswith(what)
    told = re.findall(r"\w+", command.help.removesuffix(what).lower())
    assert set(told) - {"and"} == set(command.commands)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(ipg, verb: str, flag: str) -> None:
    done = ipg(*verb.split(), flag)
    assert done.code == 0
    assert f"Usage: ipg {verb}" in done.out
    assert "Examples" in done.out
    assert f" ipg {verb}" in done.out.partition("Examples")[2]
    assert max(map(len, done.out.splitlines())) <= 80
    assert re.findall(r"\w…", done.out) == []  # no word is cut off
    assert done.err == ""


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("evaluate", "[RUN]..."),
        ("report", "{RUN}..."),
        ("doctor", "{RUN}..."),
        ("predict", "{RUN} {IMAGES}"),
        ("study", "[STUDY]"),
    ],
)
def test_usage_names_arguments_once_and_in_capitals(ipg, verb: str, arguments: str) -> None:
    """Releases of typer before 0.29 have no braces or, with a later click, no dots."""
    (usage,) = [line for line in ipg(verb, "--help").out.splitlines() if "Usage:" in line]
    older = tuple(map(int, version("typer").split(".")[:2])) < (0, 29)
    admitted = {re.sub(left_out, "", arguments) for left_out in (("$", "[{}]", "[{}.]", "[.]") if older else ("$",))}
    assert usage.strip() in {f"Usage: ipg {verb} [OPTIONS] {text}" for text in admitted}


def examples() -> list[str]:
    return [
        example
        for verb in VERBS
        for example in re.findall(r"`(ipg [^`]+)`", command_of(verb.split())[0].epilog, re.DOTALL)
    ]


@pytest.mark.parametrize("example", examples())
def test_examples_are_command_lines_that_the_program_takes(example: str) -> None:
    command, context, rest = command_of(shlex.split(example)[1:])
    with command.make_context(command.name, rest, parent=context) as inner:
        given = {name: value for name, value in inner.params.items() if name in field_help() and value}
    assert isinstance(RunConfig.from_mapping(given), RunConfig)  # or an error names what is wrong


def test_every_verb_has_examples_and_there_are_ten_or_more() -> None:
    assert len(examples()) >= 10


def test_train_shows_every_field_with_its_help_and_default(ipg) -> None:
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ipg("train", "--help").out).split())
    for panel, names in PANELS.items():
        assert panel in text
        for name in names:
            flag = {"options": "--option", "start": "--from "}.get(name, f"--{name.replace('_', '-')} ")
            assert flag in text
    assert "Passes over the training images. [default: 6]" in text
    assert "[default: None]" not in text
    assert {name for names in PANELS.values() for name in names} == set(field_help())


@pytest.mark.parametrize("group", [[], ["data"], ["data", "prepare"], ["pairs"]])
def test_without_a_command_a_group_prints_its_help(ipg, group: list[str]) -> None:
    bare, asked = ipg(*group), ipg(*group, "--help")
    assert bare.code == 0
    assert "Commands" in bare.out
    assert bare.out == asked.out
    assert bare.err == ""


def test_version(ipg) -> None:
    done = ipg("--version")
    assert (done.code, done.out) == (0, f"ipg {version('invariance-pair-guidance')}\n")


def test_options_are_made_once_and_read_once() -> None:
    """To make those of three verbs anew, and to read their types as often as typer does, took a third of the start."""
    taken = {name: inspect.signature(verb).parameters["epochs"].annotation for name, verb in SETTLING.items()}
    assert taken["train"] is taken["compare"] is taken["search"]
    of_commands = [command.callback.__annotations__ for command in app.registered_commands]
    assert of_commands
    assert not [kind for kinds in of_commands for kind in kinds.values() if isinstance(kind, str)]


def test_help_version_and_the_list_of_a_study_do_not_import_torch() -> None:
    code = f"""
import json, sys
from typer.testing import CliRunner
from ipg.cli import app
lines = [[], ["--version"], ["data"], ["study", "--list"], ["study", "margin", "--list"]]
lines += [*([*verb.split(), "--help"] for verb in {VERBS})]
codes = [CliRunner().invoke(app, line).exit_code for line in lines]
print(json.dumps([codes, sorted({{"torch", "numpy", "matplotlib", "PIL"}} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0] * (len(VERBS) + 5), []]
