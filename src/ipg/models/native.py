"""Our convolutional networks on a CPU, by kernels that the machine's C++ compiler makes for it (`cpp/convnet.cpp`).

As written each layer reads and writes the maps of the whole batch, which are laid out anew for every convolution and
back. Here an image goes through all layers while it lies in the cache. Compiling takes seconds, once for a network, a
size of images and a precision; what was compiled is kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ipg.data.locations import cache_folder
from ipg.files import make_private, replacing
from ipg.models.small import ConvNet, FirstConv2d

__all__ = ["KERNELS", "CompilerError", "NativeConvNet", "obstacle"]

SOURCES = Path(__file__).with_name("cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared")
KERNELS = "kernels"
"""Where compiled kernels are kept in the cache folder."""
LANES = 16
"""Widths have to be multiples of it."""


class CompilerError(RuntimeError):
    """The kernels could not be compiled or loaded."""


@dataclass(frozen=True)
class Shape:
    """What kernels are compiled for."""

    channels: int
    height: int
    width: int
    widths: tuple[int, ...]
    strides: tuple[int, ...]
    groups: int
    eps: float
    half: bool

    def definitions(self) -> list[str]:
        """The same for the compiler."""
        lists = {"WIDTHS_": self.widths, "STRIDES_": self.strides}
        numbers = {"CHANNELS": self.channels, "HEIGHT": self.height, "WIDTH": self.width, "GROUPS": self.groups}
        return [
            *(f"-D{name}={','.join(map(str, value))}" for name, value in lists.items()),
            *(f"-D{name}={value}" for name, value in numbers.items()),
            *(f"-DEPS={self.eps:.9e}f", f"-DHALF={int(self.half)}"),
        ]


def obstacle(*, half: bool) -> str | None:
    """Why networks cannot be compiled on this machine, None where they can be: to compute in bf16 if `half`."""
    compiler = _compiler()
    if compiler is None:
        return "no C++ compiler is found (g++ or clang++, or what CXX names)"
    if half and "__AVX512BF16__" not in _macros(compiler):
        return "its processor, or its C++ compiler, has no bf16 (AVX512-BF16)"
    return None


class NativeConvNet(nn.Module):
    """A ConvNet whose body runs by compiled kernels, or as written where they do not serve.

    They do not serve images of another type or device, nor gradients with respect to images. Gradients of gradients
    raise an error.
    """

    any_batch = True
    """Unlike a network that torch has compiled it need not be given batches of one size."""

    def __init__(self, model: ConvNet) -> None:
        super().__init__()
        self._orig_mod = model  # as torch.compile calls it, and as it is looked for
        self._able = True
        self._known: dict[tuple[torch.Size, bool], Kernels] = {}

    @staticmethod
    def suits(model: nn.Module) -> bool:
        """Whether there are kernels for `model`."""
        if type(model) is not ConvNet:
            return False
        layers = _layers(model)
        kinds = [nn.Conv2d if type(layer) is FirstConv2d else type(layer) for layer in layers]
        if kinds != [nn.Conv2d, nn.ReLU, nn.GroupNorm] * (len(layers) // 3):  # some may have been put into their place
            return False
        widths = all(layer.out_channels % LANES == 0 for layer in layers[0::3])
        return widths and all(layer.stride in ((1, 1), (2, 2)) for layer in layers[0::3])

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        parameters = list(self._orig_mod.body.parameters())
        half = torch.is_autocast_enabled("cpu")
        logits: Tensor
        if not self._able or not _fit(images, parameters, half=half):
            logits = self._orig_mod(images)
            return logits
        try:
            kernels = self._kernels(images, half=half)
        except (CompilerError, OSError) as error:
            self._able = False
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            warnings.warn(f"the network cannot be compiled and runs as written: {reason}", stacklevel=2)
            return self.forward(images)
        keep = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
        logits = self._orig_mod.head(_Body.apply(images.contiguous(), kernels, keep, *parameters))
        return logits

    def _kernels(self, images: Tensor, *, half: bool) -> Kernels:
        size = images.shape[1:]
        if (size, half) not in self._known:
            layers = _layers(self._orig_mod)
            widths = tuple(layer.out_channels for layer in layers[0::3])
            strides = tuple(layer.stride[0] for layer in layers[0::3])
            channels, height, width = size
            shape = Shape(channels, height, width, widths, strides, layers[2].num_groups, layers[2].eps, half)
            self._known[size, half] = load(shape)
        return self._known[size, half]


def _layers(model: ConvNet) -> list[Any]:
    """Convolution, ReLU and GroupNorm, again and again."""
    return list(model.body.children())


def _fit(images: Tensor, parameters: Sequence[Tensor], *, half: bool) -> bool:
    """Whether the kernels are for these images and parameters."""
    tensors = (images, *parameters)
    plain = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in tensors)
    plain = plain and all(one.is_contiguous() for one in parameters) and not images.requires_grad
    return plain and images.ndim == 4 and (not half or torch.get_autocast_dtype("cpu") == torch.bfloat16)


class _Body(torch.autograd.Function):
    """Features (B, D) of images, with gradients with respect to the parameters."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Kernels, keep: bool, *parameters: Tensor) -> Tensor:
        features, saved, stats = kernels.forward(images, parameters, keep=keep)
        ctx.kernels = kernels
        if keep:
            ctx.save_for_backward(images, saved, stats, *parameters)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, flowing: Tensor) -> tuple[Tensor | None, ...]:
        images, saved, stats, *parameters = ctx.saved_tensors
        return None, None, None, *ctx.kernels.backward(images, parameters, saved, stats, flowing)


class Kernels:
    """Compiled kernels, for tensors."""

    def __init__(self, library: ctypes.CDLL, shape: Shape) -> None:
        self._library, self._shape = library, shape
        self._numbers, self._statistics = library.saved_numbers(), library.saved_statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self._shape,)  # a copy is the same

    def forward(self, images: Tensor, parameters: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The features, and what the way back needs if it is to be kept."""
        threads = torch.get_num_threads()
        rows = len(images) if keep else threads
        saved = torch.empty(rows, self._numbers, dtype=torch.bfloat16 if self._shape.half else torch.float32)
        stats = torch.empty(rows, self._statistics)
        features = torch.empty(len(images), self._shape.widths[-1])
        self._library.forward(
            *(_at(images), _all_at(parameters), _at(saved), _at(stats), _at(features)),
            *(ctypes.c_int64(len(images)), ctypes.c_int(threads), ctypes.c_int(keep)),
        )
        return features, saved, stats

    def backward(
        self, images: Tensor, parameters: Sequence[Tensor], saved: Tensor, stats: Tensor, flowing: Tensor
    ) -> list[Tensor]:
        """The gradients of the parameters from that of the features."""
        flowing = flowing.float().contiguous()
        gradients = [torch.empty_like(parameter) for parameter in parameters]
        self._library.backward(
            *(_at(images), _all_at(parameters), _at(saved), _at(stats), _at(flowing), _all_at(gradients)),
            *(ctypes.c_int64(len(images)), ctypes.c_int(torch.get_num_threads())),
        )
        return gradients


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _all_at(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


# -- the compiler ------------------------------------------------------------------------------------------------------


@cache
def load(shape: Shape) -> Kernels:
    """The kernels for `shape`, compiled where this user has none of them in the cache.

    Raises:
        CompilerError: they cannot be compiled.
        OSError: they cannot be written or loaded.
    """
    compiler = _compiler()
    if compiler is None:
        raise CompilerError(obstacle(half=shape.half) or "")
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    told = [*sources, _macros(compiler), *compiler, *FLAGS, *map(str, astuple(shape))]
    key = hashlib.sha256("\0".join(told).encode()).hexdigest()[:32]
    folder = cache_folder() / KERNELS
    path = folder / f"{key}.so"
    if not _is_own(path):
        make_private(cache_folder())
        make_private(folder)
        with replacing(path) as temporary:
            _compile(compiler, [*shape.definitions(), str(SOURCES / "convnet.cpp"), "-o", str(temporary)])
    return Kernels(ctypes.CDLL(str(path)), shape)


def _is_own(path: Path) -> bool:
    """Whether `path` is there and this user's: nobody else's code is to be run."""
    return path.is_file() and (not hasattr(os, "getuid") or path.stat().st_uid == os.getuid())


def _compile(compiler: tuple[str, ...], rest: Sequence[str]) -> None:
    """Compile, with threads where the compiler has them."""
    for threads in (("-fopenmp",), ()):
        done = subprocess.run([*compiler, *FLAGS, *threads, *rest], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    raise CompilerError(f"{compiler[0]} says: {said[0].strip() if said else f'status {done.returncode}'}")


@cache
def _compiler() -> tuple[str, ...] | None:
    """The command of a C++ compiler: what `CXX` names, g++ or clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        words = shlex.split(name)
        if words and (found := shutil.which(words[0])):
            return found, *words[1:]
    return None


@cache
def _macros(compiler: tuple[str, ...]) -> str:
    """What the compiler says of itself and of this processor."""
    command = [*compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
