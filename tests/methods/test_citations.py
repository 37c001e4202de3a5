"""Citations, from the files of the methods."""

from __future__ import annotations

import re

import pytest

from ipg.methods import METHODS, method_class
from ipg.methods.base import Method
from ipg.methods.citations import citation


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_its_paper(name: str) -> None:
    assert re.fullmatch(r'[A-Z][^"]+, "[^"]+",? [^"]*(19|20)\d\d', citation(method_class(name)) or "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("irm", 'Arjovsky et al., "Invariant Risk Minimization", 2019'),
        ("meta_irm", 'Bae, Choi and Lee, "Meta-Learned Invariant Risk Minimization", 2021'),
        ("coral", 'Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", '
                  "ECCV Workshops 2016"),
        ("cggd", 'Van Baelen and Karsmakers, "Constraint guided gradient descent: Training with inequality constraints '
                 'with applications in regression and semantic segmentation", Neurocomputing 2023'),
        ("dkt", 'Zhou, Ye, Lee and Zhang, "Robustness to Spurious Correlations via Dynamic Knowledge Transfer", '
                "IJCAI 2025"),  # not the one it mentions before
    ],
)  # fmt: skip
def test_which(name: str, expected: str) -> None:
    assert citation(method_class(name)) == expected


def test_an_ablation_is_of_the_paper_of_its_method() -> None:
    assert citation(method_class("joint")) == citation(method_class("ipg"))


def test_a_method_without_one() -> None:
    class Unheard(Method):
        name = "unheard"

    assert citation(Unheard) is None
