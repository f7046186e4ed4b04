from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from amp_tf.hooks.grappler import library

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def shim_is_built() -> None:
    """A checkout that is not installed has no compiled shim yet."""
    if not (library.FOLDER / "amp_tf_cpu.so").exists():
        subprocess.run([sys.executable, "setup.py", "-q", "build_shim", "--inplace"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")
