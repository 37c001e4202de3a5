import pytest
import torch

from ipg.data.table import ImageTable
from ipg.pairs import matched, recolored
from ipg.pairs.build import BUILDERS, build


def test_every_builder_by_its_name(table: ImageTable) -> None:
    features = torch.randn(len(table), 4, generator=torch.Generator().manual_seed(0))
    options = {"split": "validation", "seed": 3}
    expected = {
        "recolored": recolored.build(table, 12, split="validation", seed=3),
        "random": matched.random(table, 12, split="validation", seed=3),
        "closest": matched.closest(table, features, 12, split="validation", seed=3),
    }
    assert set(BUILDERS) == set(expected)
    for name, pairs in expected.items():
        given = {"features": features} if name == "closest" else {}
        found = build(name, table, 12, **options, **given)  # type: ignore[arg-type]
        assert torch.equal(found.source, pairs.source)
        assert (found.builder, found.split) == (name, "validation")


def test_unknown_builder(table: ImageTable) -> None:
    with pytest.raises(ValueError, match="unknown pair builder 'flux'; there are recolored, random, closest"):
        build("flux", table, 4)


def test_features_where_they_belong(table: ImageTable) -> None:
    with pytest.raises(ValueError, match="'closest' pairs need features"):
        build("closest", table, 4)
    with pytest.raises(ValueError, match="'random' pairs take no features"):
        build("random", table, 4, features=torch.zeros(len(table), 2))
