"""What a guidance refuses, and what it says."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.guidance import Guidance, Pairs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, r"alpha=1\.0 is out of range: expected 0 <= alpha < 1"),
        ({"alpha": -0.1}, "alpha=-0.1 is out of range"),
        ({"alpha": math.nan}, "alpha=nan is out of range"),
        ({"tau": 1.5}, "tau=1.5 is out of range: expected 0 <= tau <= 1: it is a share of the pairs"),
        ({"tau": -0.5}, "tau=-0.5 is out of range"),
        ({"margin": -1.0}, "margin=-1.0 is out of range"),
        ({"margin": math.inf}, "margin=inf is out of range"),
        (
            {"margin": "half"},
            r"margin='half' is out of range: expected a number, at least 0, or a multiple such as \"0",
        ),
        ({"margin": "x"}, "margin='x' is out of range"),
        ({"margin": "-2x"}, "margin='-2x' is out of range"),
        ({"every": 0}, "every=0 is out of range: expected a whole number of iterations, at least 1"),
        ({"every": 1.5}, "every=1.5 is out of range"),
        ({"every": "often"}, "every='often' is out of range: expected a whole number of iterations, .*, or \"auto\""),
        ({"floor": 0.0}, "floor=0.0 is out of range: expected a positive number"),
        ({"floor": math.inf}, "floor=inf is out of range"),
        ({"batch_norm": "off"}, r"batch_norm='off' is out of range: expected \"train\" or \"eval\""),
        ({"distance": "cosine"}, "distance='cosine' is out of range"),
        ({"jitter": -1.0}, "jitter=-1.0 is out of range"),
        ({"alpha": "0.1"}, "alpha='0.1' is out of range: expected a number"),
        ({"tau": None}, "tau=None is out of range: expected a number"),
        ({"floor": [1e-3]}, r"floor=\[0\.001\] is out of range: expected a number"),
        ({"jitter": 1j}, "jitter=1j is out of range: expected a number"),
        ({"autocast": "bf16"}, r"autocast='bf16' is out of range: expected None or a dtype that autocast knows"),
        ({"autocast": True}, "autocast=True is out of range"),
        ({"autocast": torch.int64}, r"autocast=torch\.int64 is out of range"),
    ],
)
def test_bad_options_are_refused(toys: ModuleType, options: dict[str, Any], message: str) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match=message):
        Guidance(model, toys.build(model), **options)


@pytest.mark.parametrize("name", ["every", "batch_norm", "autocast", "distance", "margin"])
def test_settings_that_would_not_act_any_more_cannot_be_set(toys: ModuleType, name: str) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    with pytest.raises(AttributeError, match=name):
        setattr(guide, name, getattr(guide, name))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("alpha", 1.0, r"alpha=1\.0 is out of range: expected 0 <= alpha < 1"),
        ("alpha", "0.1", r"alpha='0\.1' is out of range: expected a number"),
        ("tau", -0.5, r"tau=-0\.5 is out of range"),
        ("floor", 0.0, r"floor=0\.0 is out of range"),
        ("jitter", math.nan, "jitter=nan is out of range"),
    ],
)
def test_settings_that_are_changed_are_looked_at_again(toys: ModuleType, name: str, value: Any, message: str) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    guide.step(toys.task(model, toys.batch()), toys.pairs())
    before = toys.bits(model)
    setattr(guide, name, value)
    with pytest.raises(ValueError, match=message):
        guide.step(toys.task(model, toys.batch()), toys.pairs())
    with pytest.raises(ValueError, match=message):
        guide.correct(toys.pairs())
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 1


def test_optimizers_that_need_a_closure_are_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match=r"LBFGS\.step needs a closure.*e\.g\. Adam or SGD"):
        Guidance(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_optimizers_that_climb_are_refused(toys: ModuleType, kind: type[torch.optim.Optimizer]) -> None:
    """They would push the members of pairs apart, in one group of parameters as well as in all."""
    model = toys.mlp()
    with pytest.raises(ValueError, match=rf"{kind.__name__} climbs \(maximize=True\).* minimise the negative"):
        Guidance(model, kind(model.parameters(), lr=0.1, maximize=True))
    head = {"params": model[-1].parameters(), "maximize": True}
    with pytest.raises(ValueError, match="climbs"):
        Guidance(model, kind([{"params": model[:-1].parameters()}, head], lr=0.1))
    Guidance(model, kind(model.parameters(), lr=0.1))


def test_optimizers_that_know_no_closure_are_welcome(toys: ModuleType) -> None:
    class Plain(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()

    model = toys.mlp()
    before = toys.bits(model)
    Guidance(model, Plain(model.parameters(), lr=0.1)).correct(toys.pairs())
    assert not torch.equal(toys.bits(model), before)


def test_lightnings_wrapper_which_counts_steps_is_told_of(toys: ModuleType) -> None:
    """Lightning makes a class of its own that is wrapper and optimizer in one."""
    wrapper = type("LightningOptimizer", (), {})
    kind = type("LightningSGD", (wrapper, torch.optim.SGD), {})
    model = toys.mlp()
    with pytest.warns(UserWarning, match=r"at twice the pace\. .* self\.optimizers\(use_pl_optimizer=False\)") as told:
        Guidance(model, kind(model.parameters(), lr=0.1))
    assert told[0].filename == __file__


def test_learning_rate_schedulers_may_wrap_the_optimizer(toys: ModuleType) -> None:
    model = toys.mlp()
    optimizer = toys.build(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    guide = Guidance(model, optimizer)
    guide.step(toys.task(model, toys.batch()), toys.pairs())
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_an_optimizer_without_trainable_parameters_is_refused(toys: ModuleType) -> None:
    model = toys.mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="the optimizer holds no trainable parameter"):
        Guidance(model, toys.build(model))


def test_a_model_on_several_devices_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    model[0].to("meta")
    with pytest.raises(ValueError, match=r"are on cpu and meta, and guidance is for a model on one device: load it wi"):
        Guidance(model, toys.build(model))


@pytest.mark.parametrize("inside", [False, True])
def test_the_first_fsdp_is_refused_with_what_to_take(toys: ModuleType, *, inside: bool) -> None:
    """It cannot be made without a GPU; it is known by its name."""
    kind = type("FullyShardedDataParallel", (nn.Sequential,), {})
    model = toys.mlp()
    sharded = nn.Sequential(kind(model[:2]), *model[2:]) if inside else kind(model)
    with pytest.raises(ValueError, match=r"\(FSDP1\), where .*: shard it with torch\.distributed\.fsdp\.fully_shard"):
        Guidance(sharded, toys.build(sharded), head=model[-1])


def test_copies_on_several_gpus_are_refused_with_what_to_take(toys: ModuleType) -> None:
    model = nn.DataParallel(toys.mlp())
    Guidance(model, toys.build(model)).correct(toys.pairs())  # without GPUs, or with one, it makes no copies
    model.device_ids = [0, 1]
    with pytest.raises(ValueError, match=r"on 2 GPUs, .*: let torchrun start .*CUDA_VISIBLE_DEVICES=0"):
        Guidance(model, toys.build(model))


def test_every_times_alpha_is_warned_about(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.warns(UserWarning, match=r"every \* alpha = 2 is not below 1"):
        Guidance(model, toys.build(model), alpha=0.5, every=4)
    with pytest.warns(UserWarning, match="is not below 1"):
        Guidance(model, toys.build(model), alpha=0.5, every=2)
    Guidance(model, toys.build(model), alpha=0.49, every=2)
    Guidance(model, toys.build(model), alpha=0.99)


def test_accumulated_gradients_are_refused_by_correct(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    toys.task(model, toys.batch())().backward()
    before = toys.bits(model)
    with pytest.raises(RuntimeError, match=r"gradients are already accumulated: correct before the first backward"):
        guide.correct(toys.pairs())
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 0


def test_a_task_loss_that_runs_backward_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))

    def closure() -> Tensor:
        loss = toys.task(model, toys.batch())()
        loss.backward()
        return loss

    for pairs in (toys.pairs(), None):
        with pytest.raises(RuntimeError, match="task_loss must only return the loss; it ran backward itself"):
            guide.step(closure, pairs)


def test_a_task_loss_that_is_a_tensor_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    with pytest.raises(TypeError, match=r"got Tensor: it has to run after the correction\. Write lambda: criterion"):
        guide.step(toys.task(model, toys.batch())(), toys.pairs())  # type: ignore[arg-type]
    assert guide.iteration == 0


def test_a_task_loss_without_a_graph_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    with pytest.raises(RuntimeError, match="a loss without a graph"):
        guide.step(lambda: toys.task(model, toys.batch())().detach(), toys.pairs())


@pytest.mark.parametrize(
    ("returns", "kind", "message"),
    [
        (lambda loss: 1.0, TypeError, "task_loss must return the loss, a tensor, got float"),
        (lambda loss: {"loss": loss}, TypeError, "a tensor, got dict"),
        (lambda loss: loss.expand(3), ValueError, r"a loss of shape \(3,\); reduce it to one number, e\.g\. \.mean"),
    ],
)
def test_a_task_loss_that_is_no_number_is_refused(
    toys: ModuleType, returns: Any, kind: type[Exception], message: str
) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    with pytest.raises(kind, match=message):
        guide.step(lambda: returns(toys.task(model, toys.batch())()), toys.pairs())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_model_and_no_built_optimizer_are_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    optimizer = toys.build(model)
    with pytest.raises(
        TypeError, match=rf"model must be a torch\.nn\.Module, got {type(optimizer).__name__}: Guidance"
    ):
        Guidance(optimizer, model)
    for wrong, kind in ((torch.optim.Adam, "the class Adam"), (model.parameters(), "generator")):
        with pytest.raises(TypeError, match=rf"a built optimizer, e\.g\. torch\.optim\.Adam.*, got {kind}"):
            Guidance(model, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["first", "second", "label"])
def test_pairs_that_are_no_tensors_are_refused(toys: ModuleType, name: str) -> None:
    pairs = toys.pairs()
    parts = {key: getattr(pairs, key) for key in ("first", "second", "label")}
    with pytest.raises(TypeError, match=rf"got ndarray for {name}; use torch\.as_tensor\({name}\)"):
        Pairs(**{**parts, name: parts[name].numpy()})


def test_rescale_without_gradients_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    correction = guide.correct(toys.pairs())
    with pytest.raises(RuntimeError, match="no task gradient to rescale: run backward between correct and rescale"):
        guide.rescale(correction)


def test_detached_features_are_refused(toys: ModuleType, naive: ModuleType) -> None:
    class Detached(naive.Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.extractor(x).detach())

    body = toys.mlp()
    model = Detached(body[:-1], body[-1])
    with pytest.raises(RuntimeError, match="reaches the head alone: its features arrive detached"):
        Guidance(model, toys.build(model)).correct(toys.pairs())
    # training the head alone, on purpose, is fine
    head_alone = Guidance(model, torch.optim.SGD(model.head.parameters(), lr=0.1))
    assert head_alone.correct(toys.pairs()).norm.item() > 0


def test_a_corrective_loss_that_reaches_nothing_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    stray = nn.Parameter(torch.zeros(1))
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="reaches no trainable parameter: everything it touches is frozen"):
        Guidance(model, torch.optim.SGD([stray], lr=0.1)).correct(toys.pairs())
    other = toys.mlp()
    guide = Guidance(other, torch.optim.SGD([stray], lr=0.1))
    with pytest.raises(RuntimeError, match="reaches no parameter of the optimizer: give it the model's own"):
        guide.correct(toys.pairs())


def test_pairs_are_validated() -> None:
    images, label = torch.zeros(3, 2, 4, 4), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must have one shape, got first \(3, 2, 4, 4\) and second \(2, 2, 4, 4\)"):
        Pairs(images, images[:2], label)
    with pytest.raises(ValueError, match=r"must have one dtype, got first torch\.float32 and second torch\.uint8"):
        Pairs(images, images.byte(), label)
    with pytest.raises(ValueError, match=r"expected one label a pair, shape \(3,\), got \(2,\)"):
        Pairs(images, images, label[:2])
    with pytest.raises(ValueError, match=r"pair labels must be integers, got torch\.float32; use label\.long\(\)"):
        Pairs(images, images, label.float())
    with pytest.raises(ValueError, match=r"got torch\.bool"):
        Pairs(images, images, label.bool())
    with pytest.raises(ValueError, match="needs at least one pair, got none"):
        Pairs(images[:0], images[:0], label[:0])
    for parts in ((images, images, label.to("meta")), (images.to("meta"), images, label)):
        with pytest.raises(ValueError, match=r"on one device, got first on \w+, second on cpu and label on \w+: move"):
            Pairs(*parts)
    assert len(Pairs(images, images, label.to(torch.int32))) == 3


def test_a_head_of_zeros_is_refused(toys: ModuleType) -> None:
    """Nothing would ever move: no rationale, no correction, and no task step, which is measured by corrections."""
    model = toys.mlp()
    nn.init.zeros_(model[-1].weight)
    for distance in ("rationale", "logits"):
        with pytest.raises(ValueError, match=r"the head's weights are all zero.*nn\.init\.normal_\(head\.weight"):
            Guidance(model, toys.build(model), distance=distance)
    Guidance(model, toys.build(model), distance="features")


def test_a_head_that_is_no_layer_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.raises(ValueError, match=r"head must be an nn\.Linear, got str"):
        Guidance(model, toys.build(model), head="4")  # type: ignore[arg-type]


def test_a_correction_without_pairs_is_refused(toys: ModuleType) -> None:
    model = toys.mlp()
    with pytest.raises(TypeError, match=r"pairs must be a batch, .* got NoneType"):
        Guidance(model, toys.build(model)).correct(None)  # type: ignore[arg-type]


def test_a_model_that_has_moved_is_refused(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    monkeypatch.setattr(guide, "_values", guide.correction.values.to("meta"))  # as if it had been made elsewhere
    for pairs in (toys.pairs(), None):
        with pytest.raises(RuntimeError, match=r"the model is on cpu, and was on meta when .*: move it first"):
            guide.step(toys.task(model, toys.batch()), pairs)
    assert guide.iteration == 0


@pytest.mark.parametrize("options", [{"dtype": torch.float32}, {"inputs": 5}])
def test_pairs_that_the_model_does_not_take_are_named(toys: ModuleType, options: dict[str, Any]) -> None:
    model, pairs = toys.mlp(), toys.pairs(**options)
    with pytest.raises(RuntimeError) as caught:
        Guidance(model, toys.build(model)).correct(pairs)
    (note,) = caught.value.__notes__
    assert note == f"It was raised while the model ran {pairs!r}: they have to be like its training images."


@pytest.mark.parametrize("pairs", [[1, 2], "pairs", object()])
def test_what_are_no_pairs_is_refused_before_anything_moves(toys: ModuleType, pairs: Any) -> None:
    model = toys.mlp()
    guide = Guidance(model, toys.build(model), every=2)
    before = toys.bits(model)
    with pytest.raises(TypeError, match=r"pairs must be a batch, ipg\.Pairs\(.*ipg\.PairSampler\(pair_set"):
        guide.step(toys.task(model, toys.batch()), pairs)
    with pytest.raises(TypeError, match=type(pairs).__name__):
        guide.correct(pairs)
    assert torch.equal(toys.bits(model), before)
    assert guide.iteration == 0


def test_a_source_that_draws_something_else_is_named(toys: ModuleType) -> None:
    class Loader:
        def draw(self) -> tuple[Tensor, ...]:
            pairs = toys.pairs()
            return pairs.first, pairs.second, pairs.label

    model = toys.mlp()
    guide = Guidance(model, toys.build(model))
    before = toys.bits(model)
    with pytest.raises(TypeError, match=r"draw\(\) of Loader must return ipg\.Pairs\(.*, got tuple"):
        guide.correct(Loader())  # type: ignore[arg-type]
    assert guide.iteration == 0
    assert torch.equal(toys.bits(model), before)


def test_pairs_of_bytes_are_refused(toys: ModuleType) -> None:
    model, images = toys.mlp(), torch.zeros(2, 6, dtype=torch.uint8)
    with pytest.raises(ValueError, match="divide them by 255"):
        Guidance(model, toys.build(model)).correct(Pairs(images, images, torch.tensor([0, 1])))


def test_an_optimizer_that_skips_updates_is_refused(toys: ModuleType) -> None:
    """As Accelerate's does while it accumulates: the correction would join the task's gradient."""

    class Skips(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            pass

        def zero_grad(self, set_to_none: bool | None = None) -> None:
            pass

    model = toys.mlp()
    with pytest.raises(RuntimeError, match=r"^Skips\.zero_grad left gradients behind.*optimizer\.optimizer"):
        Guidance(model, Skips(model.parameters(), lr=0.1)).correct(toys.pairs())


def test_optimizers_whose_gradients_stay_as_zeros_are_welcome(toys: ModuleType) -> None:
    class Keeps(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = False) -> None:
            super().zero_grad(set_to_none)

    models = [toys.mlp(), toys.mlp()]
    for model, kind in zip(models, (Keeps, torch.optim.SGD), strict=True):
        guide = Guidance(model, kind(model.parameters(), lr=0.1))
        for i in range(2):
            guide.step(toys.task(model, toys.batch(seed=i)), toys.pairs(seed=i))
    assert torch.equal(*map(toys.bits, models))


def test_parameters_of_another_optimizer_are_told_of_once(toys: ModuleType) -> None:
    model = toys.mlp()
    guide = Guidance(model, torch.optim.SGD(model[-1].parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"reaches 0\.weight, 0\.bias, 2\.weight and 1 more, which the optimizer"):
        guide.step(toys.task(model, toys.batch()), toys.pairs())
    guide.step(toys.task(model, toys.batch()), toys.pairs())  # warnings are errors here
    model[:-1].requires_grad_(False)
    Guidance(model, torch.optim.SGD(model[-1].parameters(), lr=0.1)).step(toys.task(model, toys.batch()), toys.pairs())


@pytest.mark.parametrize("own_backward", [False, True])
def test_the_warning_of_another_optimizer_points_to_the_line_that_steps(toys: ModuleType, own_backward: bool) -> None:
    model = toys.mlp()
    guide = Guidance(model, torch.optim.SGD(model[-1].parameters(), lr=0.1))
    task, pairs = toys.task(model, toys.batch()), toys.pairs()
    if own_backward:
        correction = guide.correct(pairs)
        task().backward()
    with pytest.warns(UserWarning, match="which the optimizer does not hold") as caught:
        guide.rescale(correction) if own_backward else guide.step(task, pairs)
    (warning,) = caught
    assert warning.filename == __file__
