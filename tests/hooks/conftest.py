from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from amp_tf.hooks import notices
from amp_tf.hooks.grappler import library as shim
from tests import absl_log

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def shim_is_built() -> None:
    """A checkout that is not installed has no compiled shim yet."""
    if not (shim.FOLDER / "amp_tf_cpu.so").exists():
        subprocess.run([sys.executable, "setup.py", "-q", "build_shim", "--inplace"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(params=["keras", "tf_keras"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """The messages so far that contain a text; what is told once is told anew."""
    notices.forget()
    with absl_log.listening(caplog) as messages:
        yield messages
