"""What runs at exit when the package was upgraded or uninstalled meanwhile: nothing of it can be imported any more."""

from __future__ import annotations

import json

import pytest

from tests.hooks import running

UNINSTALL = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "amp_tf":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
"""
FIT = """
import keras
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = keras.ops.ones((8, 8))
model.fit(x, x[:, :1], verbose=0)
"""


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize(("work", "graphs"), [(FIT, True), ("import tensorflow", False)])
def test_the_line_and_the_report_are_there(tmp_path, work, graphs, precision):
    (tmp_path / "train.py").write_text(work + UNINSTALL)
    (tmp_path / "reports").mkdir()
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": precision, "AMP_TF_REPORT": "reports"}
    ended = running.run(["train.py"], tmp_path, variables)
    assert (ended.converted > 0) is graphs
    assert ended.status == 0
    assert not [line for line in ended.warnings if "skipped 1 step" not in line]
    (report,) = (tmp_path / "reports").iterdir()
    assert (json.loads(report.read_text())["converted"] > 0) is graphs
