"""AMP_TF_MONITOR alone makes fit's layers read; the report has the last reading; two runs are compared."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest

import amp_tf
from amp_tf.cli import main
from amp_tf.comparing import readings
from amp_tf.hooks import monitor
from tests.hooks import running

PROGRAM = """
import sys, keras, numpy as np
keras.utils.set_random_seed(int(sys.argv[1]))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="one"), keras.layers.Dense(1, name="two")])
model.compile("sgd", "mse")
x = np.random.RandomState(0).rand(64, 8).astype("float32")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""


def test_a_program_is_monitored_by_the_variable(site_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16", "AMP_TF_REPORT": str(site_folder / "reports")}
        variables |= {"AMP_TF_MONITOR": str(site_folder / name), "AMP_TF_MONITOR_EVERY": "3"}
        ended = running.run(["-c", PROGRAM, seed], site_folder, variables)
        assert ended.status == 0, ended.err
        assert ended.warnings == []
    a, b, c = (str(site_folder / name) for name in "abc")
    run = readings.read(a)
    assert [reading.step for reading in run.readings] == [1, 3, 6]
    assert {layer.layer.split("/")[-1] for layer in run.readings[0].layers} >= {"one", "two"}
    assert list(Path(a).rglob("events.out.tfevents.*"))
    reports = [json.loads(path.read_text()) for path in (site_folder / "reports").glob("*.json")]
    assert all(report["monitored"][0]["step"] == 6 for report in reports)
    capsys.readouterr()
    assert main.main(["monitor", a]) == 0
    assert capsys.readouterr().out.startswith(f"{run.name}: 3 readings in bfloat16, the last at step 6\n")
    assert main.main(["monitor", a, b]) == 0
    assert capsys.readouterr().out == "no layer differs in 3 readings, up to step 6\n"
    assert main.main(["monitor", a, c]) == 1
    assert capsys.readouterr().out.startswith("the runs part at step 1 in ")
    assert main.main(["monitor", a, c, "--tolerance", "0.999"]) == 0


def test_uninstall_restores_the_class(tmp_path: Path) -> None:
    before = [vars(base).get("make_train_function") for base in keras.Model.__mro__]
    monitor.install(amp_tf.AmpConfig())
    assert [vars(base).get("make_train_function") for base in keras.Model.__mro__] == before
    monitor.install(amp_tf.AmpConfig(monitor_path=str(tmp_path)))
    assert [vars(base).get("make_train_function") for base in keras.Model.__mro__] != before
    monitor.uninstall()
    assert [vars(base).get("make_train_function") for base in keras.Model.__mro__] == before
