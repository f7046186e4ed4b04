"""A rewrite depends on its arguments, the op tables and the kernels alone, whatever the process
does beside it.
"""

import contextlib

import keras
import numpy as np
import pytest

import amp_tf
from amp_tf.graph.layers import recorded
from amp_tf.hooks import state as process_state
from amp_tf.hooks import switch
from tests.rewriting.test_pipeline import CHAIN, FUNCTION, GOLDEN, rewrite
from tests.small_graphs import function, graph

GRAPHS = {
    **{name: graph(text) for name, text in GOLDEN.items()},
    "function": function(FUNCTION),
    "graph with a function": graph(CHAIN, function(FUNCTION)),
}
CONFIGS = {
    "float16": amp_tf.AmpConfig(precision="float16"),
    "bfloat16": amp_tf.AmpConfig(precision="bfloat16"),
    "patterns": amp_tf.AmpConfig(precision="bfloat16", keep_float32=("layer:allow1", "^b$")),
    "lists": amp_tf.AmpConfig(
        precision="bfloat16", allow_remove=("Conv2D",), level="TREAT_INFER_AS_DENY"
    ),
}
OTHERS = amp_tf.AmpConfig(
    precision="bfloat16", keep_float32=("layer:hidden", "allow1", "^a$"), deny_add=("Split", "Relu")
)


@contextlib.contextmanager
def another_runtime():
    """Other settings are in force, layers recorded, graphs rewritten and a scope around all."""
    with switch.enable(OTHERS), amp_tf.scope("f16", "allow1", "layer:hidden"):
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(4, name="hidden"), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"), verbose=0)
        assert process_state.settings() == OTHERS
        assert any(path.endswith("hidden") for path in recorded.paths())
        assert amp_tf.report().facts["totals"]["converted"]
        yield
    switch.disable()


def rewritten():
    found = {}
    for config in CONFIGS:
        for name, proto in GRAPHS.items():
            result = rewrite(proto, CONFIGS[config])
            found[config, name] = (
                result.graph.SerializeToString(deterministic=True),
                result.report.converted,
            )
    return found


@pytest.mark.quick
def test_the_same_bytes_come_out_with_another_runtime_in_force():
    before = rewritten()
    assert len({data for data, _ in before.values()}) > len(GRAPHS)  # the arguments do matter
    with another_runtime():
        assert rewritten() == before
    assert rewritten() == before
