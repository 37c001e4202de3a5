"""The distribution: what is in it, and that it works where nothing else of the project is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import ipg


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; the project's own folder is kept out of its import path."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel; `build` makes the wheel from the sdist, which so proves complete."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, repo_root, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment of its own with the wheel in it.

    Torch and the other dependencies are borrowed from the present environment by a path file. Its own path files are
    not read that way, so the editable install of the project stays out.
    """
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False)
    paths = {"base": str(home), "platbase": str(home)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site_packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    bin_folder = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", bin_folder / "python", "install")
    # --ignore-installed: the borrowed path shows the editable install, which must be neither taken nor removed
    run(*pip, "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=dist)
    return bin_folder


@pytest.mark.slow
def test_the_wheel_carries_types_data_template_and_licences(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"ipg/py.typed", "ipg/data/fashion_mnist_20k.png", "ipg/report/template.html"} <= names
    info = f"invariance_pair_guidance-{ipg.__version__}.dist-info"
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/THIRD_PARTY_NOTICES.md"} <= names
    assert {name.split("/")[0] for name in names} == {"ipg", info}


@pytest.mark.slow
def test_the_sdist_carries_what_its_tests_need(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/ipg/__init__.py"}
    expected |= {
        "tests/conftest.py",
        "tests/permitted_skips.txt",
        "examples/toy.py",
        "benchmarks/against_spuco.py",
        "Makefile",
    }
    expected |= {"tools/embed_fashion.py", "results/README.md", "docs/overview.svg"}
    assert expected <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "ipg-demo"))]


@pytest.mark.slow
def test_the_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    code = "import ipg; print(ipg.__file__, ipg.__version__)"
    where, version = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(installed.parent)
    assert version == ipg.__version__


@pytest.mark.slow
def test_the_installed_command_explains_itself(installed: Path, tmp_path: Path) -> None:
    assert "demo" in run(installed / "ipg", "--help", cwd=tmp_path)
    for verb in ("demo", "train", "evaluate", "report", "doctor", "methods", "data"):
        assert f"Usage: ipg {verb}" in run(installed / "ipg", verb, "--help", cwd=tmp_path)
    assert "demo" in run(installed / "python", "-m", "ipg", "--help", cwd=tmp_path)


@pytest.mark.slow
def test_the_installed_demo_writes_its_report(installed: Path, tmp_path: Path) -> None:
    run(installed / "ipg", "demo", "--epochs", "1", "--output", "demo", cwd=tmp_path)
    pages = list((tmp_path / "demo").rglob("*.html"))
    assert pages
    assert min(page.stat().st_size for page in pages) > 1000


def test_help_answers_without_loading_torch(tmp_path: Path) -> None:
    code = """
import sys
from ipg.__main__ import main
sys.argv = ["ipg", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
print("loaded:", sorted({"torch", "matplotlib", "timm"} & set(sys.modules)))
"""
    output = run(sys.executable, "-c", code, cwd=tmp_path)
    assert "demo" in output
    assert output.endswith("loaded: []\n")
