"""A type checker understands users' programs."""

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api", reason="mypy comes with the extra 'lint'")

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import amp_tf
amp_tf.AmpConfig(precision="bfloat16", level="DEFAULT", target="gpu")
amp_tf.AmpConfig(keep_float32=["a"], deny_add=("B",))
amp_tf.enable(precision="float16", force_f16=["a"]).uninstall()
amp_tf.callbacks.LossScaleMonitor(max_skips=3)
result: amp_tf.RewriteResult = amp_tf.rewrite(None, hardware=amp_tf.Hardware(cpu_has_bf16=True))
report: amp_tf.RewriteReport = amp_tf.report()
is_kept: bool = report.nodes[0].reason.rule is amp_tf.Rule.KEPT_BY_NAME
with amp_tf.scope("float32"):
    amp_tf.LossScaleOptimizer(None, 2.0, dynamic=False, name="mine")
amp_tf.AmpConfig(precision="float8")  # wrong
amp_tf.AmpConfig(level="SOME")  # wrong
amp_tf.AmpConfig(target="tpu")  # wrong
amp_tf.AmpConfig(keep_float32=[1])  # wrong
amp_tf.enable(precision="half")  # wrong
amp_tf.enable(precison="float16")  # wrong
amp_tf.scope("fp8")  # wrong
amp_tf.LossScaleOptimizer(None, unknown=1)  # wrong
amp_tf.LossScaleOptimizer(None, dynamic="no")  # wrong
"""


def test_mistakes_are_found_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the settings and the cache of mypy are
    (tmp_path / "program.py").write_text(PROGRAM)
    out, err, _ = api.run(["--strict", str(tmp_path / "program.py")])
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error:", out)}
    wrong = {
        number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")
    }
    assert (found, err) == (wrong, ""), out
