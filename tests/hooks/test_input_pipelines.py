"""What tf.data computes stays in float32; models and training loops over datasets do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks import running

SCRIPT = str(running.PROGRAMS / "input_pipeline.py")
ROUNDING = 2.0**-8  # of bfloat16


def test_an_input_pipeline_is_exact_and_the_model_behind_it_is_converted(tmp_path: Path) -> None:
    ended = running.run([SCRIPT], tmp_path, {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"})
    assert ended.status == 0, ended.err
    assert ended.result["prepared"] < 1e-5  # float32's own roundings of 16 products; bfloat16 was off by .04
    assert ended.converted >= 4  # two products of the model, two of the loop over the dataset
    for name in ("model", "loop"):
        assert ended.result[name] != ended.result["exact"]
        assert ended.result[name] == pytest.approx(ended.result["exact"], rel=20 * ROUNDING)


def test_nothing_is_marked_once_amp_tf_is_off() -> None:
    import tensorflow as tf

    import amp_tf
    from amp_tf.hooks.plugin import MARK

    def marks() -> set[str]:
        traced = []

        def double(x: tf.Tensor) -> tf.Tensor:
            y = x * 2
            traced.append(y.graph)
            return y

        tf.data.Dataset.range(3).map(double)
        return {name for graph in traced for op in graph.get_operations() for name in op.node_def.attr if name == MARK}

    with amp_tf.enable(amp_tf.AmpConfig(precision="bfloat16")):
        assert marks() == {MARK}
    assert marks() == set()
