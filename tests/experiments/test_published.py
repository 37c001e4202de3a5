"""The paper's figures, every cell of every table; the sums below were taken from its tables one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from ipg.experiments.arms import published

CELLS = {
    "tab:perf_colored_mnist": (11, 707.1, 6.6),
    "tab:perf_waterbird": (24, 1699.5, 53.0),
    "tab:perf_celeba": (14, 1174.0, 16.1),
    "tab:pair-sensitivity": (12, 910.0, 39.7),
    "tab:app_sensitivity_cmnist": (9, 320.1, 59.1),
    "tab:app_sensitivity_real": (18, 1348.5, 61.3),
    "tab:control-batch-size-sensitivity": (9, 700.7, 26.4),
    "tab:app_ablation": (9, 579.1, 32.3),
    "tab:label_noise_ablation": (2, 192.1, 4.7),
    "tab:pair-strategy": (3, 202.6, 3.8),
    "tab:computational_complexity": (12, 20.0, 0.0),
    "fig:full-batch": (1, 0.6, 0.0),
}
"""Cells, the sum of their means, the sum of their deviations."""


@pytest.mark.parametrize("table", CELLS)
def test_every_cell_is_there(table: str) -> None:
    figures = [figure for figure in published() if figure.table == table]
    cells, means, deviations = CELLS[table]
    assert len(figures) == cells
    assert sum(figure.mean for figure in figures) == pytest.approx(means)
    assert sum(figure.spread or 0 for figure in figures) == pytest.approx(deviations)


def test_there_is_no_other_table_and_no_cell_twice() -> None:
    assert {figure.table for figure in published()} == set(CELLS)
    cells = Counter((figure.table, figure.dataset, figure.approach, figure.metric) for figure in published())
    assert max(cells.values()) == 1


@pytest.mark.parametrize(
    ("table", "dataset", "metric", "approach", "mean", "spread"),
    [
        ("tab:perf_waterbird", "waterbirds100_reverse", "worst_group", "EPG IxG", 56.5, 3.7),
        ("tab:perf_waterbird", "waterbirds100", "average", "EPG X-DNN", 73.1, 3.4),
        ("tab:perf_celeba", "celeba", "worst_group", "GroupDRO", 88.9, 2.3),
        ("tab:app_sensitivity_cmnist", "colored_mnist", "average", "alpha 0.5, tau 0.1", 59.9, 14.5),
        ("tab:app_sensitivity_cmnist", "colored_mnist", "average", "alpha 0.1, tau 0.5", 33.2, 6.6),
        ("tab:app_sensitivity_real", "waterbirds100", "worst_group", "alpha 0.9, tau 0.1", 79.7, 1.3),
        ("tab:app_sensitivity_real", "celeba", "worst_group", "alpha 0.9, tau 0.5", 74.5, 5.7),
        ("tab:control-batch-size-sensitivity", "waterbirds100", "worst_group", "pair batch 32", 86.6, 1.0),
        ("tab:app_ablation", "celeba", "worst_group", "IPG", 74.7, 8.8),
        ("tab:app_ablation", "waterbirds100", "worst_group", "Continuous Correction", 86.1, 2.0),
        ("tab:pair-strategy", "colored_mnist", "average", "closest", 67.2, 1.0),
    ],
)
def test_cells_stand_where_they_belong(
    table: str, dataset: str, metric: str, approach: str, mean: float, spread: float
) -> None:
    (figure,) = [
        figure
        for figure in published()
        if (figure.table, figure.dataset, figure.metric, figure.approach) == (table, dataset, metric, approach)
    ]
    assert (figure.mean, figure.spread) == (mean, spread)


def test_the_share_of_training_data_stands_beside_the_number_of_pairs() -> None:
    shares = {
        (figure.dataset, figure.approach): figure.share
        for figure in published()
        if figure.table == "tab:pair-sensitivity"
    }
    assert shares["colored_mnist", "IPG, 1208 pairs"] == 3.2
    assert shares["waterbirds100", "IPG, 1208 pairs"] == 25.2
    assert shares["celeba", "IPG, 40 pairs"] == 0.02
    assert None not in shares.values()


def test_published_figures_are_the_papers() -> None:
    figures = published()
    assert sum(figure.method is not None for figure in figures) == 10
    assert sum(figure.table == "tab:perf_colored_mnist" for figure in figures) == 11
    found = {figure.approach: (figure.mean, figure.spread) for figure in figures if figure.dataset == "colored_mnist"}
    assert found["DIAR-RA"] == (73.1, 0.1)
    assert found["NCM"] == (69.3, None)
    assert found["IPG, 388 pairs"] == (72.1, 1.2)
