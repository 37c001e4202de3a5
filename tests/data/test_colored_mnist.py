import pytest
import torch

from ipg.data import colored_mnist
from ipg.data.colored_mnist import Protocol
from ipg.data.coloring import halve
from ipg.data.mnist import Digits
from ipg.data.table import ImageTable

DOMAINBED: tuple[Protocol, ...] = ("paper", "clean", "train_noise")


@pytest.fixture(scope="module")
def tables(digits: Digits) -> dict[Protocol, ImageTable]:
    return {protocol: colored_mnist.load(digits, protocol=protocol, size=14) for protocol in (*DOMAINBED, "irm")}


def sizes(table: ImageTable) -> dict[tuple[str, int], int]:
    """Images by split and environment."""
    found = {(split, e): int((table.part(split).environment == e).sum()) for split in table.splits for e in range(3)}
    return {key: count for key, count in found.items() if count}


def check_share(bits: torch.Tensor, expected: float) -> None:
    """`bits` are true as often as independent draws with this probability are: within four standard deviations."""
    deviation = (expected * (1 - expected) / len(bits)) ** 0.5
    assert float(bits.double().mean()) == pytest.approx(expected, abs=4 * deviation)


@pytest.mark.parametrize("protocol", DOMAINBED)
def test_split_sizes_are_domainbeds(tables: dict[Protocol, ImageTable], protocol: Protocol) -> None:
    assert tables[protocol].splits == ("train", "validation", "search", "test")
    assert sizes(tables[protocol]) == {
        ("train", 0): 18_668,
        ("train", 1): 18_667,
        ("validation", 0): 4_666,
        ("validation", 1): 4_666,
        ("search", 2): 4_666,
        ("test", 2): 18_667,
    }


def test_irm_sizes_and_empty_validation(tables: dict[Protocol, ImageTable]) -> None:
    table = tables["irm"]
    assert sizes(table) == {("train", 0): 25_000, ("train", 1): 25_000, ("search", 2): 10_000, ("test", 2): 10_000}
    assert len(table.indices("validation")) == 0
    assert table.indices("test").tolist() == list(range(50_000, 60_000))
    assert table.indices("search").tolist() == list(range(60_000, 70_000))
    for split in ("search", "test"):
        part = table.part(split)
        check_share(part.attribute == part.label, 0.1)
        check_share(part.label == (part.content < 5), 0.75)


@pytest.mark.parametrize("seed", [0, 3])
def test_what_irm_searches_with_leaves_training_and_test_as_they_were(digits: Digits, seed: int) -> None:
    """By hand as before there was such a split: places, then 60,000 wrong labels or not, then as many colours."""
    generator = torch.Generator().manual_seed(seed)
    environment = torch.full((60_000,), 2)
    environment[:50_000] = 1 - torch.randperm(50_000, generator=generator) % 2
    wrong, other = (torch.rand(60_000, generator=generator) for _ in range(2))
    label = (digits.labels[:60_000] < 5) ^ (wrong < 0.25)
    color = label ^ (other < torch.tensor([0.1, 0.2, 0.9])[environment])
    table = colored_mnist.load(digits, protocol="irm", seed=seed)
    assert torch.equal(table.environment[:60_000], environment)
    assert torch.equal(table.label[:60_000], label.long())
    assert torch.equal(table.attribute[:60_000], color.long())
    assert torch.equal(table.images.sum(dim=1)[:60_000], digits.images[:60_000, ::2, ::2].long())


def test_irm_deals_shuffled_digits_in_turn(tables: dict[Protocol, ImageTable]) -> None:
    place = torch.randperm(50_000, generator=torch.Generator().manual_seed(0))
    table = tables["irm"]
    assert set(table.environment[:50_000][place % 2 == 0].tolist()) == {1}  # e = 0.2
    assert set(table.environment[:50_000][place % 2 == 1].tolist()) == {0}  # e = 0.1


def test_dair_trains_on_the_first_third_tests_on_the_last_and_searches_between(digits: Digits) -> None:
    table = colored_mnist.load(digits, protocol="dair")
    assert sizes(table) == {("train", 1): 20_000, ("search", 2): 20_000, ("test", 2): 20_000}
    assert table.splits == ("train", "validation", "search", "test")
    assert table.name == "colored_mnist_dair"
    assert table.images.shape == (60_000, 3, 28, 28)
    assert not table.images[:, 2].any()
    for split, first, agreement in (("train", 0, 0.8), ("search", 20_000, 0.1), ("test", 40_000, 0.1)):
        part, rows = table.part(split), slice(first, first + 20_000)  # so no digit is in two splits
        assert torch.equal(part.content, digits.labels[rows])
        assert torch.equal(part.images.amax(dim=1), digits.images[rows])
        check_share(part.attribute == part.label, agreement)
        check_share(part.label == (part.content < 5), 0.75)


@pytest.mark.parametrize("seed", [0, 3])
def test_what_dair_searches_with_leaves_training_and_test_as_they_were(digits: Digits, seed: int) -> None:
    """By hand as before there was such a split: 40,000 wrong labels or not, then as many colours."""
    generator = torch.Generator().manual_seed(seed)
    wrong, other = (torch.rand(40_000, generator=generator) for _ in range(2))
    rows = torch.cat([torch.arange(20_000), torch.arange(40_000, 60_000)])
    label = (digits.labels[rows] < 5) ^ (wrong < 0.25)
    color = label ^ (other < torch.tensor([0.2, 0.9]).repeat_interleave(20_000))
    table = colored_mnist.load(digits, protocol="dair", seed=seed)
    for split, here in (("train", slice(0, 20_000)), ("test", slice(20_000, 40_000))):
        part = table.part(split)
        assert table.indices(split).tolist() == list(range(40_000))[here]
        assert torch.equal(part.label, label[here].long())
        assert torch.equal(part.attribute, color[here].long())
        drawn = part.images[torch.arange(20_000), part.attribute]
        assert torch.equal(drawn, digits.images[rows[here]])
        assert torch.equal(part.images.sum(dim=1), drawn.long())  # the other channels are black


@pytest.mark.parametrize("test", [0, 1, 2])
def test_another_environment_to_test_on(digits: Digits, tables: dict[Protocol, ImageTable], test: int) -> None:
    table = colored_mnist.load(digits, size=14, test=test)
    assert table.name == f"colored_mnist_test{test}"
    assert {key for key in sizes(table) if key[0] in ("search", "test")} == {("search", test), ("test", test)}
    assert {e for split, e in sizes(table) if split in ("train", "validation")} == {0, 1, 2} - {test}
    assert len(table.indices("train")) == 70_000 - len(table.indices("test")) - 3 * 4_666
    for column in ("images", "label", "attribute", "environment"):  # only the splits are others
        assert torch.equal(getattr(table, column), getattr(tables["paper"], column))
    assert torch.equal(table.split, tables["paper"].split) == (test == 2)


def test_names(tables: dict[Protocol, ImageTable]) -> None:
    assert {protocol: table.name for protocol, table in tables.items()} == {
        "paper": "colored_mnist",
        "clean": "colored_mnist_clean",
        "train_noise": "colored_mnist_train_noise",
        "irm": "colored_mnist_irm",
    }


@pytest.mark.parametrize("protocol", ["paper", "clean", "irm"])
def test_a_classifier_by_color_gets_90_80_and_10_percent(
    tables: dict[Protocol, ImageTable], protocol: Protocol
) -> None:
    table = tables[protocol]
    for environment, accuracy in enumerate((0.9, 0.8, 0.1)):
        here = table.environment == environment
        check_share((table.attribute == table.label)[here], accuracy)


@pytest.mark.parametrize("protocol", ["paper", "irm"])
def test_a_quarter_of_labels_is_flipped_in_every_split(tables: dict[Protocol, ImageTable], protocol: Protocol) -> None:
    table = tables[protocol]
    for split in filter(lambda name: len(table.indices(name)), table.splits):
        part = table.part(split)
        check_share(part.label == (part.content < 5), 0.75)
        wrong = part.label != (part.content < 5)
        check_share(wrong[part.attribute == 0], float(wrong.double().mean()))  # noise knows nothing of colour


def test_color_follows_the_noisy_label(tables: dict[Protocol, ImageTable]) -> None:
    table = tables["paper"]
    wrong = table.label != (table.content < 5)
    check_share((table.attribute == table.label)[wrong & (table.environment == 0)], 0.9)


def test_clean_has_no_noise(tables: dict[Protocol, ImageTable]) -> None:
    assert torch.equal(tables["clean"].label, (tables["clean"].content < 5).long())


def test_train_noise_flips_after_coloring_and_never_in_test(tables: dict[Protocol, ImageTable]) -> None:
    table = tables["train_noise"]
    clean = (table.content < 5).long()
    test = table.split == table.splits.index("test")
    assert torch.equal(table.label[test], clean[test])
    check_share((table.label != clean)[~test], 0.25)
    for environment, agreement in enumerate((0.9, 0.8, 0.1)):
        here = table.environment == environment
        check_share((table.attribute == clean)[here], agreement)
        both = agreement * 0.75 + (1 - agreement) * 0.25
        check_share((table.attribute == table.label)[here & ~test], both)


def test_protocols_of_a_seed_share_splits_and_flips(tables: dict[Protocol, ImageTable]) -> None:
    paper, clean, train_noise = (tables[protocol] for protocol in DOMAINBED)
    assert torch.equal(paper.split, clean.split)
    assert torch.equal(paper.split, train_noise.split)
    train = paper.indices("train")
    assert torch.equal(paper.label[train], train_noise.label[train])


def test_digit_stands_in_its_channel_alone(digits: Digits) -> None:
    small = Digits(digits.images[:90], digits.labels[:90], train=60)
    table = colored_mnist.load(small)
    rows = torch.arange(90)
    assert table.images.dtype == torch.uint8
    assert torch.equal(table.images[rows, table.attribute], small.images)
    assert not table.images[rows, 1 - table.attribute].any()
    assert torch.equal(table.content, small.labels)


def test_sizes_in_pixels(digits: Digits) -> None:
    small = Digits(digits.images[:90], digits.labels[:90], train=60)
    halved, irm = colored_mnist.load(small, size=14), colored_mnist.load(small, protocol="irm")
    assert torch.equal(halved.images.sum(dim=1), halve(small.images).long())
    assert torch.equal(irm.images.sum(dim=1), small.images[:, ::2, ::2].long())
    assert colored_mnist.load(small, protocol="irm", size=28).images.shape == (90, 2, 28, 28)


def test_same_seed_same_bits_and_other_seeds_draw_anew(digits: Digits) -> None:
    small = Digits(digits.images[:3_000], digits.labels[:3_000], train=2_400)
    for protocol in (*DOMAINBED, "irm"):
        one, again, other = (colored_mnist.load(small, protocol=protocol, seed=seed) for seed in (4, 4, 5))
        for column in ("images", "label", "attribute", "split", "environment", "content"):
            assert torch.equal(getattr(one, column), getattr(again, column))
        for column in ("images", "attribute", "environment"):
            assert not torch.equal(getattr(one, column), getattr(other, column))
        assert torch.equal(one.images.sum(dim=1), other.images.sum(dim=1))


def test_unknown_protocol_and_size(digits: Digits) -> None:
    with pytest.raises(ValueError, match="unknown protocol 'perfect' of ColoredMNIST; it has paper, irm, clean"):
        colored_mnist.load(digits, protocol="perfect")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size=32 is out of range"):
        colored_mnist.load(digits, size=32)
    with pytest.raises(ValueError, match="test=3 is out of range: 0, 1 or 2 with protocol='paper', and none with the"):
        colored_mnist.load(digits, test=3)
    with pytest.raises(ValueError, match="test=2 is out of range"):
        colored_mnist.load(digits, protocol="irm", test=2)


def test_real_digits(mnist: Digits) -> None:
    """Pinned: seed 0 draws the same data on every machine."""
    table = colored_mnist.load(mnist)
    assert table.images.shape == (70_000, 2, 28, 28)
    groups = {split: table.part(split).group.bincount(minlength=4).tolist() for split in table.splits}
    assert groups == {
        "train": [15622, 2787, 2830, 16096],
        "validation": [3962, 653, 731, 3986],
        "search": [255, 2086, 2092, 233],
        "test": [974, 8373, 8429, 891],
    }


def test_real_digits_of_dair(mnist: Digits) -> None:
    """Pinned; those of `train` and `test` were so before there was a split to search with."""
    table = colored_mnist.load(mnist, protocol="dair")
    groups = {split: table.part(split).group.bincount(minlength=4).tolist() for split in table.splits}
    assert groups == {
        "train": [7923, 1940, 2001, 8136],
        "validation": [0, 0, 0, 0],
        "search": [1068, 8853, 9132, 947],
        "test": [1032, 8888, 9141, 939],
    }
