"""`ipg methods`."""

from __future__ import annotations

import pytest

from ipg.methods import METHODS
from ipg.methods.options import option_defaults


def test_all_methods_are_listed(ipg) -> None:
    done = ipg("methods")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    for name, kind in METHODS.items():
        row = next(line for line in done.out.splitlines() if line.startswith(f"│ {name} "))
        assert ("pairs" in row.rsplit("│", 2)[1]) == ("pairs" in kind.needs)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_described_with_its_options(ipg, name: str) -> None:
    done = ipg("methods", name)
    assert done.code == 0
    options = [line for line in done.out.splitlines() if line.startswith("-o ")]
    expected = {"joint": ["order=task_first|alignment_first|sum (default task_first)",
                          "loss=alignment|corrective (default alignment)"]}  # fmt: skip
    assert [line.split("=")[0] for line in options] == [f"-o {option}" for option in option_defaults(METHODS[name])]
    assert options == [f"-o {option}" for option in expected.get(name, [])] or name not in expected
    prose = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert max(map(len, prose)) <= 80


def test_formulas_keep_their_lines_and_sentences_are_set_anew(ipg) -> None:
    out = ipg("methods", "joint").out
    assert "    order=sum               θ ← θ − η (g_T + g_A)\n" in out
    assert "under \nthe heading" in out
