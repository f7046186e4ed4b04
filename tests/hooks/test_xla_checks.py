"""What is edited after a body's own verification is checked once more: each spoilt function is refused by name."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.errors import RewriteError
from amp_tf.hooks import notices, xla, xla_checks, xla_library
from amp_tf.hooks.xla_library import Clone, RewrittenFunction
from amp_tf.reporting import process
from tests.small_graphs import function

MAIN = """
    function main(x: float32, n: int32) -> (y: float32)
      w = StatelessWhile(n, x) T=[int32, float32] cond=cond body=body
      c = PartitionedCall(w:output:1) Tin=[float32] Tout=[float32] f=body1
      return y = c:output:0
"""
COND = "function cond(n: int32, x: float32) -> (go: bool)\n  g = Less(n, n) T=int32\n  return go = g:z:0"
BODY = "function body(n: int32, x: float32) -> (m: int32, y: float32)\n  r = Relu(x)\n  return m = n\n  return y = {y}"
GOOD_BODY = BODY.format(y="r:activations:0")
BODY1 = "function body1(x: float32) -> (y: float32)\n  r = Relu(x)\n  return y = r:activations:0"


def rewritten(main=MAIN, cond=COND, body=GOOD_BODY, body1=BODY1) -> RewrittenFunction:
    clones = tuple(Clone("original", function(text)) for text in (cond, body, body1) if text)
    return RewrittenFunction(function(main), clones)


def verify(result: RewrittenFunction) -> None:
    xla_checks.verify(function(MAIN), result, lambda name: None)


def test_functions_that_fit_pass():
    verify(rewritten())


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"body": BODY.format(y="gone:activations:0")}, "function 'body'.*gone"),
        ({"body": GOOD_BODY.replace("Relu(x)", "Relu(n)")}, "function 'body'.*node 'r'"),
        ({"body": GOOD_BODY.replace("Relu(x)", "Relu(r:activations:0)")}, "'r' is on a cycle"),
        ({"cond": COND.replace("x: float32", "x: bfloat16")}, "'w' passes other types than 'cond' takes"),
        ({"cond": COND.replace(", x: float32", "")}, "'w' passes other types than 'cond' takes"),
        (
            {"body": "function body(n: int32, x: float32) -> (m: int32)\n  return m = n"},
            "'w' expects other types than 'body' gives",
        ),
        ({"body1": ""}, "'c' calls 'body1', which does not exist"),
        ({"main": MAIN.replace("n: int32)", "n: int32, more: float32)")}, "function 'main'.*its signature changed"),
    ],
)
def test_what_does_not_fit_is_refused_with_function_and_node(spoilt, message):
    with pytest.raises(RewriteError, match=message):
        verify(rewritten(**spoilt))


def test_function_is_left_as_it_was_where_moving_casts_spoils_it(monkeypatch, caplog):
    def loses_a_result(*arguments):
        moved = hoist(*arguments)
        del arguments[3].signature.output_arg[-1]
        return moved

    hoist = xla_library.hoist_casts
    monkeypatch.setattr(xla_library, "hoist_casts", loses_a_result)
    x = tf.constant(np.full((4, 4), 0.5, "float32"))

    @tf.function(jit_compile=True)
    def looped(x):
        return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y @ x), (0, x))[1]

    xla.install(AmpConfig(precision="bfloat16"))
    try:
        with caplog.at_level(logging.WARNING, logger="absl"):
            np.testing.assert_array_equal(looped(x), x @ x @ x)
    finally:
        xla.uninstall()
        notices.forget()
        process.reset()
    (message,) = [record.getMessage() for record in caplog.records if "amp_tf" in record.getMessage()]
    assert "did not pass verification" in message


def test_every_row_names_attributes_that_the_op_has():
    from tensorflow.python.framework import op_def_registry

    for op, calls in xla_checks.CALLS.items():
        attrs = {attr.name for attr in op_def_registry.get(op).attr}
        for call in calls:
            assert {value for value in dataclasses.asdict(call).values() if value} <= attrs
