"""What a run works on: from names, or from objects."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.config import RunConfig
from ipg.data import colored_fashion
from ipg.data.errors import DataError
from ipg.data.remembering import remembering
from ipg.data.table import ImageTable
from ipg.evaluation.features import features
from ipg.pairs import matched
from ipg.pairs.build import build
from ipg.pairs.pairset import PairSet
from ipg.seeds import derive_seed
from ipg.training import loop
from ipg.training import materials as module
from ipg.training.interrupt import Interrupted
from ipg.training.loop import train
from ipg.training.materials import Materials, gather

Make = Callable[..., RunConfig]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_everything_is_a_function_of_the_configuration(settings: Make, table: ImageTable) -> None:
    one, same, other = (gather(settings("ipg", seed=seed), table=table) for seed in (1, 1, 2))
    assert one.fingerprints() == same.fingerprints()
    assert torch.equal(weights(one.model), weights(same.model))
    assert one.fingerprints()["pairs"] != other.fingerprints()["pairs"]
    assert one.fingerprints()["held_out_pairs"] != other.fingerprints()["held_out_pairs"]
    assert not torch.equal(weights(one.model), weights(other.model))


def test_methods_of_one_seed_begin_from_the_same_network_and_pairs(settings: Make, table: ImageTable) -> None:
    erm, ipg, joint = (gather(settings(method), table=table) for method in ("erm", "ipg", "joint"))
    assert torch.equal(weights(erm.model), weights(ipg.model))
    assert ipg.fingerprints() == joint.fingerprints()
    assert erm.pairs is None
    assert erm.fingerprints()["held_out_pairs"] == ipg.fingerprints()["held_out_pairs"]


def test_pairs_come_from_their_splits(settings: Make, table: ImageTable) -> None:
    made = gather(settings("ipg", pairs=16, held_out_pairs=8), table=table)
    assert made.pairs is not None
    assert made.held_out is not None
    assert (len(made.pairs), len(made.held_out)) == (16, 8)
    assert set(table.split[made.pairs.source].flatten().tolist()) == {0}
    assert set(table.split[made.held_out.source].flatten().tolist()) == {1}


def test_no_pairs_where_none_are_wanted_or_possible(settings: Make, table: ImageTable, make_table: Any) -> None:
    made = gather(settings("ipg", pairs=0, held_out_pairs=0), table=table)
    assert made.pairs is None
    assert made.held_out is None
    assert gather(settings("erm"), table=make_table(validation=0)).held_out is None
    plain = replace(table.take(table.indices("train")), splits=("train",))
    assert gather(settings("erm"), table=plain).held_out is None


def test_the_global_generator_is_left_alone(settings: Make, table: ImageTable) -> None:
    before = torch.get_rng_state()
    gather(settings("ipg", pair_builder="random"), table=table)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_data_set_by_name() -> None:
    made = gather(RunConfig(data="colored_fashion", seed=3))
    assert made.named
    assert made.table.name == "colored_fashion"
    assert torch.equal(made.table.split, colored_fashion.load(seed=3).split)
    assert made.model(torch.zeros(1, 2, 14, 14)).shape == (1, 2)
    assert sum(p.numel() for p in made.model.parameters()) < 50_000  # the small network suits small images
    assert not gather(RunConfig(), table=made.table).named


@pytest.mark.parametrize(("size", "name"), [(14, "small_cnn"), (27, "small_cnn"), (28, "mnist_cnn"), (32, "mnist_cnn")])
def test_the_network_that_suits_the_images(table: ImageTable, size: int, name: str) -> None:
    images = torch.zeros(len(table), 2, size, size, dtype=torch.uint8)
    assert module.suited_model(replace(table, images=images)) == name


def test_photographs_need_a_network_that_is_named_or_to_be_small(table: ImageTable) -> None:
    images = torch.zeros(len(table), 3, 64, 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"images of 64 pixels need .* e\.g\. --model resnet50 .*: --size 32$"):
        module.suited_model(replace(table, images=images))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "ipg", "pairs": "nowhere", "model": "small_cnn"}, "there are no pairs at nowhere"),
        ({"method": "ipg", "pairs": 4, "model": "small_cnn"}, "method 'ipg' needs pairs, which cannot be made"),
        ({"size": 64}, "images of 64 pixels need a network of their kind"),
        ({}, "images of 224 pixels need a network of their kind"),
        ({"model": "smal_cnn"}, "there is no model 'smal_cnn'; did you mean small_cnn?"),
        ({"model": "resnet18", "weights": "none.pth"}, "there is no file none.pth with weights"),
        ({"start": "none"}, "there is no model 'none'"),
    ],
)
def test_mistakes_that_show_without_the_images_do_not_wait_for_them(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())  # no image: who decoded it would say so
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    with pytest.raises((ValueError, DataError), match=re.escape(says)):
        gather(RunConfig.from_mapping({"method": "erm", "data": str(tmp_path), **changes}))


def test_pairs_of_another_size_do_not_wait_for_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("photos/cat/1.png", "photos/dog/1.png", "pairs/a.png", "pairs/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "pairs" / "manifest.csv").write_text("first,second,label,split\na.png,b.png,cat,train\n")
    (tmp_path / "pairs" / "build.json").write_text('{"train": {"settings": {"size": 32}, "pairs": ""}}')
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    config = {"data": str(tmp_path / "photos"), "pairs": str(tmp_path / "pairs"), "model": "small_cnn", "size": 48}
    with pytest.raises(DataError, match="the pairs are of images of 32 pixels, the network is to see 48"):
        gather(RunConfig.from_mapping(config))


def test_unknown_names(settings: Make, table: ImageTable) -> None:
    for changes, message in [
        ({"method": "quack"}, "there is no method 'quack'"),
        ({"model": "vit"}, "there is no model 'vit'"),
        ({"pair_builder": "guessed"}, "unknown pair builder 'guessed'"),
    ]:
        with pytest.raises(ValueError, match=message):
            gather(settings(**changes), table=table)
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        gather(settings(data="imagenet"))


# -- objects that do not fit together --------------------------------------------------------------------------------


@pytest.fixture
def made(settings: Make, table: ImageTable) -> Materials:
    return gather(settings("ipg"), table=table)


def changed(pairs: PairSet | None, **values: Any) -> PairSet:
    assert pairs is not None
    return replace(pairs, **values)


def test_pairs_of_another_split(made: Materials) -> None:
    with pytest.raises(ValueError, match="pairs must come from the train split, these are from 'test'"):
        replace(made, pairs=changed(made.pairs, split="test"))
    with pytest.raises(ValueError, match="held_out must come from the validation split, these are from 'train'"):
        replace(made, held_out=made.pairs)


def test_pairs_of_another_shape(made: Materials) -> None:
    small = changed(made.pairs).map(lambda images: images[:, :, :4, :4])
    with pytest.raises(ValueError, match=r"pairs hold images of shape \(2, 4, 4\), the data .* of shape \(2, 8, 8\)"):
        replace(made, pairs=small)


def test_pairs_of_other_classes(made: Materials) -> None:
    assert made.pairs is not None
    with pytest.raises(ValueError, match=r"pairs have labels 1…2, the data 0…1"):
        replace(made, pairs=changed(made.pairs, label=made.pairs.label + 1))


def test_fingerprints_notice_every_change(made: Materials) -> None:
    before = made.fingerprints()
    table = made.table
    for column in ("label", "attribute", "split", "environment"):
        other = getattr(table, column).clone()
        other[7] = 1 - other[7]
        assert replace(made, table=replace(table, **{column: other})).fingerprints()["table"] != before["table"]
    images = table.images.clone()
    images[3, 0, 0, 0] ^= 1
    assert replace(made, table=replace(table, images=images)).fingerprints()["table"] != before["table"]
    pairs = changed(made.pairs).map(lambda images: images.flip(0))
    found = replace(made, pairs=pairs).fingerprints()
    assert {name for name in before if found[name] != before[name]} == {"pairs"}
    other_network = replace(made, model=nn.Linear(3, 2)).fingerprints()
    assert {name for name in before if other_network[name] != before[name]} == {"network"}


def test_fingerprints_are_those_of_all_bytes_and_follow_changes_in_place(made: Materials) -> None:
    def naive() -> str:
        digest = hashlib.sha256()
        for column in ("images", "label", "attribute", "split", "environment"):
            values = getattr(made.table, column)
            digest.update(repr((tuple(values.shape), values.dtype)).encode() + values.numpy().tobytes())
        return digest.hexdigest()[:16]

    before = made.fingerprints()["table"]
    assert before == naive() == made.fingerprints()["table"]
    made.table.images[5, 1, 2, 3] ^= 1
    assert made.fingerprints()["table"] == naive() != before


def test_fingerprints_of_tensors_made_in_inference_mode(made: Materials) -> None:
    """As pairs are that a generative model has edited; they have no version, and are read anew each time."""
    assert made.pairs is not None
    with torch.inference_mode():
        pairs = replace(made.pairs, first=made.pairs.first.clone())
    edited = replace(made, pairs=pairs)
    assert edited.fingerprints() == made.fingerprints()
    with torch.inference_mode():
        pairs.first[0] += 1
    assert edited.fingerprints()["pairs"] != made.fingerprints()["pairs"]


def test_pairs_of_a_file_are_read_once_for_a_table(
    settings: Make, table: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def load_pairs(file: str, table: ImageTable, *, split: str) -> PairSet:
        read.append(split)
        return build("recolored", table, 4, split=split, seed=0)

    monkeypatch.setattr("ipg.pairs.manifest.load_pairs", load_pairs)
    with remembering():
        one, same = (gather(settings("ipg", pairs="made"), table=table) for _ in range(2))
        assert read == ["train", "validation"]
        assert one.pairs is not None
        assert same.pairs is not None
        assert one.pairs.first is same.pairs.first
        gather(settings("ipg", pairs="made"), table=replace(table))
        gather(settings("ipg", pairs="others"), table=table)
    gather(settings("ipg", pairs="made"), table=table)
    assert read == ["train", "validation"] * 4


# -- features and closest pairs --------------------------------------------------------------------------------------


def test_features_are_what_enters_the_head(made: Materials) -> None:
    found = features(made.model, made.table.images)
    assert found.shape == (200, 32)
    model = made.model
    with torch.no_grad():
        logits = model(made.table.images.float() / 255)
        torch.testing.assert_close(model.head(found), logits, atol=1e-5, rtol=1e-4)  # type: ignore[operator, union-attr]
    assert not found.requires_grad
    assert not any(module._forward_hooks for module in model.modules())


@pytest.fixture(scope="module")
def clothes() -> ImageTable:
    """A part of coloured fashion in which all four groups have training images."""
    table = colored_fashion.load(protocol="noisy")
    counts = {"train": 600, "validation": 300, "test": 50}
    return table.take(torch.cat([table.indices(split)[:n] for split, n in counts.items()]))


def test_closest_pairs_are_found_in_an_oracles_features(settings: Make, clothes: ImageTable) -> None:
    config = settings("ipg", epochs=1, batch=64, pairs=8, held_out_pairs=4, pair_builder="closest", selection="pairs")
    before = torch.get_rng_state()
    made = gather(config, table=clothes)
    assert torch.equal(torch.get_rng_state(), before)
    oracle = config.with_changes(method="oracle", held_out_pairs=0, pair_builder="recolored", selection="last")
    given = gather(oracle, table=clothes)
    model = train(oracle, given).model
    for pairs, split in ((made.pairs, "train"), (made.held_out, "validation")):
        assert pairs is not None
        assert pairs.builder == "closest"
        first, second = pairs.source.unbind(dim=1)
        assert torch.equal(clothes.label[first], clothes.label[second])
        assert torch.equal(clothes.content[first], clothes.content[second])
        assert torch.equal(clothes.attribute[first], 1 - clothes.attribute[second])
        known = features(model, given.table.images)
        seed = derive_seed(config.seed, "pairs", split)
        expected = matched.closest(clothes, known, len(pairs), split=split, seed=seed)
        assert torch.equal(pairs.source, expected.source)
    assert train(config, made).result["selection"] == "pairs"


def test_finding_closest_pairs_trains_one_oracle_and_reads_no_test_image(
    settings: Make, clothes: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = clothes.images.clone()
    images[clothes.indices("test")] = 251
    built: list[nn.Module] = []

    def alarm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if (inputs[0] >= 251 / 255).flatten(1).all(dim=1).any():
            raise AssertionError("a test image was read")

    real = module.build_model

    def build(*arguments: Any, **options: Any) -> nn.Module:
        model = real(*arguments, **options)
        model.register_forward_pre_hook(alarm)
        built.append(model)
        return model

    monkeypatch.setattr(module, "build_model", build)
    config = settings("ipg", epochs=1, batch=64, pairs=8, held_out_pairs=4, pair_builder="closest")
    gather(config, table=replace(clothes, images=images))
    assert len(built) == 2  # the oracle and the network itself


def test_a_stop_at_the_end_of_the_oracles_training_comes_before_the_run(
    settings: Make, clothes: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = loop.Training._finish

    def late(run: loop.Training) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(run)

    monkeypatch.setattr(loop.Training, "_finish", late)
    config = settings("ipg", epochs=1, batch=64, pairs=8, held_out_pairs=4, pair_builder="closest")
    with pytest.raises(Interrupted, match="stopped before the pairs were found"):
        gather(config, table=clothes)


def test_images_stay_where_they_are_if_they_would_take_too_much_of_a_gpu(
    settings: Make, table: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are then streamed."""
    size = table.images.nbytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * size, 10 * size))
    cuda = torch.device("cuda")
    assert module._fits(table.images, cuda, 0.5)
    assert not module._fits(table.images, cuda, 0.49)
    assert module._fits(table.images, torch.device("cpu"), 0.0)
    assert gather(settings("erm"), table=table).to(torch.device("cpu"), resident=0.0).table.images is table.images
