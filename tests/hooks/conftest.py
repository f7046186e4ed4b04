from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from amp_tf.hooks import notices, xla
from amp_tf.reporting import process
from tests import absl_log


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(params=["keras", "tf_keras"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """The messages so far that contain a text; what is told once is told anew."""
    notices.said.clear()
    with absl_log.listening(caplog) as messages:
        yield messages


@pytest.fixture
def xla_hook_off_afterwards() -> Iterator[None]:
    yield
    xla.uninstall()
    notices.said.clear()
    process.reset()
