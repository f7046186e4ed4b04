import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_tf.config import ENV_VARS
from tests import processes, zygote
from tests.tiers import is_quick, long_files_first, starts_process

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"amp_tf/hooks/amp_tf_cpu.so": "amp_tf/hooks/shim.c"}


def pytest_configure():
    """A checkout may have no compiled libraries yet, or old ones.

    An installed amp_tf would follow what tests do to ``os.environ`` in this process. Programs that
    are to be switched on run in processes of their own.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "AmpTfStart"]
    if not all(_is_newer(ROOT / library, ROOT / source) for library, source in SOURCES.items()):
        command = [sys.executable, "setup.py", "-q", "build_native", "--inplace"]
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            pytest.exit(
                "amp_tf's libraries are not built; pip install --no-deps -e . builds them",
                returncode=1,
            )


def pytest_sessionfinish():
    processes.stop_zygotes()


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="the quick tier: see tests/tiers.py")


def pytest_collection_modifyitems(config, items):
    """Marks tests that start processes, leaves out what the quick tier does, and orders the
    rest.
    """
    for item in items:
        if isinstance(item, pytest.Function) and starts_process(item):
            item.add_marker("process")
    if config.getoption("quick"):
        kept = [item for item in items if is_quick(item)]
        config.hook.pytest_deselected(items=[*set(items).difference(kept)])
        items[:] = kept
    items[:] = long_files_first(items)


def pytest_collection_finish():
    """Hides all imported modules from garbage collections, which ``clear_session`` asks for.

    Collections after 700 more objects each, Python's default, take a tenth of the time of a trace.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(zygote.GARBAGE)


def _is_newer(file, other):
    return file.exists() and file.stat().st_mtime >= other.stat().st_mtime


@pytest.fixture(autouse=True)
def unset_variables(monkeypatch, tmp_path_factory):
    """The developer's settings and calibration must not decide a test; subprocesses inherit this
    environment too.
    """
    for row in ENV_VARS:
        monkeypatch.delenv(row.name, raising=False)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    monkeypatch.setenv(
        "PIP_CACHE_DIR", os.environ.get("PIP_CACHE_DIR") or os.path.join(caches, "pip")
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches"))


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory):
    """The folder in which programs run; what they leave there is no matter."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(params=["keras", "tf_keras"])
def library(request):
    return importlib.import_module(request.param)


@pytest.fixture
def log(caplog):
    """The messages of amp_tf so far that contain a text, as a user sees them by default.

    pytest's caplog sees absl's logger only while that propagates.
    """
    from absl import logging

    logger = logging.get_absl_logger()
    propagate = logger.propagate
    verbosity = logging.get_verbosity()
    logger.propagate = True
    logging.set_verbosity(logging.WARNING)  # absl's default
    yield lambda text: [
        record.getMessage() for record in caplog.records if text in record.getMessage()
    ]
    logging.set_verbosity(verbosity)
    logger.propagate = propagate


@pytest.fixture(autouse=True, scope="module")
def no_cluster_left():
    """A process has one Grappler cluster at a time: what comes after the oracle's tests makes its
    own.
    """
    yield
    oracle = sys.modules.get("tests.oracle")
    if oracle is not None:
        oracle._cluster.cache_clear()


#: The differences that are made by where values come from and where they go, and by what kernels
#: lose of them.
FOLLOWING_VALUES = ("need", "origin", "range", "inexact-kernel", "passed-through")


@pytest.fixture
def local_rules():
    """Without what decides by where values come from and where they go: small graphs end after a
    product or two.
    """
    from tests.left_out import (
        differing,
        without,
    )  # tests of what runs before TensorFlow is imported must find it so

    with without(differing(*FOLLOWING_VALUES)):
        yield
