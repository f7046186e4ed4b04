"""Loops in functional form: what an iteration computes is used by the next one."""

from __future__ import annotations

from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.rewriting.pipeline import rewrite, rewrite_program
from tests.small_graphs import function

XLA = Hardware(cpu_has_bf16=True, is_xla=True)
CONFIG = AmpConfig(precision="bfloat16")

MAIN = """
    function main(h: float32, c: float32, w: float32) -> (y: float32)
      looped = StatelessWhile(h, c, w) T=[float32, float32, float32] cond=goes_on body=cell
      return y = looped:output:0
"""
GOES_ON = """
    function goes_on(h: float32, c: float32, w: float32) -> (go: bool)
      go = Const() dtype=bool value=bool[]*1
      return go = go:output:0
"""
#: The gate is used by products of the next iteration alone, through h; c is a running sum.
CELL = """
    function cell(h: float32, c: float32, w: float32) -> (h2: float32, c2: float32, w2: float32)
      product = MatMul(h, w)
      gate = Sigmoid(product:product:0)
      step = Tanh(product:product:0)
      sum = AddV2(c, step:y:0)
      shown = Tanh(sum:z:0)
      out = Mul(gate:y:0, shown:y:0)
      return h2 = out:z:0
      return c2 = sum:z:0
      return w2 = w
"""


def f16_nodes(*texts: str) -> set[str]:
    """The nodes of the loop's body that compute in 16 bit."""
    root, *functions = map(function, texts)
    results = rewrite_program(root, functions, CONFIG, XLA, FunctionDefLibrary(function=functions))
    nodes = [node for result in results for node in result.report.nodes.where(precision="bfloat16", function="cell")]
    return {node.name for node in nodes}


def test_what_the_next_iteration_multiplies_is_used_by_a_product():
    assert f16_nodes(MAIN, GOES_ON, CELL) == {"product", "gate", "step", "out"}


def test_each_result_is_the_argument_in_its_place():
    """With the results the other way round c comes from a product, and h is the running sum."""
    crossed = CELL.replace("h2 = out", "h2 = Z").replace("c2 = sum", "c2 = out").replace("h2 = Z", "h2 = sum")
    assert f16_nodes(MAIN, GOES_ON, crossed) == {"product", "step"}


def test_a_function_that_is_called_otherwise_too_is_judged_alone():
    types = "[float32, float32, float32]"
    called = f"called = PartitionedCall(h, c, w) Tin={types} Tout={types} f=cell\n      return"
    main = MAIN.replace("return", called)
    assert f16_nodes(main, GOES_ON, CELL) == {"product"}


def test_a_function_that_is_rewritten_alone_knows_the_loops_of_its_library():
    library = FunctionDefLibrary(function=[function(MAIN), function(GOES_ON), function(CELL)])
    report = rewrite(function(CELL), CONFIG, hardware=XLA, library=library).report
    assert {node.name for node in report.nodes.where(precision="bfloat16")} == {"product", "gate", "step", "out"}
