from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from ipg.report import figures
from ipg.report.figures import GroupBars, Line, PairGrid, Panel

NAN = float("nan")


def picture(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def bar_lengths(svg: str, colour: str) -> list[float]:
    paths = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")
    drawn = [path.attrib["d"].split() for path in paths if f"fill: var(--{colour}," in path.attrib.get("style", "")]
    return [float(d[4]) - float(d[1]) for d in drawn]  # M x y L x y …


# Numbers


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.98352, 1, "98.4"),
        (0.11, 0, "11"),
        (0.985, 0, "98"),
        (1.0, 0, "100"),
        (0.0, 0, "0"),
        (0.996, 0, "99.6"),  # not 100
        (0.004, 0, "0.4"),  # not 0
    ],
)
def test_percent(value: float, digits: int, expected: str) -> None:
    assert figures.percent(value, digits) == f"{expected}\N{NO-BREAK SPACE}%"


def test_percent_of_nothing_is_a_dash() -> None:
    assert figures.percent(None) == "–"


@pytest.mark.parametrize("value", [None, NAN, float("inf"), "0.5", True, {}])
def test_number_refuses(value: object) -> None:
    assert figures.number(value) is None


def test_number_accepts() -> None:
    assert figures.number(3) == 3.0
    assert figures.number(0.25) == 0.25


# Runs


def test_metrics_are_those_of_the_selected_epoch_else_the_last(run) -> None:
    assert run(green=0.5).metrics["worst_group"] == 0.5
    assert run(result={"last_metrics": {"average": 0.3}}).metrics == {"average": 0.3}
    unfinished = run(result={}).metrics
    assert unfinished["average"] == pytest.approx(0.3)
    assert unfinished["pair_disagreement"] == 0.75
    assert run(result={}, epochs=[]).metrics == {}


def test_series_of_the_compared_runs_and_of_the_rest(run) -> None:
    roles = ["reference", "before", "after", "after", *["reference"] * 5]
    assert figures.series([run(role=role) for role in roles]) == (
        "other-1", "before", "after", "other-2", "other-3", "other-4", "other-5", "other-6", "other-1",
    )  # fmt: skip


# Accuracy by group


def test_group_bars_data(run) -> None:
    data = figures.group_bars_data([run(), run("Guided", "after", 0.98, 0.97)])
    assert data == GroupBars(
        runs=("Plain training (ERM)", "Guided"),
        series=("before", "after"),
        groups=("garment, red", "garment, green"),
        counts=(1200, 30),
        accuracy=((1.0, 0.125), (0.98, 0.97)),
    )


def test_group_bars_data_joins_groups_and_drops_what_is_no_number(run) -> None:
    first = run(result={"metrics": {"groups": {"a": {"accuracy": NAN, "count": None}, "b": None}}})
    second = run("x", "after", result={"metrics": {"groups": {"c": {"accuracy": 0.5, "count": 3}, "a": {"count": 9}}}})
    data = figures.group_bars_data([first, second])
    assert data.groups == ("a", "b", "c")
    assert data.counts == (9, None, 3)
    assert data.accuracy == ((None, None, None), (None, None, 0.5))
    assert data.take([2]).accuracy == ((None,), (0.5,))


def test_bars_are_as_long_as_the_accuracy() -> None:
    data = GroupBars(("p", "q"), ("before", "after"), ("a", "b"), (10, 20), ((1.0, 0.25), (0.5, None)))
    svg = figures.draw_group_bars(data, width=260, legend=False)  # 100 % is 200 pixels
    assert bar_lengths(svg, "before") == pytest.approx([200, 50])
    assert bar_lengths(svg, "after") == pytest.approx([100])
    assert bar_lengths(svg, "track") == pytest.approx([200] * 4)
    assert words(svg) == ["a", "n = 10", "100.0\xa0%", "50.0\xa0%", "b", "n = 20", "25.0\xa0%", "–"]


def test_bars_leave_out_groups_without_a_number() -> None:
    data = GroupBars(("p",), ("before",), ("a", "b"), (10, 0), ((0.5, None),))
    assert words(figures.draw_group_bars(data)) == ["p", "a", "n = 10", "50.0\xa0%"]
    assert figures.draw_group_bars(data.take([1])) == ""
    assert figures.draw_group_bars(data.take([])) == ""


# Metrics by epoch


def test_curves_data(run) -> None:
    average, worst, disagreement = figures.curves_data([run()])
    assert average.title == "Average accuracy"
    (line,) = average.lines
    assert (line.run, line.series, line.epochs, line.selected) == ("Plain training (ERM)", "before", (1, 2, 3), 3)
    assert line.values == pytest.approx((0.1, 0.2, 0.3))
    assert worst.lines[0].values == (0.125,) * 3
    assert disagreement.title == "Pair disagreement"
    assert disagreement.lines[0].values == (0.75,) * 3


def test_curves_data_without_held_out_pairs_takes_the_training_pairs_and_says_so(run) -> None:
    panel = figures.curves_data([run(disagreement=None)])[-1]
    assert panel.title == "Disagreement of training pairs"
    assert panel.lines[0].values == (0.5,) * 3


def test_curves_data_leaves_out_what_no_run_has(run) -> None:
    rows = [{"epoch": 1, "test": {"average": NAN, "worst_group": 0.5}}, {"epoch": 2, "test": None}]
    (panel,) = figures.curves_data([run(epochs=rows, result={}), run(epochs=[])])
    assert panel == Panel(
        "worst_group",
        "Worst-group accuracy",
        (Line("Plain training (ERM)", "before", (1, 2), (0.5, None), None),),
    )
    assert figures.curves_data([]) == ()


@pytest.mark.parametrize(
    "lines",
    [
        (Line("one epoch", "before", (1,), (0.5,), 1),),
        (Line("a gap", "before", (1, 2, 3), (0.5, None, 0.7), 2),),
        (Line("long", "after", tuple(range(1, 301)), (0.5,) * 300, 200), Line("short", "before", (1,), (0.0,), None)),
    ],
)
def test_curves_are_drawn(lines: tuple[Line, ...]) -> None:
    svg = figures.draw_curves(Panel("disagreement", "Pair disagreement", lines))
    assert words(svg)[: 1 + len(lines)] == ["Pair disagreement", *(line.run for line in lines)]
    assert "Epoch" in words(svg)
    assert "nan" not in svg.lower()


# All figures


def every_figure(name: str) -> list[str]:
    tile = figures.Tile("data:,1", "data:,2", name, True)
    return [
        figures.draw_group_bars(GroupBars((name, "q"), ("before", "after"), (name,), (1,), ((0.5,), (0.6,)))),
        figures.draw_curves(Panel("average", "Average", (Line(name, "before", (1, 2), (0.1, 0.2), 2),))),
        figures.draw_pair_grid(PairGrid((tile, tile))),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=y>',
        "$x^2$ costs $5",
        r"$\frac$",
        "日本語 🦆",
        "tab\tline\nnull\0 bell\a",
        "\ud800 lone surrogate",
        "",
        "word " * 100,
        'id="figure_1" url(#x) #c2540a',
    ],
)
def test_any_name_gives_well_formed_svg_without_foreign_elements(name: str) -> None:
    for svg in every_figure(name):
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(svg).iter()}
        assert tags <= {"svg", "g", "path", "text", "defs", "use", "clipPath", "rect", "image"}


def test_a_short_name_is_shown_as_it_is() -> None:
    for svg in every_figure("$x$ #c2540a")[:2]:
        assert "$x$ #c2540a" in words(svg)


def test_figures_are_the_same_whatever_the_settings_and_change_none(run) -> None:
    plain = every_figure("a")
    with matplotlib.rc_context(
        {"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}
    ):
        before = dict(matplotlib.rcParams)
        assert every_figure("a") == plain
        assert dict(matplotlib.rcParams) == before


def test_figures_take_colours_and_font_of_the_page() -> None:
    for svg in every_figure("a"):
        assert "var(--" in svg
        assert "DejaVu" not in svg
        assert "<style" not in svg
        assert 'role="img"' in svg


def test_ids_of_two_panels_do_not_meet() -> None:
    lines = (Line("a", "before", (1, 2), (0.1, 0.2), 2),)
    found = [
        {
            element.attrib["id"]
            for element in ET.fromstring(figures.draw_curves(Panel(key, key, lines))).iter()
            if "id" in element.attrib
        }
        for key in ("average", "worst_group")
    ]
    assert found[0]
    assert not found[0] & found[1]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("font-family: 'DejaVu Sans', Arial; fill: #1b1f24", "font-family: inherit; fill: var(--ink, #1b1f24)"),
        ("font: 12px 'DejaVu Sans', Arial; fill: none", "font-size: 12px; font-family: inherit; fill: none"),
        ("font: 700 12.5px 'DejaVu Sans'", "font-weight: 700; font-size: 12.5px; font-family: inherit"),
        ("fill: #123456", "fill: #123456"),
    ],
)
def test_styles_of_old_and_new_matplotlib(style: str, expected: str) -> None:
    assert figures._restyled(style) == expected


# Images


def test_one_channel_is_grey(image) -> None:
    shown = picture(figures.image_uri(image(channels=1)))
    assert shown.mode == "L"
    np.testing.assert_array_equal(np.asarray(shown), image(channels=1)[0].numpy())


@pytest.mark.parametrize("channels", [3, 4])
def test_three_channels_are_colours(image, channels: int) -> None:
    shown = picture(figures.image_uri(image(channels=channels)))
    assert shown.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(shown), image(channels=channels)[:3].permute(1, 2, 0).numpy())


def test_two_channels_are_red_and_green_on_nothing() -> None:
    pixels = torch.tensor([[[255, 0, 0, 100]], [[0, 255, 0, 100]]], dtype=torch.uint8)  # (2, 1, 4)
    shown = np.asarray(picture(figures.image_uri(pixels)))  # (1, 4, 4)
    assert shown[0, 0].tolist() == [*figures.FIRST_CHANNEL, 255]
    assert shown[0, 1].tolist() == [*figures.SECOND_CHANNEL, 255]
    assert shown[0, 2, 3] == 0
    half = [(a + b) / 2 for a, b in zip(figures.FIRST_CHANNEL, figures.SECOND_CHANNEL, strict=True)]
    assert np.abs(shown[0, 3, :3] - np.array(half)).max() <= 0.5
    assert 100 < shown[0, 3, 3] < 255


def test_large_images_are_reduced(image) -> None:
    assert picture(figures.image_uri(image(channels=3, side=400))).size == (192, 192)
    assert picture(figures.image_uri(image(channels=3, side=400))).format == "JPEG"
    assert picture(figures.image_uri(image(channels=2, side=100))).mode == "RGBA"


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 4, 4),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
    ],
)
def test_what_is_no_image(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"uint8 of shape \(C, H, W\)"):
        figures.image_uri(wrong)


def test_pair_grid(image) -> None:
    pairs = [(image(seed=i), image(seed=i).flip(0), f"class {i}") for i in range(5)]
    data = figures.pair_grid_data(pairs)
    assert [tile.label for tile in data.tiles] == [f"class {i}" for i in range(5)]
    assert all(tile.pixelated for tile in data.tiles)
    assert data.tiles[3].first == figures.image_uri(pairs[3][0])
    assert data.tiles[3].second == figures.image_uri(pairs[3][1])
    root = ET.fromstring(figures.draw_pair_grid(data, columns=3, size=50))
    assert root.attrib["viewBox"] == "0 0 174 268"  # 3 columns of 50 and 2 gaps of 12; 2 rows of 138 less 8
    images = list(root.iter("{http://www.w3.org/2000/svg}image"))
    assert [element.attrib["href"] for element in images[6:8]] == [data.tiles[3].first, data.tiles[3].second]
    assert [images[6].attrib[key] for key in "xy"] == ["0", "138"]
    assert [images[7].attrib[key] for key in "xy"] == ["0", "192"]  # second under first
    assert figures.draw_pair_grid(PairGrid(())) == ""
