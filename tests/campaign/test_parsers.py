"""Whatever text or bytes they are given, the readers raise errors of their own kind, and no other."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from ipg.config import ConfigError, RunConfig, load_config
from ipg.data.columns import parse_csv
from ipg.data.decode import decode
from ipg.data.errors import DataError
from ipg.experiments.store import read_rows

RELAXED = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""The same examples every time."""


@contextmanager
def told(kind: type[ValueError], name: str) -> Iterator[None]:
    """The block may end in an error of this kind, all of whose problems say `name`."""
    try:
        yield
    except kind as error:
        problems = getattr(error, "problems", [str(error)])
        if not all(name in problem and problem.strip() for problem in problems):
            raise AssertionError(f"{problems} do not all say {name!r}") from error


SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.integers(min_value=10**300, max_value=10**310)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.sampled_from([*RunConfig.__dataclass_fields__, "epoch", "", "a b"])


@RELAXED
@given(values=st.dictionaries(NAMES, VALUES, max_size=5))
@example({"learning_rate": 10**400})
@example({"epochs": float("inf")})
@example({"pairs": float("nan")})
def test_any_values_are_a_configuration_or_all_mistakes_at_once(values: dict[str, Any]) -> None:
    with told(ConfigError, ""):
        flat = RunConfig.from_mapping(values).flat()
        json.dumps(flat)
        assert values.keys() <= RunConfig.__dataclass_fields__.keys()  # others are refused


@RELAXED
@given(text=st.text(alphabet=st.sampled_from('abepochs=0123456789.-"[]{}\n #,_:TZ'), max_size=60))
@example("a = " + "[" * 5000)
@example("epochs = " + "9" * 5000)
@example("options = { a = 1979-05-27 }")
def test_any_text_is_a_file_of_settings_or_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with told(ConfigError, "run.toml"):
        load_config(file)
        assert tomllib.loads(text).keys() <= RunConfig.__dataclass_fields__.keys()


@RELAXED
@given(data=st.one_of(st.binary(max_size=80), st.text(alphabet='ab,;"\n\t \x00ä', max_size=80).map(str.encode)))
def test_any_bytes_are_a_table_or_name_it(data: bytes) -> None:
    with told(DataError, "all.csv"):
        found = parse_csv(data, "all.csv")
        assert len(found) >= 1
        assert {len(column) for column in found.values.values()} == {len(found)}


@RELAXED
@given(rows=st.lists(st.one_of(st.binary(max_size=40), VALUES.map(lambda value: json.dumps(value).encode()))))
@example([b"[" * 100_000, b'{"key": 1}', b"\xff"])
def test_any_lines_are_rows_or_left_out(tmp_path: Path, rows: list[bytes]) -> None:
    (tmp_path / "trials.jsonl").write_bytes(b"\n".join(rows))
    assert all(isinstance(row, dict) for row in read_rows(tmp_path / "trials.jsonl"))


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    """One small image of every format."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    made = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        image.save(buffer, kind)
        made.append(buffer.getvalue())
    return made


@RELAXED
@given(which=st.integers(0, 6), place=st.floats(0, 1), value=st.binary(min_size=1, max_size=4), cut=st.booleans())
@pytest.mark.filterwarnings("ignore::UserWarning")  # of metadata that is damaged
def test_any_damage_to_an_image_is_said(
    pictures: list[bytes], which: int, place: float, value: bytes, cut: bool
) -> None:
    data = bytearray(pictures[which])
    start = int(place * len(data))
    data[start : start + len(value)] = value
    with told(DataError, ""):
        found = decode(bytes(data[:start] if cut else data), size=8)
        assert found.shape == (3, 8, 8)
        assert found.dtype == np.uint8
