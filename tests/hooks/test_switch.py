from __future__ import annotations

from pathlib import Path

import pytest

from amp_tf import config
from amp_tf.hooks import notices, switch
from tests.hooks import running

# A good value and a bad one for each kind of variable; op names and folders take any text.
BAD_VALUES: dict[str, str | None] = {
    "1, 0": "maybe",
    "auto, float16, bfloat16": "float8",
    "float32, float16, bfloat16": "float8",
    "regular expressions, comma-separated": "(",
    ", ".join(config.LEVELS): "EVERYTHING",
    "op names, comma-separated": None,
    "a folder": None,
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in config.ENV_VARS:
        monkeypatch.delenv(row.name, raising=False)
    notices.forget()


@pytest.mark.parametrize("row", [row for row in config.ENV_VARS if BAD_VALUES[row.values]], ids=lambda row: row.name)
def test_a_bad_value_is_told_once_with_name_value_and_valid_values(
    row: config.EnvVar,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = BAD_VALUES[row.values]
    assert bad is not None
    monkeypatch.setenv(config.ENABLE_VAR, "1")
    monkeypatch.setenv(row.name, bad)
    switch.obey_environment()
    assert not switch.is_enabled()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("amp_tf: stays off, the program runs in float32: ")
    assert row.name in told[0]
    assert repr(bad) in told[0]
    assert "Valid values: " in told[0]


def test_enable_raises_on_a_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_TF_PRECISION", "float8")
    with pytest.raises(config.ConfigError, match="AMP_TF_PRECISION: 'float8' is not a valid value"):
        switch.enable()
    assert not switch.is_enabled()


def test_on_and_off_before_and_after_tensorflow_is_imported(site_folder: Path) -> None:
    """One process: each step runs a new function and says whether it was computed in bfloat16."""
    code = """
import numpy as np
import amp_tf
config = amp_tf.AmpConfig(precision="bfloat16")
before = amp_tf.enable(config)
assert amp_tf.is_enabled()
import tensorflow as tf
x = np.random.default_rng(1).normal(size=(32, 32)).astype("float32")
exact = np.maximum(x.astype("float64") @ x, 0) @ x
def is_converted():
    got = tf.function(lambda x: tf.nn.relu(x @ x) @ x)(tf.constant(x)).numpy()
    return bool(np.abs(got - exact).max() / np.abs(exact).max() > 1e-4)
steps = [("enabled before the import", is_converted())]
kept = tf.function(lambda x: tf.nn.relu(x @ x) @ x)
first = kept(tf.constant(x)).numpy()
before.uninstall()
before.uninstall()
steps += [("after uninstall", is_converted()), ("is_enabled", amp_tf.is_enabled())]
steps += [("what ran already", bool((kept(tf.constant(x)).numpy() == first).all()))]
older = amp_tf.enable(config)
newer = amp_tf.enable(config)
older.uninstall()
steps += [("the older handle does not count", is_converted()), ("is_enabled", amp_tf.is_enabled())]
newer.uninstall()
with amp_tf.enable(config) as handle:
    steps += [("in a with block", is_converted()), ("its config", handle.config is config)]
steps += [("after the block", is_converted())]
amp_tf.disable()
import json
print(json.dumps({"steps": steps}))
"""
    ended = running.run(["-c", code], site_folder, {})
    assert ended.status == 0, ended.err
    assert ended.result["steps"] == [
        ["enabled before the import", True],
        ["after uninstall", False],
        ["is_enabled", False],
        ["what ran already", True],
        ["the older handle does not count", True],
        ["is_enabled", True],
        ["in a with block", True],
        ["its config", True],
        ["after the block", False],
    ]
    assert ended.converted > 0  # the line at exit comes, though amp_tf is off by then
