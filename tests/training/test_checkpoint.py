"""Checkpoints: every state comes back as it was, and what is no checkpoint is named."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ipg.training.checkpoint import WITHOUT_CHECKSUM, CheckpointError, load_checkpoint, save_checkpoint

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equality down to dtypes, bits and the types of containers and keys."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one.isnan(), other.isnan())
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        keys = [(type(key), key) for key in one]
        return keys == [(type(key), key) for key in other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other or (one != one and other != other))


def round_trip(path: Path, state: Any) -> Any:
    save_checkpoint(path, state)
    return load_checkpoint(path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_and_shape(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(-3, 9).to(dtype)
    state = {"flat": values, "shaped": values.view(2, 3, 2), "scalar": values[0], "empty": values[:0].view(0, 4)}
    assert same(round_trip(tmp_path / "c", state), state)


@pytest.mark.parametrize(
    "state",
    [
        {"a": {"b": {"c": [1, (2.5, None, "x"), {}]}}, "t": (torch.ones(2), [torch.zeros(())])},
        {0: "int key", 1: {2: torch.ones(1)}, "0": "text key"},
        {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1), "a/b'": torch.full((1,), 2.0)},  # names that meet
        {"a/b": torch.zeros(1), "a/b'": torch.ones(1), "a": {"b": torch.full((1,), 2.0)}},  # twice
        {"tensor": "x", "dict": [["a", 1]], "tuple": ()},  # what the form itself is written in
        {"true": True, "one": 1, "float": 1.0, "none": None, "inf": float("inf"), "nan": float("nan"), "big": 2**70},
        {"nan": torch.tensor([float("nan"), -0.0])},
        [],
        (),
        {},
        None,
        "text with ß and \u2028",
        torch.arange(3),
    ],
    ids=lambda state: type(state).__name__,
)
def test_nested_states(tmp_path: Path, state: Any) -> None:
    assert same(round_trip(tmp_path / "c", state), state)


def test_a_named_tuple_comes_back_as_a_tuple(tmp_path: Path) -> None:
    class Point(NamedTuple):
        x: int
        y: Tensor

    assert same(round_trip(tmp_path / "c", Point(3, torch.ones(1))), (3, torch.ones(1)))


def test_tensors_that_share_memory_or_are_views(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    state = {"one": base, "same": base, "row": base[1], "turned": base.T, "last": torch.rand(2, 3, 4, 4).to(
        memory_format=torch.channels_last)}  # fmt: skip
    assert same(round_trip(tmp_path / "c", state), state)


def test_parameters_are_detached(tmp_path: Path) -> None:
    found = round_trip(tmp_path / "c", {"p": nn.Parameter(torch.ones(2))})
    assert type(found["p"]) is Tensor
    assert not found["p"].requires_grad


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_states_of_optimizers(tmp_path: Path, kind: Any) -> None:
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert same(round_trip(tmp_path / "c", optimizer.state_dict()), optimizer.state_dict())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_a_loaded_state_lets_go_of_its_file(tmp_path: Path) -> None:
    """Tensors that lie in the file itself would keep its space taken after it is replaced."""
    loaded = round_trip(tmp_path / "c", {"a": torch.rand(100_000)})
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    (tmp_path / "c").write_bytes(bytes(10))
    assert loaded["a"].max() > 0


def test_a_plain_state_dict_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    state = dict(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict())
    save_checkpoint(tmp_path / "c", state)
    others = load_file(tmp_path / "c")
    assert set(others) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(torch.equal(others[name], state[name]) for name in state)


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    state = {"a": torch.arange(4), "b": {"c": torch.zeros(2)}, "epoch": 3}
    for number in range(10):
        save_checkpoint(tmp_path / str(number), state)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(10)}) == 1


@pytest.mark.parametrize("thing", [object(), {1, 2}, b"bytes", 1j, torch.float32])
def test_what_a_checkpoint_cannot_hold(tmp_path: Path, thing: Any) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, {"old": 1})
    with pytest.raises(TypeError, match=f"a checkpoint cannot hold a {type(thing).__name__}"):
        save_checkpoint(path, {"a": [thing]})
    with pytest.raises(TypeError, match="a checkpoint cannot hold a key of type tuple"):
        save_checkpoint(path, {(1, 2): "a"})
    assert load_checkpoint(path) == {"old": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


# -- files that are no checkpoints -----------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, {"weights": torch.rand(100), "rows": [{"epoch": 1}], "step": 3})
    return path


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"there is no checkpoint {re.escape(str(tmp_path / 'c'))}"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.999])
def test_a_cut_file(whole: Path, share: float) -> None:
    content = whole.read_bytes()
    whole.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"is damaged and cannot be read .*; delete it to start again"):
        load_checkpoint(whole)


def test_a_file_of_other_bytes(whole: Path) -> None:
    whole.write_bytes(b"\x89PNG\r\n" * 500)
    with pytest.raises(CheckpointError, match="is damaged and cannot be read"):
        load_checkpoint(whole)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'\\"dict\\"', b'\\"dirt\\"'),
        (b'{\\"tensor\\": \\"weights\\"}', b'{\\"tensor\\": \\"weight!\\"}'),
        (b'\\"rows\\", {', b'\\"rows\\", ['),
        (b'{\\"list\\": [', b'{\\"list\\": 7'),
    ],
)
def test_a_damaged_header(whole: Path, old: bytes, new: bytes) -> None:
    content = whole.read_bytes()
    assert old in content
    assert len(old) == len(new)  # the file stays as long as its header says
    whole.write_bytes(content.replace(old, new, 1))
    with pytest.raises(CheckpointError, match="is damaged and cannot be read"):
        load_checkpoint(whole)


@pytest.mark.parametrize(
    "change",
    [lambda tensor: tensor.view(10, 10), lambda tensor: tensor.view(torch.int32)],
    ids=["shape", "dtype"],
)
def test_the_same_bytes_read_otherwise_are_damage(whole: Path, change: Callable[[Tensor], Tensor]) -> None:
    with safe_open(whole, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, whole, metadata=metadata)
    assert load_checkpoint(whole)["step"] == 3
    save_file({name: change(tensor) for name, tensor in tensors.items()}, whole, metadata=metadata)
    with pytest.raises(CheckpointError, match="its checksum is another"):
        load_checkpoint(whole)


@pytest.mark.parametrize(
    "structure", ["{", "[" * 100_000, '{"list": 7}', '{"dirt": []}', '{"tensor": "none"}', '{"a": 1, "b": 2}']
)
def test_a_damaged_structure_that_has_no_checksum(tmp_path: Path, structure: str) -> None:
    metadata = {"format": WITHOUT_CHECKSUM, "structure": structure}
    save_file({"a": torch.ones(2)}, tmp_path / "c", metadata=metadata)
    with pytest.raises(CheckpointError, match="is damaged and cannot be read"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(("metadata", "named"), [(None, "None"), ({"format": "pt"}, "'pt'")])
def test_a_file_of_another_program(tmp_path: Path, metadata: dict[str, str] | None, named: str) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "c", metadata=metadata)
    with pytest.raises(CheckpointError, match=rf"is not a checkpoint of this program \(format {named}\)"):
        load_checkpoint(tmp_path / "c")


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a pickle was loaded')",))


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_is_not_run(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "c"
    if writer == "pickle":
        path.write_bytes(pickle.dumps({"a": Bomb()}))
    else:
        torch.save({"a": Bomb()}, path)
    with pytest.raises(CheckpointError, match="is damaged and cannot be read"):
        load_checkpoint(path)


def test_no_pickle_is_written(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    save_checkpoint(whole, {"a": torch.ones(1), "b": [1, None]})
    assert load_checkpoint(whole)["b"] == [1, None]
