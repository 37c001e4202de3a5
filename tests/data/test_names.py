import pytest

from ipg.config import RunConfig
from ipg.data.load import DATASETS, OWN
from ipg.data.names import NAMED, is_own
from ipg.experiments.study import Trial


def test_all_data_sets_but_ones_own_are_named() -> None:
    assert set(NAMED) == set(DATASETS) - {OWN}
    assert len(NAMED) == len(set(NAMED))


@pytest.mark.parametrize("name", ["folder", "photos", "./celeba", "celeba/labels.csv", "/waterbirds100", "x.csv"])
def test_paths_are_ones_own(name: str) -> None:
    assert is_own(name)


@pytest.mark.parametrize("name", ["celeba", "celeba:Smiling/Male", "celeba-subset", "colored-mnist", "waterbirds100"])
def test_names_are_not(name: str) -> None:
    assert not is_own(name)


def key(data: str, seed: int, split_seed: int) -> str:
    config = RunConfig(data=data, seed=seed, split_seed=split_seed)
    return Trial("compare", data, "erm", "own", seed, config).key


def test_rows_of_ones_own_images_count_where_they_have_the_same_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were written before `split_seed` joined had their split drawn by the seed."""
    new = ("split_seed", "path_column", "label_column", "attribute_column")
    flat = RunConfig.flat
    with monkeypatch.context() as before:
        before.setattr(RunConfig, "flat", lambda config: {k: v for k, v in flat(config).items() if k not in new})
        old = {(data, seed): key(data, seed, 0) for data in ("photos.csv", "celeba") for seed in (0, 3)}
    assert key("photos.csv", 0, 0) == old["photos.csv", 0]
    assert key("photos.csv", 3, 3) == old["photos.csv", 3]
    assert key("photos.csv", 3, 0) != old["photos.csv", 3]
    assert key("photos.csv", 0, 3) != old["photos.csv", 0]
    assert [key("celeba", seed, 0) for seed in (0, 3)] == [old["celeba", 0], old["celeba", 3]]
