"""The programs that ``compare``, ``tune`` and ``time`` run: their settings, and how they end."""

import argparse
import os
import time

import pytest

from amp_tf.cli import programs
from amp_tf.cli.options import read_config
from amp_tf.cli.programs import environment_of_run, run_program
from amp_tf.config import AmpConfig
from amp_tf.tools.starting import FOLDER
from tests import processes


def test_a_program_gets_the_settings_that_were_asked_for_and_no_others(monkeypatch):
    """This process' environment may hold other settings than an option asks for."""
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    monkeypatch.setenv("AMP_TF_FORCE_F16", "dense")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_WHITELIST_ADD", "Exp")
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING", "0")
    arguments = argparse.Namespace(precision="auto", keep_float32=[])
    config = read_config(arguments)
    environ = environment_of_run(config, "timing.recording", "folder", is_on=True)
    assert AmpConfig.from_env(environ) == config
    assert (config.precision, config.force_f16, config.allow_add) == ("auto", ("dense",), ("Exp",))
    # A dozen runs would fill the user's folders.
    monkeypatch.setenv("AMP_TF_REPORT", "reports")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH", "graphs")
    writing = read_config(arguments)
    assert writing.report_path
    assert environment_of_run(writing, "timing.recording", "folder", is_on=True) == environ
    assert environ["TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"] == "0"
    bare = environment_of_run(AmpConfig(), "timing.recording", "folder", is_on=False)
    assert AmpConfig.from_env(bare) == AmpConfig()


def _interrupt():
    """As the command's own handler of SIGTERM does."""
    raise SystemExit(143)


@pytest.mark.parametrize("output", [None, "output.txt"])
@pytest.mark.parametrize("helper", ["sleep 300", "setsid sleep 300"])
@pytest.mark.parametrize(
    ("rest", "has_answered", "status"),
    [
        ("exit 3", lambda: False, 3),
        ("sleep 300; true", lambda: True, -9),
        ("sleep 300; true", _interrupt, None),
    ],
    ids=["ends", "has answered", "is interrupted"],
)
def test_what_a_program_started_ends_with_it(
    tmp_path, monkeypatch, output, helper, rest, has_answered, status
):
    monkeypatch.setattr(programs, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(programs, "_GRACE_S", 0.1)
    script = tmp_path / "train.sh"
    script.write_text(f"cd {tmp_path}; {helper} & echo $! > made; mv made helper; {rest}")
    environ = {**os.environ, FOLDER: str(tmp_path)}
    log = output and tmp_path / output
    ready = tmp_path / "helper"

    def is_answered():
        return ready.exists() and has_answered()

    try:
        assert run_program(["sh", script], environ, log, is_answered) == status
    except SystemExit:
        assert status is None
    started = int(ready.read_text())
    deadline = time.monotonic() + 10
    while processes.is_running(started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes.is_running(started)
    assert not programs._find_started(str(tmp_path))


def test_a_helper_of_a_program_that_has_ended_may_clean_up(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_GRACE_S", 30.0)
    script = tmp_path / "train.sh"
    script.write_text(f"(sleep 0.3; touch {tmp_path}/cleaned) & exit 0")
    environ = {**os.environ, FOLDER: str(tmp_path)}
    assert run_program(["sh", script], environ, tmp_path / "output.txt") == 0
    assert (tmp_path / "cleaned").exists()
