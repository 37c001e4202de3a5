import hashlib
import json
from pathlib import Path

import pytest
import torch

from ipg.data import colored_fashion
from ipg.data.coloring import halve
from ipg.data.errors import DataError
from ipg.data.table import ImageTable


@pytest.fixture(scope="module")
def perfect() -> ImageTable:
    return colored_fashion.load()


@pytest.fixture(scope="module")
def noisy() -> ImageTable:
    return colored_fashion.load(protocol="noisy")


def agreement(table: ImageTable, split: str) -> float:
    """The accuracy of a classifier that looks at the colour alone."""
    part = table.part(split)
    return float((part.label == part.attribute).double().mean())


def is_positive(table: ImageTable) -> torch.Tensor:
    return torch.isin(table.content, torch.tensor([5, 7, 8, 9])).long()


def test_shape_and_names(perfect: ImageTable, noisy: ImageTable) -> None:
    assert perfect.images.shape == (20_000, 2, 14, 14)
    assert (perfect.name, noisy.name) == ("colored_fashion", "colored_fashion_noisy")
    assert perfect.classes == ("garment", "footwear or bag")
    assert perfect.attributes == ("red", "green")
    assert {split: len(perfect.indices(split)) for split in perfect.splits} == {
        "train": 12_000,
        "validation": 2_000,
        "test": 6_000,
    }


def test_perfect_shortcut_has_half_of_the_groups_before_test(perfect: ImageTable) -> None:
    """Pinned: seed 0 draws the same data on every machine."""
    groups = {split: perfect.part(split).group.bincount(minlength=4).tolist() for split in perfect.splits}
    assert groups == {"train": [7279, 0, 0, 4721], "validation": [1198, 0, 0, 802], "test": [353, 3207, 2204, 236]}


def test_perfect_labels_are_clean(perfect: ImageTable) -> None:
    assert torch.equal(perfect.label, is_positive(perfect))
    assert agreement(perfect, "test") == pytest.approx(0.1, abs=4 * (0.09 / 6_000) ** 0.5)


def test_noisy_labels_and_colors(noisy: ImageTable) -> None:
    for split, colors in (("train", 0.85), ("validation", 0.85), ("test", 0.1)):
        part = noisy.part(split)
        flipped = float((part.label != is_positive(part)).double().mean())
        assert flipped == pytest.approx(0.25, abs=4 * (0.1875 / len(part)) ** 0.5)
        assert agreement(noisy, split) == pytest.approx(colors, abs=4 * (colors * (1 - colors) / len(part)) ** 0.5)


def test_noisy_color_follows_the_flipped_label(noisy: ImageTable) -> None:
    """Among mislabelled training images colour agrees with the wrong label, hence disagrees with the right one."""
    part = noisy.part("train")
    wrong = part.label != is_positive(part)
    assert float((part.attribute == part.label)[wrong].double().mean()) == pytest.approx(0.85, abs=0.03)


def test_image_stands_in_its_channel_alone(noisy: ImageTable) -> None:
    rows = torch.arange(len(noisy))
    assert not noisy.images[rows, 1 - noisy.attribute].any()
    assert noisy.images[rows, noisy.attribute].flatten(1).any(dim=1).all()


def test_fourteen_pixels_are_means_of_twenty_eight(perfect: ImageTable) -> None:
    large = colored_fashion.load(size=28)
    assert large.images.shape == (20_000, 2, 28, 28)
    assert torch.equal(halve(large.images.flatten(0, 1)).view_as(perfect.images), perfect.images)
    assert torch.equal(large.label, perfect.label)


def test_same_seed_same_bits(perfect: ImageTable) -> None:
    again = colored_fashion.load(seed=0)
    for column in ("images", "label", "attribute", "split", "content"):
        assert torch.equal(getattr(again, column), getattr(perfect, column))


def test_other_seed_draws_splits_and_colors_anew_over_the_same_images(perfect: ImageTable) -> None:
    other = colored_fashion.load(seed=1)
    assert float((other.split == perfect.split).double().mean()) < 0.6  # by chance 0.6² + 0.1² + 0.3² = 0.46
    assert not torch.equal(other.attribute, perfect.attribute)
    assert torch.equal(other.images.sum(dim=1), perfect.images.sum(dim=1))
    assert torch.equal(other.content, perfect.content)


def test_protocols_of_a_seed_share_their_splits(perfect: ImageTable, noisy: ImageTable) -> None:
    assert torch.equal(perfect.split, noisy.split)


def test_facts_beside_the_sprite_are_true() -> None:
    facts = json.loads(colored_fashion.FACTS.read_text(encoding="utf-8"))
    assert facts["sha256"] == hashlib.sha256(colored_fashion.SPRITE.read_bytes()).hexdigest()
    assert "MIT" in facts["license"]
    assert "Zalando" in facts["license"]
    assert facts["permutation"] == "numpy.random.default_rng(0).permutation(60000)[:20000]"
    counts = [facts["labels"].count(str(kind)) for kind in range(10)]
    assert sum(counts) == 20_000
    assert min(counts) > 1_850  # 2,000 each in expectation


def test_images_and_labels_are_those_of_the_source() -> None:
    """Pinned: sha256 of the chosen images, then their labels, as bytes, computed from the idx files alone."""
    table = colored_fashion.load(size=28)
    grey = table.images.sum(dim=1, dtype=torch.uint8)
    digest = hashlib.sha256(grey.numpy().tobytes() + table.content.to(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == "0a8b66b0258b5a0e7f7bf44fc4cf6a96b22844d0c0073516c6e1c20e640126c2"


def test_one_changed_byte_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(colored_fashion.SPRITE.read_bytes())
    data[len(data) // 2] ^= 1
    broken = tmp_path / "broken.png"
    broken.write_bytes(data)
    monkeypatch.setattr(colored_fashion, "SPRITE", broken)
    with pytest.raises(DataError, match=r"broken\.png is corrupt: .*install ipg again"):
        colored_fashion.load()


@pytest.mark.parametrize("content", [None, "", "{", "{}", '{"labels": "12"}', '{"labels": "x"}', "[]"])
def test_missing_or_broken_facts_give_one_clear_error(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "facts.json"
    if content is not None:
        facts.write_text(content)
    monkeypatch.setattr(colored_fashion, "FACTS", facts)
    with pytest.raises(DataError, match="the embedded images are missing or corrupt"):
        colored_fashion.load()


def test_labels_cut_short_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(colored_fashion.FACTS.read_text(encoding="utf-8"))
    facts["labels"] = facts["labels"][:-1]
    cut = tmp_path / "facts.json"
    cut.write_text(json.dumps(facts))
    monkeypatch.setattr(colored_fashion, "FACTS", cut)
    with pytest.raises(DataError, match="corrupt"):
        colored_fashion.load()


def test_unknown_protocol_and_size() -> None:
    with pytest.raises(ValueError, match="unknown protocol 'paper' of coloured fashion; it has perfect, noisy"):
        colored_fashion.load(protocol="paper")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size=16 is out of range"):
        colored_fashion.load(size=16)
