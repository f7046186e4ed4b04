"""Every script answers ``--help``, and does nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "scripts").iterdir(), *(ROOT / ".ci").iterdir()]
    if path.is_file() and os.access(path, os.X_OK)
)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the scripts read and write, so that one that works when it is asked for help harms nothing."""
    for name in ("scripts", ".ci", "docker"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_the_scripts_are_found() -> None:
    assert {".ci/run", "scripts/demo", "scripts/lock_requirements", "scripts/test"} <= set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_all_that_it_does(program: str, checkout: Path) -> None:
    before = files(checkout)
    first = (checkout / program).read_text(encoding="utf-8").splitlines()[0]
    command = "bash" if first.endswith("bash") else sys.executable
    # Without a network and a pip there is nothing that a script could install meanwhile.
    environ = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONPATH": str(ROOT)}
    ended = processes.run(
        [command, program, "--help"], cwd=checkout, env=environ, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "usage: " in ended.stdout
    assert "Traceback" not in ended.stderr
    assert files(checkout) == before
