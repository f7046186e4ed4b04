"""One small run of each benchmark that has no test file of its own."""

import importlib
import inspect
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from amp_tf.oplists.hardware import Hardware
from benchmarks import rewrite_time
from benchmarks.models.wide.__main__ import try_one
from benchmarks.step_time import forecast, suite
from benchmarks.step_time.modes import WAYS, modes
from tests import processes
from tests.hooks import running

ROOT = running.ROOT
TINY = "--size tiny"
FIGURES = r" \| .*\d\.\d"  # a row of a table with a figure


@pytest.fixture
def forked(monkeypatch):
    """The processes that a benchmark starts are forks; not those of which it takes the memory."""
    monkeypatch.setattr(subprocess, "Popen", processes.start)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("compare_cost", "small_mlp --batch 8", rf"\| MLP, 64 wide{FIGURES}"),
        (
            "memory",
            f"wide_mlp {TINY} --batches 4096 --rows 1",
            r"\| MLP, 2048 wide \| 4096 \| \d{2,3} \|(.*\n)+memory: \d+\.\d MiB",
        ),
        (
            "serving",
            f"wide_mlp {TINY} --precision bfloat16 --batches 1 --rounds 2",
            rf"\| MLP, 2048 wide \| 1{FIGURES}\d ± .* ± ",
        ),
        (
            "step_time.profile",
            f"wide_mlp {TINY} --modes float32,amp_tf --rows 100 --turns 1",
            r"\| Cast \|.*\(\d+\)",
        ),
    ],
)
def test_a_command_prints_its_figures(module, arguments, said, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    words = arguments.split()
    monkeypatch.setattr(sys, "argv", [module, *words])
    program = importlib.import_module(f"benchmarks.{module}")
    takes_arguments = inspect.signature(program.main).parameters
    assert program.main(*([words] if takes_arguments else [])) == 0
    assert re.search(said, capfd.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_rewrite_times_are_printed(tmp_path, capfd, monkeypatch):
    arguments = ["synthetic-1k", "--rounds", "1", "--cache", str(tmp_path / "graphs")]
    monkeypatch.setattr(sys, "argv", ["rewrite_time", *arguments])
    rewrite_time.main()  # on a busy machine it may miss a goal
    assert "| synthetic-1k | 992 | " in capfd.readouterr().out


@pytest.mark.usefixtures("forked")
def test_another_checkout_is_at_work_or_its_row_says_that_it_is_not(tmp_path):
    """A copy of the package stands for the checkout; from a folder without one, today's would be
    imported.
    """
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "amp_tf", copy / "amp_tf")
    shutil.copy(ROOT / "_amp_tf_start.py", copy)
    none = tmp_path / "none"
    names = ("float32", f"all listed@{copy}", f"all listed@{none}")
    chosen = [modes("bfloat16")[name] for name in names]
    settings = suite.Settings("tiny", "bfloat16", rounds=2, seconds=0.02)
    rows = suite.measure("wide_mlp", None, chosen, [WAYS["fit"]], settings)
    by_mode = {row.mode: row for row in rows}
    float32, copied, missing = (by_mode[mode.name] for mode in chosen)
    assert (copied.error, copied.amp_tf) == ("", f"{copy}/amp_tf")
    assert copied.converted > 0
    assert len(copied.ms) == 2
    assert copied.peak_mib > 100  # TensorFlow alone takes more
    np.testing.assert_allclose(copied.losses, float32.losses, rtol=0.02)
    told = f"{missing.mode} imported amp_tf from {ROOT}/amp_tf, not from {none}."
    assert missing.error == told


@pytest.mark.usefixtures("forked")
@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
def test_a_wide_product_is_expected_to_save_time():
    saved = forecast.expect("autoencoder", "predict")
    assert 0.1 < saved.total < saved.products < 100


@pytest.mark.parametrize("name", ["two_towers", "tf_keras_lstm", "functions_of_tensorflow"])
def test_a_model_of_the_wide_suite_trains_a_step(name):
    """``python -m benchmarks.models.wide`` tries all of them."""
    assert np.isfinite(try_one(name))
