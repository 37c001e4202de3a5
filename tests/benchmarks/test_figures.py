"""Slopes of known laws, and the figure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from ipg.benchmarks.figures import TITLES, draw_growth, growth_data, power, slope
from ipg.benchmarks.growth import SWEEPS


def power_law(name: str, sizes: tuple[int, ...], power: float, *, factor: float = 2.0) -> list[dict[str, Any]]:
    """Rows of a cost of 3 · size^power, guided training `factor` times that."""
    rows = []
    for size in sizes:
        for method, value in (("erm", 3 * size**power), ("ipg", factor * 3 * size**power)):
            guided = method == "ipg"
            rows.append(
                {
                    "benchmark": "growth",
                    "case": f"{name}={size} {method}",
                    "value": value,
                    "unit": "ms",
                    "baseline": f"{name}={size} erm" if guided else None,
                    "ratio": factor if guided else None,
                    "ideal": 1.5 if guided else None,
                }
            )
    return rows


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_slope_of_an_exact_power_law_is_its_power(power: float) -> None:
    sizes = (2, 10, 100, 1000)
    assert slope(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)
    (curve,) = growth_data(power_law("classes", sizes, power))
    for method in ("erm", "ipg"):
        assert curve.slope(method) == pytest.approx(power)
        assert curve.last_slope(method) == pytest.approx(power)


def test_a_slope_of_nothing_has_no_sign() -> None:
    assert [power(value) for value in (-0.004, 0.004, -0.006, 1.005)] == ["0.00", "0.00", "-0.01", "1.00"]


def test_what_does_not_grow_flattens_the_slope_and_less_so_at_the_end() -> None:
    rows = power_law("batch", (1, 10, 100), 1.0)
    for row in rows:
        row["value"] += 30
    (curve,) = growth_data(rows)
    assert 0 < curve.slope("erm") < curve.last_slope("erm") < 1


def test_curves_come_in_order_with_sorted_sizes_and_without_halves() -> None:
    rows = power_law("side", (28, 14), 2.0) + power_law("batch", (64, 32), 1.0, factor=1.5)
    rows += power_law("pairs", (8,), 1.0)  # a single value has no slope
    rows.append({**rows[0], "case": "batch=128 erm"})  # guided training is missing
    rows.append({**rows[0], "benchmark": "steps", "case": "classes=2 erm"})
    batch, side = growth_data(rows)
    assert (batch.name, batch.sizes, batch.ratios, batch.ideals) == ("batch", (32, 64), (1.5, 1.5), (1.5, 1.5))
    assert batch.costs["erm"] == (96.0, 192.0)
    assert (side.name, side.sizes) == ("side", (14, 28))


def test_every_size_that_is_varied_has_a_title() -> None:
    assert set(SWEEPS) == set(TITLES)


def test_the_figure_is_an_svg_that_states_the_slopes_and_stands_alone() -> None:
    data = growth_data([row for name in SWEEPS for row in power_law(name, SWEEPS[name], 1.25)])
    svg = draw_growth(data, title="Milliseconds a step, a machine")
    root = ET.fromstring(svg)
    words = [element.text for element in root.iter() if element.text]
    assert words.count("slope 1.25 plain, 1.25 guided") == len(SWEEPS)
    assert set(TITLES.values()) <= set(words)
    assert "1.25 plain" in root.attrib["aria-label"]
    assert "href" not in svg
    assert svg == draw_growth(data, title="Milliseconds a step, a machine")


def test_points_lie_inside_the_picture() -> None:
    data = growth_data(power_law("batch", (32, 64, 512), 3.0))
    root = ET.fromstring(draw_growth(data, title="t"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    circles = [element.attrib for element in root.iter() if element.tag.endswith("circle")]
    assert len(circles) == 2 + 6
    assert all(0 < float(one["cx"]) < width and 0 < float(one["cy"]) < height for one in circles)


def test_without_rows_there_is_no_figure() -> None:
    assert growth_data([]) == ()
    assert draw_growth((), title="t") == ""
