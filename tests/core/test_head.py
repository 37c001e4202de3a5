"""The head that is listened at is the one whose logits the model returns, and it sees one row an image."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from ipg.guidance import Guidance, Pairs
from ipg.rationale import HeadNotFoundError, HeadTap, can_be_read, find_head, rationale


class Net(nn.Module):
    """A hidden layer and a head under names of your choice; `answer` makes of the logits what is returned."""

    def __init__(self, hidden: str, head: str, *, classes: int = 2, answer: Callable[[Tensor], Any] | None = None):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.names, self.answer = (hidden, head), answer
        self.add_module(hidden, nn.Linear(8, 5))
        self.add_module(head, nn.Linear(5, classes))

    def forward(self, x: Tensor) -> Any:
        hidden, head = (self.get_submodule(name) for name in self.names)
        logits = head(F.relu(hidden(F.relu(self.body(x)))))
        return logits if self.answer is None else self.answer(logits)


def guided(model: nn.Module, **options: Any) -> Guidance:
    return Guidance(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


# -- which layer ----------------------------------------------------------------------------------------------------


def test_two_layers_that_could_be_the_head_are_refused_by_name(toys: ModuleType) -> None:
    model = Net("fc", "classifier")
    with pytest.raises(
        HeadNotFoundError,
        match=r"several layers of Net could be its head: fc \(nn\.Linear 8 -> 5\) and classifier \(nn\.Linear 5 -> 2\)"
        r"\. Pass the one that produces the logits, e\.g\. head=model\.classifier\.",
    ):
        guided(model)
    pairs = toys.pairs(dtype=torch.float32)
    delta = guided(model, head=model.classifier).terms(pairs).disagreement
    expected = (model(pairs.first).argmax(1) != model(pairs.second).argmax(1)).float().mean()
    assert delta.item() == expected.item()


def test_a_layer_inside_a_sequence_is_named_as_one_would_write_it() -> None:
    model = Net("fc", "classifier")
    model.classifier = nn.Sequential(nn.Dropout(), model.classifier)
    with pytest.raises(HeadNotFoundError, match=r"and classifier\.1 \(.*e\.g\. head=model\.classifier\[1\]\."):
        find_head(model)


def test_a_head_inside_a_wrapper_is_named() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(8, 4), Net("hidden", "fc"))

    with pytest.raises(
        HeadNotFoundError, match=r"e\.g\. head=model\.network\[1\]\.fc \(5 -> 2\), the last there is\.$"
    ):
        find_head(Wrapper())


class TrainedWhole(nn.Module):
    """A head as PEFT wraps those of `modules_to_save`: the layer as it was, and the copy that is trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.original_module, self.active_adapters = layer, ["default"]
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(layer.in_features, layer.out_features)})

    def forward(self, x: Tensor) -> Tensor:
        layer = self.modules_to_save[self.active_adapters[0]] if self.active_adapters else self.original_module
        made: Tensor = layer(x)
        return made


class Adapted(nn.Module):
    """A layer as PEFT puts LoRA around it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A, self.lora_B = nn.Linear(layer.in_features, 1), nn.Linear(1, layer.out_features)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return made


@pytest.mark.parametrize("declared", [False, True])
def test_a_head_that_is_trained_whole_beside_adapters_is_found(toys: ModuleType, *, declared: bool) -> None:
    model: Any = Net("hidden", "classifier")
    model.classifier = TrainedWhole(model.classifier)
    if declared:
        model.get_classifier = lambda: model.classifier
    head = model.classifier.modules_to_save["default"]
    assert find_head(model) is head
    before = head.weight.detach().clone()
    guided(model).correct(toys.pairs(dtype=torch.float32))
    assert not torch.equal(head.weight, before)
    model.classifier.active_adapters = []
    with pytest.raises(HeadNotFoundError, match=r"classifier(\(\))? \(TrainedWhole\)"):
        find_head(model)


@pytest.mark.parametrize("declared", [False, True])
def test_a_head_with_an_adapter_is_refused_and_its_parts_are_not_suggested(*, declared: bool) -> None:
    model: Any = Net("hidden", "classifier")
    model.classifier = Adapted(model.classifier)
    if declared:
        model.get_classifier = lambda: model.classifier
    said = r"It is a linear layer with an adapter.* name it in modules_to_save"
    with pytest.raises(HeadNotFoundError, match=said) as refused:
        find_head(model)
    assert "lora_B" not in str(refused.value)
    with pytest.raises(HeadNotFoundError, match=rf"got Adapted\. {said}"):
        guided(model, head=model.classifier)


def test_a_layer_under_two_names_is_one_layer() -> None:
    model = Net("hidden", "fc")
    model.classifier = model.fc
    assert find_head(model) is model.fc


def test_a_declared_classifier_settles_it() -> None:
    class Declared(Net):
        def get_classifier(self) -> nn.Module:
            return self.get_submodule("classifier")

    model = Declared("fc", "classifier")
    assert find_head(model) is model.classifier


def test_a_sequence_ends_in_its_head_whatever_its_layers_are_called() -> None:
    model = nn.Sequential(OrderedDict(fc=nn.Linear(6, 5), act=nn.ReLU(), classifier=nn.Linear(5, 2)))
    assert find_head(model) is model.classifier


class Named(nn.Module):
    """A model that calls its head by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(input=self.body(x).relu())
        return logits


@pytest.mark.parametrize("compiled", [False, True])
def test_a_head_that_is_called_by_keyword_is_listened_to(toys: ModuleType, *, compiled: bool) -> None:
    model: Any = Named()
    model = torch.compile(model, backend="eager") if compiled else model
    pairs = toys.pairs(dtype=torch.float32)
    try:
        found = guided(model).terms(pairs)
    finally:
        torch.compiler.reset()
    rationales = rationale(model, pairs.first) - rationale(model, pairs.second)
    torch.testing.assert_close(found.alignment, rationales.flatten(1).norm(dim=1).mean())


# -- what it puts out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "answer", [None, lambda logits: {"logits": logits}, lambda logits: SimpleNamespace(logits=logits)]
)
def test_a_hidden_layer_is_refused_at_the_first_correction(
    toys: ModuleType, answer: Callable[[Tensor], Any] | None, compiled: bool
) -> None:
    model = Net("fc", "out", answer=answer)
    assert find_head(model) is model.fc  # the only name that is known
    network = torch.compile(model, backend="eager") if compiled else model
    before = toys.bits(model)
    guide = guided(network)
    for _ in range(2):  # it does not get used to it
        with pytest.raises(
            HeadNotFoundError,
            match=r"the head, fc \(nn\.Linear 8 -> 5\), puts out 5 columns where the model returns 2: .* as head=",
        ):
            guide.correct(toys.pairs(dtype=torch.float32))
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 0
    with pytest.raises(HeadNotFoundError, match="puts out 5 columns"):
        rationale(model, torch.randn(2, 6))
    torch.compiler.reset()  # the hook comes after what was compiled
    right = guided(network, head=model.out)
    assert right.correct(toys.pairs(dtype=torch.float32)).norm.item() > 0


def test_a_hidden_layer_before_a_single_squeezed_logit_is_refused(toys: ModuleType) -> None:
    model = Net("fc", "out", classes=1, answer=lambda logits: logits.squeeze(1))
    with pytest.raises(HeadNotFoundError, match="puts out 5 columns where the model returns 1"):
        guided(model).correct(toys.pairs(dtype=torch.float32))


def test_one_number_an_image_is_no_row_of_logits_however_many_images_there_are() -> None:
    model = Net("fc", "out", classes=1, answer=lambda logits: logits.squeeze(1))
    with pytest.raises(HeadNotFoundError, match="puts out 5 columns where the model returns 1"):
        rationale(model, torch.randn(5, 6))  # as many as the wrong layer has columns


@pytest.mark.parametrize(
    ("classes", "answer"),
    [
        (1, lambda logits: logits.squeeze(1)),
        (1, lambda logits: F.pad(logits, (1, 0))),
        (2, lambda logits: logits[:, 1] - logits[:, 0]),
        (3, lambda logits: (logits, logits.sum())),
        (3, lambda logits: {"scores": logits}),
        (3, lambda logits: SimpleNamespace(logits=logits, loss=None)),
        (3, lambda logits: logits.log_softmax(dim=1)),
        (3, lambda logits: logits.reshape(2, -1, 3)),
        (3, lambda logits: None),
    ],
    ids=["squeezed", "given as two", "margin", "tuple", "dict", "object", "log-probabilities", "reshaped", "nothing"],
)
def test_what_cannot_be_compared_or_is_made_of_the_logits_passes(
    toys: ModuleType, classes: int, answer: Callable[[Tensor], Any]
) -> None:
    model = Net("hidden", "fc", classes=classes, answer=answer)
    assert guided(model).correct(toys.pairs(dtype=torch.float32)).norm.item() > 0


def test_the_output_is_looked_at_once(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("ipg.rationale.verify_head", lambda *arguments: seen.append(arguments))
    guide = guided(Net("hidden", "fc"))
    for _ in range(3):
        guide.correct(toys.pairs(dtype=torch.float32))
    assert len(seen) == 1


def test_weights_without_values_cannot_be_read() -> None:
    assert can_be_read(nn.Linear(3, 2).weight)
    assert not can_be_read(nn.Linear(3, 2, device="meta").weight)
    assert not can_be_read(nn.LazyLinear(2).weight)


def test_what_was_listened_to_and_not_taken_is_forgotten() -> None:
    head = nn.Linear(3, 2)
    tap = HeadTap(head)
    for images in (torch.ones(1, 3), torch.zeros(2, 3)):
        with tap.listen():
            head(images)
    assert torch.equal(tap.take()[0], torch.zeros(2, 3))


# -- one row an image -----------------------------------------------------------------------------------------------


class Frames(nn.Module):
    """Films of several frames: the head sees every frame, and the logits are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        frames: Tensor = self.fc(F.relu(self.body(x.flatten(0, 1))))
        return frames.unflatten(0, x.shape[:2]).mean(dim=1)


@pytest.mark.parametrize("n", [1, 4])
def test_a_head_that_sees_several_rows_an_image_is_refused(toys: ModuleType, n: int) -> None:
    """With one pair it once passed, and compared frames with each other."""
    pairs = Pairs(torch.randn(n, 3, 6), torch.randn(n, 3, 6), torch.arange(n) % 2)
    with pytest.raises(
        ValueError, match=rf"the head saw {6 * n} rows of features for {2 * n} images; .*one row an image"
    ):
        guided(Frames()).correct(pairs)


def test_a_head_that_sees_fewer_rows_than_images_is_refused() -> None:
    head = nn.Linear(3, 2)
    tap = HeadTap(head)
    with tap.listen():
        head(torch.ones(2, 3))
    with pytest.raises(ValueError, match="the head saw 2 rows of features for 4 images"):
        tap.take(rows=4)


# -- linear by name alone -------------------------------------------------------------------------------------------


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * nn.functional.cosine_similarity(x[:, None], self.weight, dim=2)


class WithMargin(nn.Linear):
    def forward(self, x: Tensor, label: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) - label


class WithAdapter(nn.Linear):
    """As LoRA does it: at first a plain linear layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down = nn.Parameter(torch.ones(1, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ (self.up @ self.down).T


class Bent(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + 0.2 * logits.abs()


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat(1, 2)


class Spelt(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Rounded(nn.Linear):
    """As a quantised layer is: linear but for rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).bfloat16().to(x.dtype)


def test_heads_that_are_linear_by_name_alone_are_refused(toys: ModuleType) -> None:
    for kind in (Cosine, WithMargin, Bent, Twice, WithAdapter):
        model = toys.mlp()
        model[-1] = kind(model[-1].in_features, 2).double()
        hooks = len(model[-1]._forward_hooks)
        with pytest.raises(ValueError, match=f"{kind.__name__} is no linear head"):
            Guidance(model, toys.build(model))
        assert len(model[-1]._forward_hooks) == hooks
    adapted = model[-1]
    adapted.down.requires_grad_(False)
    adapted.up.requires_grad_(False)
    spelt, rounded = (kind(model[-1].in_features, 2).double() for kind in (Spelt, Rounded))
    nn.init.constant_(spelt.bias, 9.0)
    parametrize.register_parametrization(rounded, "weight", nn.Identity())  # of which a parameter is the original
    for head in (adapted, spelt, rounded):
        model[-1] = head
        Guidance(model, toys.build(model)).correct(toys.pairs())
