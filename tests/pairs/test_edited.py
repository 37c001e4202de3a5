import importlib
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ipg.config import ConfigError
from ipg.data.errors import DataError, ProblemsError
from ipg.data.table import ImageTable
from ipg.pairs import edited
from ipg.pairs.edited import Kontext, celeba_prompts, lazy_kontext, plan, read_prompts
from ipg.pairs.manifest import load_pairs
from ipg.pairs.plan import write

REACHED = "ipg.models.hub._is_reached"
LETTERS = "abcdefghijklmnopqrstuvwxyz,."


@pytest.fixture
def faces(shapes) -> ImageTable:
    """The shapes, named as CelebA's groups are."""
    return replace(shapes.table, classes=("not blond hair", "blond hair"), attributes=("not male", "male"))


class Recorder:
    """An editor that inverts images and takes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def __call__(self, image: Tensor, prompt: str, seed: int) -> Tensor:
        self.asked.append((prompt, seed))
        return 255 - image


def test_the_papers_prompts(faces: ImageTable) -> None:
    prompts = celeba_prompts(faces)
    assert set(prompts) == set(faces.group_names)
    assert prompts["not blond hair, male"] == (
        "Transform this male person into a female version, retaining the unique characteristics, especially hair "
        "color, age, and position. The result is photorealistic, with natural lighting."
    )
    assert prompts["blond hair, not male"] == (
        "Transform this female person into a male version with clearly blond hair, retaining the unique "
        "characteristics, especially age and position. The result is photorealistic, with natural lighting."
    )
    assert "this female person into a male version, retaining" in prompts["not blond hair, not male"]
    assert "this male person into a female version with clearly blond hair" in prompts["blond hair, male"]


def test_prompts_for_other_data(shapes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not about blond hair and gender; give a prompt for each group with --prompts"):
        celeba_prompts(shapes.table)
    path = tmp_path / "prompts.toml"
    path.write_text('"disc, grass" = "To the sea."\n"cross, sea" = "To the meadow."\n')
    assert read_prompts(path, shapes.table) == {"disc, grass": "To the sea.", "cross, sea": "To the meadow."}
    path.write_text('"disk, grass" = "To the sea."\n"cross, sea" = 3\n')
    with pytest.raises(ProblemsError) as caught:
        read_prompts(path, shapes.table)
    assert len(caught.value.problems) == 2
    for text in ("no toml", "a = " + "[" * 5000):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is not valid TOML"):
            read_prompts(path, shapes.table)
    with pytest.raises(ConfigError, match="there is no file of prompts"):
        read_prompts(tmp_path / "missing.toml", shapes.table)


def test_candidates_of_every_group(faces: ImageTable) -> None:
    editor = Recorder()
    made = plan(faces, editor, prompts=celeba_prompts(faces), per_group=5, candidates=3)
    assert len(made) == 2 * 5 * 3  # two of the four groups have training images
    assert not made.parallel
    assert [pair.first for pair in made.pairs[:3]] == [made.pairs[0].first] * 3
    assert len({pair.second for pair in made.pairs}) == 30
    assert len({pair.first for pair in made.pairs}) == 10
    assert {pair.split for pair in made.pairs} == {"train"}
    assert editor.asked == []
    for number in range(6):
        made.make(number)
    assert len({seed for _, seed in editor.asked}) == 6
    assert [prompt for prompt, _ in editor.asked] == [pair.extra["prompt"] for pair in made.pairs[:6]]
    fewer = plan(faces, editor, prompts=celeba_prompts(faces), per_group=2, candidates=3)
    assert {pair.first for pair in fewer.pairs} <= {pair.first for pair in made.pairs}
    assert len(plan(faces, editor, prompts=celeba_prompts(faces))) == 24 * 3  # all there are


def test_goes_on_where_it_was_stopped(faces: ImageTable, tmp_path: Path) -> None:
    editor = Recorder()
    made = plan(faces, editor, prompts=celeba_prompts(faces), per_group=2, candidates=2)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(made, tmp_path / "pairs", settings={}, progress=stop)
    write(made, tmp_path / "pairs", settings={})
    assert len(editor.asked) == len(set(editor.asked)) == 8
    pairs = load_pairs(tmp_path / "pairs", faces)
    assert torch.equal(pairs.second, 255 - pairs.first)
    assert (len(pairs), pairs.builder) == (8, "edited")


def test_what_cannot_be_edited(faces: ImageTable, fashion: ImageTable) -> None:
    with pytest.raises(ProblemsError, match="there is no prompt for the group 'not blond hair, male'"):
        plan(faces, Recorder(), prompts={})
    with pytest.raises(ValueError, match="only photographs can be edited, its images have 2 channels"):
        plan(fashion, Recorder(), prompts={})
    with pytest.raises(ValueError, match="per_group=0 and candidates=3 must both be at least 1"):
        plan(faces, Recorder(), prompts={}, per_group=0)
    made = plan(faces, lambda image, prompt, seed: image[:, :4], prompts=celeba_prompts(faces))
    with pytest.raises(ValueError, match=r"the editor gave torch.uint8 of shape \(3, 4, 48\)"):
        made.make(0)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """FLUX.1 Kontext's own pipeline, tiny and with random weights."""
    import diffusers
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = diffusers.FluxTransformer2DModel(
            **{"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16},
            **{"num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32},
            **{"axes_dims_rope": [4, 4, 8], "guidance_embeds": True},
        )
        vae = diffusers.AutoencoderKL(
            **{"sample_size": 32, "block_out_channels": (4,), "layers_per_block": 1, "latent_channels": 1},
            **{"norm_num_groups": 1, "use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.06},
            scaling_factor=1.5,
        )
        clip = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                **{"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "vocab_size": 100, "projection_dim": 32},
                **{"hidden_size": 32, "intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 1},
            )
        )
        t5 = transformers.T5EncoderModel(
            transformers.T5Config(vocab_size=100, d_model=32, d_ff=37, d_kv=8, num_layers=1, num_heads=4)
        )
    words = {"<|startoftext|>": 0, "<|pad|>": 1, "<|endoftext|>": 2}
    words |= {letter: place + 3 for place, letter in enumerate(LETTERS)}
    words |= {f"{letter}</w>": place + 40 for place, letter in enumerate(LETTERS)}
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -1.0), ("▁", -2.0), *((letter, -2.0) for letter in LETTERS)]
    made = diffusers.FluxKontextPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae.eval(),
        text_encoder=clip.eval(),
        tokenizer=transformers.CLIPTokenizer(vocab=words, merges=[], model_max_length=77),
        text_encoder_2=t5.eval(),
        tokenizer_2=transformers.T5Tokenizer(vocab=pieces, extra_ids=0),
        transformer=transformer.eval(),
    )
    made.set_progress_bar_config(disable=True)
    return made


def test_by_the_real_pipeline(pipeline: Any, faces: ImageTable) -> None:
    editor = Kontext(pipeline, side=32, steps=2)
    image = faces.images[0]
    one, same = editor(image, "to the sea", 1), editor(image, "to the sea", 1)
    assert (one.shape, one.dtype) == (image.shape, torch.uint8)
    assert torch.equal(one, same)
    assert not torch.equal(one, editor(image, "to the sea", 2))
    assert not torch.equal(one, editor(image, "to the meadow", 1))
    assert not torch.equal(one, editor(faces.images[1], "to the sea", 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_from_a_folder(pipeline: Any, faces: ImageTable, tmp_path: Path) -> None:
    pipeline.save_pretrained(tmp_path / "model")
    editor = lazy_kontext(str(tmp_path / "model"), device="cpu", side=32, steps=1)
    made = plan(faces, editor, prompts=celeba_prompts(faces), per_group=1, candidates=1)
    manifest = write(made, tmp_path / "pairs", settings={})
    assert len(load_pairs(manifest.path, faces)) == 2


def test_a_model_that_is_not_there(faces: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REACHED, lambda constants: True)
    editor = lazy_kontext(str(tmp_path / "none"), device="cpu")  # nothing is loaded before it is needed
    with pytest.raises(DataError, match=r"the editing model .*none cannot be loaded"):
        editor(faces.images[0], "x", 0)


def test_a_hub_that_does_not_answer(faces: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalEntryNotFoundError = type("LocalEntryNotFoundError", (OSError,), {})  # noqa: N806, the hub's own

    class Pipeline:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> None:
            assert not logging.getLogger("huggingface_hub").isEnabledFor(logging.WARNING)  # of every attempt
            raise OSError("many lines") from LocalEntryNotFoundError("and more")

    monkeypatch.setattr(REACHED, lambda constants: True)
    monkeypatch.setattr(edited, "_diffusers", lambda: SimpleNamespace(FluxKontextPipeline=Pipeline))
    with pytest.raises(DataError) as caught:
        lazy_kontext("some/model", device="cpu")(faces.images[0], "x", 0)
    assert str(caught.value) == (
        "the editing model some/model cannot be loaded: the hub does not answer, and no copy of it is on this machine; "
        "without a network, name a folder as save_pretrained writes it"
    )


def test_the_real_diffusers_without_the_hub(
    faces: ImageTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises that there is no copy from that nobody was reached, and logs that in words of its own."""
    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)
    monkeypatch.setattr(REACHED, lambda constants: False)
    monkeypatch.setattr("ipg.models.hub.WAITS", (0.0,))
    with pytest.raises(DataError, match=r"model some/model cannot be loaded: the hub does not answer, and no copy"):
        lazy_kontext("some/model", device="cpu")(faces.images[0], "x", 0)
    assert caplog.records == []


def test_without_diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match="editing needs diffusers, transformers and accelerate: pip install"):
        lazy_kontext()
