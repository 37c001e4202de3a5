"""The one configuration: its help, its checks, its forms."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

from ipg import config
from ipg.config import (
    CHOICES,
    EARLIER,
    FRESH_CROP,
    FRESH_FLIP,
    MARGIN,
    NO_SETTINGS,
    OPTIONS,
    PANELS,
    TRAINED_CROP,
    TRAINED_FLIP,
    TRAINED_RATE,
    ConfigError,
    RunConfig,
    field_help,
    load_config,
)  # fmt: skip
from ipg.methods import METHODS
from ipg.methods.options import option_defaults

NAMES = [field.name for field in fields(RunConfig)]


def problems(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(values)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def test_every_field_has_help_of_one_line() -> None:
    assert list(field_help()) == NAMES
    for text in field_help().values():
        assert text.endswith(".")
        assert "\n" not in text


def test_a_field_without_help_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(config.__file__).read_text(encoding="utf-8")
    text = '    """Task images per iteration."""\n'
    assert text in source
    copy = tmp_path / "config.py"
    copy.write_text(source.replace(text, ""), encoding="utf-8")
    monkeypatch.setattr(config, "__file__", str(copy))
    with pytest.raises(RuntimeError, match=r"fields without help: \['batch'\]"):
        field_help.__wrapped__()


def test_panels_hold_every_field_once() -> None:
    assert sorted(name for names in PANELS.values() for name in names) == sorted(NAMES)


def test_importing_the_configuration_is_cheap() -> None:
    code = "import sys, ipg.config; ipg.config.field_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        RunConfig().epochs = 3  # type: ignore[misc]
    given = {"order": "sum"}
    made = RunConfig(method="joint", options=given)
    given["order"] = "task_first"
    assert made.options == {"order": "sum"}
    changed = made.with_changes(epochs=3)
    assert (changed.epochs, changed.method) == (3, "joint")
    assert made.epochs == RunConfig().epochs
    with pytest.raises(TypeError, match="a configuration has no epoch"):
        made.with_changes(epoch=3)


@pytest.mark.parametrize(("images", "steps", "expected"), [(8, None, 6), (9, None, 9), (1, None, 3), (9, 5, 15)])
def test_the_last_batch_of_an_epoch_may_be_smaller(images: int, steps: int | None, expected: int) -> None:
    assert RunConfig(epochs=3, batch=4, steps=steps).iterations(images) == expected


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leraning_rate", "unknown key 'leraning_rate'; did you mean learning_rate?"),
        ("pair-batch", "unknown key 'pair-batch'; did you mean pair_batch?"),
        ("lr", "unknown key 'lr'; did you mean learning_rate?"),
        ("from", "unknown key 'from'; did you mean start?"),
        ("batch_size", "unknown key 'batch_size'; did you mean batch?"),
        ("option", "unknown key 'option'; did you mean options?"),
        ("output", "unknown key 'output'; the folder of a run is --output on the command line and folder= in ipg.fit"),
        ("autocast", "unknown key 'autocast'; did you mean precision?"),
        ("scaler", "unknown key 'scaler'; runs have no fp16 and need none; ipg.Guidance takes one"),
        ("head", f"unknown key 'head'; {NO_SETTINGS['head']}"),
        ("zzz", "unknown key 'zzz'"),
    ],
)
def test_unknown_keys(name: str, message: str) -> None:
    assert problems(**{name: 1}) == [message]


def test_an_option_of_a_method_is_not_taken_for_a_misspelt_setting() -> None:
    """`weight` is near `weights`, which is a file."""
    hint = "options of a method's own stand under options, on the command line behind -o"
    assert problems(method="irm", weight=10) == [f"unknown key 'weight'; {hint}"]
    assert {name for method in METHODS.values() for name in option_defaults(method)} == OPTIONS
    assert not OPTIONS & {field.name for field in fields(RunConfig)}


def test_all_mistakes_at_once() -> None:
    found = problems(epoch=3, batch="many", alpha=1.5, schedule="linear", margin="wide", options=3, seed=4)
    assert found == [
        "unknown key 'epoch'; did you mean epochs?",
        "options=3: expected a table of names and values",
        "batch='many': expected a whole number",
        "schedule='linear': expected one of constant, cosine, step",
        "alpha=1.5: expected 0 <= alpha < 1",
        "margin='wide': expected a number, at least 0, a multiple such as \"0.5x\", or auto",
    ]


def test_the_constructor_checks_too() -> None:
    with pytest.raises(ConfigError, match=r"epochs=0: expected at least 1; tau=2: expected 0 <= tau <= 1"):
        RunConfig(epochs=0, tau=2)
    with pytest.raises(ConfigError, match="alpha=None: expected a number"):
        RunConfig().with_changes(alpha=None)


OUT_OF_RANGE: dict[str, list[Any]] = {
    "size": [0, -1],
    "epochs": [0],
    "steps": [0, -1],
    "batch": [0],
    "learning_rate": [0.0, -1e-3, float("inf"), float("nan")],
    "warmup": [-1, "epochs", "1.5"],
    "crop": [0.0, -0.1, 1.01, float("nan"), "some"],
    "resident": [-0.1, 1.1, float("nan")],
    "weight_decay": [-1e-9, float("inf")],
    "pairs": [-1],
    "pair_batch": [0],
    "held_out_pairs": [-1],
    "alpha": [-0.1, 1.0, float("nan")],
    "tau": [-0.1, 1.01],
    "every": [0, -4, "often", "1.5"],
    "floor": [0.0],
    "jitter": [-0.1, float("inf")],
    "restarts": [-1],
    "seed": [-1, 2**63, 10**400],
    "split_seed": [-1, 2**63],
}


@pytest.mark.parametrize(
    ("given", "kept"), [(12, 12), ("12", 12), (" 1e2 ", 100), ("pairs.csv", "pairs.csv"), ("a/b", "a/b")]
)
def test_pairs_are_a_number_or_a_file(given: Any, kept: int | str) -> None:
    assert RunConfig(pairs=given).pairs == kept


@pytest.mark.parametrize("given", ["", "1.5", 2.5, None, "-3.5", True])
def test_pairs_that_are_neither(given: Any) -> None:
    assert problems(pairs=given) == [f"pairs={given!r}: expected a whole number, or a file"]


@pytest.mark.parametrize(("given", "kept"), [(4, 4), ("4", 4), ("auto", "auto"), (" auto ", "auto")])
def test_every_is_a_number_or_auto(given: Any, kept: int | str) -> None:
    config = RunConfig.from_mapping({"every": given})
    assert (config.every, config.flat()["every"]) == (kept, kept)


@pytest.mark.parametrize("given", ["", "often", "1.5", 2.5, None, True])
def test_every_that_is_neither(given: Any) -> None:
    assert problems(every=given) == [f"every={given!r}: expected a whole number, or auto"]
    assert problems(every=0) == ["every=0: expected at least 1 iteration, or auto"]


@pytest.mark.parametrize(("given", "kept"), [(1e-3, 1e-3), ("1e-3", 1e-3), (1, 1.0), (" auto ", "auto")])
def test_the_learning_rate_is_a_number_or_auto(given: Any, kept: float | str) -> None:
    made = RunConfig.from_mapping({"learning_rate": given}).learning_rate
    assert (made, type(made)) == (kept, type(kept))


@pytest.mark.parametrize("given", ["", "slow", None, True])
def test_learning_rates_that_are_neither(given: Any) -> None:
    assert problems(learning_rate=given) == [f"learning_rate={given!r}: expected a number, or auto"]
    assert problems(learning_rate=0) == ["learning_rate=0: expected a positive number, or auto"]


def test_every_number_has_a_range() -> None:
    kinds = (int, float, int | None, int | str, int | Literal["auto"], float | Literal["auto"])
    numbers = {name for name, kind in get_type_hints(RunConfig).items() if kind in kinds}
    assert numbers == set(OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_out_of_range(name: str, value: Any) -> None:
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"{name}={value!r}: expected ")


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", 0), ("tau", 0), ("tau", 1), ("pairs", 0), ("held_out_pairs", 0), ("seed", 2**63 - 1), ("size", None)],
)
def test_ends_of_ranges(name: str, value: Any) -> None:
    assert getattr(RunConfig.from_mapping({name: value}), name) == value


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    for value in CHOICES[name]:
        assert getattr(RunConfig.from_mapping({name: value}), name) == value
    assert problems(**{name: "other"}) == [f"{name}='other': expected one of {', '.join(CHOICES[name])}"]


# -- values from text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("epochs", "7", 7),
        ("epochs", 7.0, 7),
        ("epochs", "1e2", 100),
        ("seed", "9223372036854775807", 2**63 - 1),  # a float would round it
        ("size", "28", 28),
        ("size", None, None),
        ("learning_rate", "1e-3", 1e-3),
        ("learning_rate", 1, 1.0),
        ("strict", "true", True),
        ("strict", "False", False),
        ("strict", True, True),
        ("data_path", "~/mnist.npz", "~/mnist.npz"),
        ("model", " small_cnn ", "small_cnn"),
        ("margin", 0.08, "0.08"),
        ("options", {"order": "sum"}, {"order": "sum"}),
    ],
)
def test_coercions(name: str, given: Any, expected: Any) -> None:
    value = getattr(RunConfig.from_mapping({name: given}), name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("epochs", 1.5, "a whole number"),
        ("epochs", "1.5", "a whole number"),
        ("epochs", "inf", "a whole number"),
        ("epochs", True, "a whole number"),
        ("epochs", None, "a whole number"),
        ("epochs", [3], "a whole number"),
        ("size", "wide", "a whole number"),
        ("alpha", True, "a number"),
        ("alpha", "half", "a number"),
        ("alpha", {}, "a number"),
        ("strict", "yes", "true or false"),
        ("strict", 1, "true or false"),
        ("data", True, "text"),
        ("data", ["a"], "text"),
        ("model", {}, "text"),
        ("options", [("a", 1)], "a table of names and values"),
    ],
)
def test_values_of_another_kind(name: str, given: Any, expected: str) -> None:
    assert problems(**{name: given}) == [f"{name}={given!r}: expected {expected}"]


@pytest.mark.parametrize(
    ("given", "kept", "flat"),
    [
        ("0.5x", "0.5x", "0.5x"),
        (" 2x ", "2x", "2x"),
        ("0x", "0x", "0x"),
        (0.08, "0.08", 0.08),
        ("0.10", "0.10", 0.1),
        (0, "0", 0.0),
        ("1e-2", "1e-2", 0.01),
    ],
)
def test_forms_of_the_margin(given: Any, kept: str, flat: Any) -> None:
    made = RunConfig.from_mapping({"margin": given})
    assert made.margin == kept
    assert made.flat()["margin"] == flat
    assert type(made.flat()["margin"]) is type(flat)


@pytest.mark.parametrize("margin", ["x", "", "-1", "-0.5x", "inf", "nan", "nanx", "0.5xx", "1 2"])
def test_margins_that_are_none(margin: str) -> None:
    assert problems(margin=margin) == [
        f'margin={margin!r}: expected a number, at least 0, a multiple such as "0.5x", or auto'
    ]


def test_flat_values_hold_the_options() -> None:
    flat = RunConfig(method="joint", options={"order": "sum"}, margin="0.1").flat()
    assert set(flat) == (set(NAMES) - {"options"}) | {"order"}
    assert (flat["method"], flat["order"], flat["margin"]) == ("joint", "sum", 0.1)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_and_what_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('epochs = 3\nmargin = 0.1\nmethod = "joint"\n[options]\norder = "sum"\n', encoding="utf-8")
    made = load_config(file, overrides={"epochs": "4", "seed": 2})
    assert made == RunConfig(epochs=4, seed=2, margin="0.1", method="joint", options={"order": "sum"})


def test_mistakes_of_a_file_and_of_flags_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("epochs = 0\nbach = 3\nalpha = 7\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides={"tau": 5, "alpha": 0.5})
    assert caught.value.problems == [
        f"{file}: unknown key 'bach'; did you mean batch?",
        f"{file}: epochs=0: expected at least 1",
        "tau=5: expected 0 <= tau <= 1, a share of the pairs",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no configuration file {file}"),
        (b"epochs = = 3", "{file} is not valid TOML: "),
        (b"data = '\xff'", "{file} is not valid TOML: "),
        (b"epochs = 3\nepochs = 4", "{file} is not valid TOML: "),
        ("folder", "{file} cannot be read: Is a directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: Any, message: str) -> None:
    file = tmp_path / "run.toml"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (problem,) = caught.value.problems
    assert problem.startswith(message.format(file=file))


def test_a_network_that_starts_from_weights_keeps_its_statistics() -> None:
    fresh, trained = RunConfig(), RunConfig(weights="net.safetensors")
    repaired = RunConfig(start="run")
    assert [(c.margin, c.batch_norm) for c in (fresh, trained)] == [("auto", "auto")] * 2
    assert [(c.suited().margin, c.suited().batch_norm) for c in (fresh, trained, repaired)] == [
        ("0.85x", "train"), ("0.85x", "eval"), ("0.85x", "eval"),
    ]  # fmt: skip
    given = RunConfig(weights="net.safetensors", margin="0.1", batch_norm="train", learning_rate=0.01, **EARLIER)
    assert given.suited() == given
    assert {name: trained.flat()[name] for name in ("margin", "batch_norm")} == {
        "margin": "0.85x",
        "batch_norm": "eval",
    }
    assert fresh.with_changes(weights="net.safetensors").suited().batch_norm == "eval"


def test_a_network_that_starts_from_weights_learns_slower_than_a_fresh_one() -> None:
    rates = [
        RunConfig.from_mapping(given).suited().learning_rate
        for given in ({}, {"weights": "net.safetensors"}, {"start": "net.safetensors"}, {"learning_rate": 0.02})
    ]
    assert rates == [3e-3, 1e-4, 1e-4, 0.02]
    head = RunConfig(weights="net.safetensors", freeze=True).suited()
    assert (head.learning_rate, head.margin, head.batch_norm) == (3e-3, "0.85x", "eval")
    assert RunConfig(weights="net.safetensors", learning_rate=0.02).suited().learning_rate == 0.02
    assert RunConfig(weights="net.safetensors").flat()["learning_rate"] == 1e-4
    assert RunConfig().flat()["learning_rate"] == 3e-3


WEIGHTS = {"weights": "net.safetensors"}
VIEWS = ("crop", "flip")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, (FRESH_CROP, FRESH_FLIP)),
        (WEIGHTS, (TRAINED_CROP, TRAINED_FLIP)),
        ({"start": "run"}, (TRAINED_CROP, TRAINED_FLIP)),
        ({**WEIGHTS, "freeze": True}, (FRESH_CROP, FRESH_FLIP)),  # of which the head alone is trained
        ({"freeze": True}, (FRESH_CROP, FRESH_FLIP)),
        ({**WEIGHTS, "crop": 0.5}, (0.5, TRAINED_FLIP)),
        ({**WEIGHTS, "crop": 1, "flip": False}, (1.0, False)),
        ({"crop": "0.8", "flip": "true"}, (0.8, True)),
        ({"crop": "auto", "flip": "auto"}, (FRESH_CROP, FRESH_FLIP)),
    ],
)
def test_views_follow_from_where_a_network_starts(given: dict[str, Any], meant: tuple[Any, ...]) -> None:
    config = RunConfig.from_mapping(given)
    for found in (config.suited(), config.suited().suited(), RunConfig(**config.flat() | {"options": {}})):
        assert tuple(getattr(found, name) for name in VIEWS) == meant
    assert tuple(config.flat()[name] for name in VIEWS) == meant
    assert [type(config.flat()[name]) for name in VIEWS] == [type(value) for value in meant]


def test_networks_that_start_from_weights_alone_have_views() -> None:
    assert (FRESH_CROP, FRESH_FLIP) == (1.0, False)
    assert RunConfig().flat()["crop"] != RunConfig(**WEIGHTS).flat()["crop"]


def test_the_help_tells_what_auto_stands_for() -> None:
    """So that a value that is changed is changed there, too."""
    told, from_weights = field_help(), "for a network that starts from weights"
    switch = {True: "yes", False: "no"}
    assert f"auto: {TRAINED_CROP:g} {from_weights}, {FRESH_CROP:g} (no crop) for a fresh one" in told["crop"]
    assert f"auto: {switch[TRAINED_FLIP]} {from_weights}, {switch[FRESH_FLIP]} for a fresh one" in told["flip"]
    assert told["margin"].endswith(f"or auto: {MARGIN}.")
    assert f"auto: {TRAINED_RATE:.0e}".replace("e-0", "e-") + f" {from_weights}" in told["learning_rate"]


def test_flips_that_are_neither(tmp_path: Path) -> None:
    assert problems(flip="sometimes") == ["flip='sometimes': expected true or false, or auto"]
    assert problems(flip=1) == ["flip=1: expected true or false, or auto"]
    file = tmp_path / "run.toml"
    for text, kept in (('"auto"', "auto"), ("true", True), ("false", False), ('"false"', False)):
        file.write_text(f"flip = {text}\n", encoding="utf-8")
        assert load_config(file).flip == kept


@pytest.mark.parametrize(
    ("saved", "given", "kept"),
    [
        ({}, {}, (1.0, False)),  # by a version that had no such settings
        ({"crop": 1.0, "flip": False}, {}, (1.0, False)),
        ({"crop": 0.7, "flip": True}, {"crop": 0.7, "flip": True}, (0.7, True)),
        ({"crop": 1.0, "flip": False}, {"crop": 0.9}, (0.9, False)),
        ({"crop": 0.5, "flip": True}, {}, ("auto", "auto")),  # which were asked for then
    ],
)
def test_what_was_saved_earlier_has_what_was_usual_then(saved: dict, given: dict, kept: tuple[Any, ...]) -> None:
    config = RunConfig(**WEIGHTS, **given).as_before(saved)
    assert tuple(getattr(config, name) for name in VIEWS) == kept


@pytest.mark.parametrize(
    ("saved", "given", "kept"),
    [("0.5x", {}, "0.5x"), ("0.1", {}, "auto"), ("0.5x", WEIGHTS, "auto"), ("0.5x", {"margin": "2x"}, "2x")],
)
def test_the_margin_of_a_fresh_network_is_that_of_its_time(saved: str, given: dict[str, Any], kept: str) -> None:
    assert RunConfig(**given).as_before({"margin": saved}).margin == kept
