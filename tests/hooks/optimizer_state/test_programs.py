"""Unchanged programs with the variables alone: replicas keep equal copies, and the line at exit says what is kept."""

from __future__ import annotations

from pathlib import Path

from tests.hooks import running


def test_replicas_keep_equal_copies(tmp_path: Path) -> None:
    variables = {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16", "AMP_TF_OPTIMIZER_STATE": "bfloat16"}
    ended = running.run([str(running.PROGRAMS / "optimizer_state.py")], tmp_path, variables, seconds=500)
    found = ended.result
    assert set(found) == {"keras bare", "keras wrapped", "tf_keras bare", "tf_keras wrapped"}
    for trained in found.values():
        assert trained["losses"][-1] < trained["losses"][0]
        assert trained["narrow"] == ["bfloat16"] * 2
        assert trained["changed"] == trained["equal"] == [True, True]
    assert "% of the optimizers' state in bfloat16" in ended.summary[6]
    assert "'average' of Adam stays in float32: it is not known as a moment" in ended.err
