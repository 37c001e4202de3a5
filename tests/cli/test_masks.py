"""Methods that need masks, from the command line: what is missing is said in one sentence, before training."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--method", "epg"), "method 'epg' needs masks of the objects in training images, and there are none"),
        (("--method", "gals_mask"), "say with --masks which folder or zip holds them"),
        (("--method", "gals"), "name CLIP's weights with -o clip=FILE, or take gals_mask"),
        (("--method", "epg", "--masks", "masks.zip"), "masks go by the names of image files, and colored_fashion has"),
        (("--method", "dkt"), "no class has training images of two: take a method that needs no groups"),
    ],
)
def test_what_is_missing(ipg, tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    done = ipg("train", *given, "--epochs", "1", "--output", tmp_path / "run")
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()
