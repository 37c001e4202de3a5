"""The guard against unseen skips, run on small sessions of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

SKIPPING = """
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_skips(n):
    pytest.skip("needs a CUDA GPU")

@pytest.mark.xfail
def test_fails_as_expected():
    raise RuntimeError
"""
SKIPPING_MODULE = "import pytest\npytest.importorskip('no_such_module')\n\ndef test_one():\n    pass\n"


@pytest.fixture
def session(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\naddopts = -p no:hypothesispytest")  # which each session would import anew
    return pytester


def permit(session: pytest.Pytester, *lines: str) -> None:
    (session.path / "permitted_skips.txt").write_text("\n".join(lines), encoding="utf-8")


def test_a_session_without_skips_passes(session: pytest.Pytester) -> None:
    session.makepyfile(test_plain="def test_one():\n    pass\n")
    result = session.runpytest()
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_skip_that_is_not_listed_fails_the_session_and_is_named(session: pytest.Pytester) -> None:
    session.makepyfile(test_some=SKIPPING)
    permit(session, "# nothing here")
    result = session.runpytest()
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skips that are not permitted*", "test_some.py::test_skips?1?: needs a CUDA GPU"])
    result.stdout.no_fnmatch_line("test_some.py::test_fails_as_expected*")


@pytest.mark.parametrize(
    "line",
    [
        "test_some.py::test_skips*",
        "test_some.py::*  # needs a CUDA GPU",
    ],
)
def test_a_listed_skip_passes(session: pytest.Pytester, line: str) -> None:
    session.makepyfile(test_some=SKIPPING)
    permit(session, "", "# a comment", line)
    result = session.runpytest()
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*not permitted*")


def test_a_node_id_with_brackets_permits_that_case_alone(session: pytest.Pytester) -> None:
    session.makepyfile(test_some=SKIPPING)
    permit(session, "test_some.py::test_skips[1]")
    result = session.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_some.py::test_skips?2?: needs a CUDA GPU"])
    result.stdout.no_fnmatch_line("test_some.py::test_skips?1?: *")


def test_a_module_that_skips_as_a_whole_is_seen(session: pytest.Pytester) -> None:
    session.makepyfile(test_whole=SKIPPING_MODULE)
    result = session.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_whole.py: could not import 'no_such_module'*"])
    permit(session, "test_whole.py")
    assert session.runpytest().ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_several_processes_see_the_same(session: pytest.Pytester) -> None:
    session.makepyfile(test_some=SKIPPING, test_whole=SKIPPING_MODULE)
    result = session.runpytest_subprocess("-n", "2", "-W", "default")
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        ["test_some.py::test_skips?1?: needs a CUDA GPU", "test_whole.py: could not import 'no_such_module'*"]
    )
    permit(session, "test_whole.py", "test_some.py::*")
    assert session.runpytest_subprocess("-n", "2", "-W", "default").ret == pytest.ExitCode.OK


def test_bytes_that_differ_between_processes_name_the_same_tests(session: pytest.Pytester) -> None:
    session.makepyfile(
        test_some="""
        import os
        import pytest

        @pytest.mark.parametrize("data", [os.urandom(4), os.urandom(4)])
        def test_one(data):
            pass
        """
    )
    result = session.runpytest_subprocess("-v", "-n", "2", "-W", "default")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["*::test_one?data0?*", "*::test_one?data1?*"])


def test_the_list_takes_no_test_from_the_browser(repo_root: Path) -> None:
    lines = (repo_root / "tests" / "permitted_skips.txt").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if not line.startswith("#") and "chrom" in line]
