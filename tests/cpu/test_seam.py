"""Only where amp_tf chooses the precision of a CPU is anything of its costs imported."""

from __future__ import annotations

import sys

import pytest

import amp_tf
from tests.small_graphs import graph

GPU = amp_tf.Hardware(gpu_capabilities=((9, 0),))
CPU = amp_tf.Hardware(cpu_has_bf16=True)
LOOP = """
    x = Placeholder() shape=[64, 64]
    start = Enter(x) frame_name='f'
    state = Merge(start, next)
    go = Placeholder() dtype=bool
    turns = Enter(go) T=bool frame_name='f' is_constant=true
    again = LoopCond(turns)
    switch = Switch(state, again)
    product = MatMul(switch:1, switch:1)
    next = NextIteration(product)
    done = Exit(switch)
    last = MatMul(done, done)
"""


@pytest.fixture
def without_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module of the room can be imported, whatever was before."""
    monkeypatch.delattr(amp_tf, "cpu", raising=False)
    for name in [*sys.modules, "amp_tf.cpu"]:
        if name.startswith("amp_tf.cpu"):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("goal", ["speed", "memory"])
@pytest.mark.parametrize(("hardware", "precision"), [(GPU, "auto"), (GPU, "float16"), (CPU, "bfloat16")])
@pytest.mark.usefixtures("without_cpu")
def test_elsewhere_nothing_of_it_is_imported(hardware, precision, goal, tmp_path):
    report = str(tmp_path) if hardware is GPU else None  # of a CPU it says what ops cost, too
    config = amp_tf.AmpConfig(precision=precision, goal=goal, report_path=report)
    result = amp_tf.rewrite(graph(LOOP), config, hardware=hardware)
    assert {"product", "last"} <= {node.name for node in result.report.nodes if node.precision.is_f16}
    assert "matmuls and convolutions: 2 of 2" in str(result.report)


@pytest.mark.usefixtures("without_cpu")
def test_where_amp_tf_chooses_it_is():
    with pytest.raises(ImportError, match="amp_tf"):
        amp_tf.rewrite(graph(LOOP), amp_tf.AmpConfig(), hardware=CPU)
