"""Functions that are painted together: what one of them needs of a value that another computes."""

import pytest
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from amp_tf.config import AmpConfig
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Code
from amp_tf.rewriting.pipeline import rewrite_program
from tests.painting.painted import BF16_CPU
from tests.small_graphs import function

#: A chance that a product reads and that goes to a function, too.
ROOT = """
    function root(x: float32, go: bool) -> (y: float32, z: float32)
    before = MatMul(x, x)
    chance = Sigmoid(before:product:0)
    after = MatMul(chance:y:0, x)
    given = {call}
    return y = after:product:0
    return z = {result}
"""
LOG = """
    function log(p: float32) -> (l: float32)
    logarithm = Log(p)
    return l = logarithm:y:0
"""
TANH = """
    function tanh(p: float32) -> (l: float32)
    bounded = Tanh(p)
    return l = bounded:y:0
"""
OUTER = """
    function outer(p: float32) -> (l: float32)
    inner = log(p)
    return l = inner:l:0
"""
STEP = """
    function step(total: float32, p: float32) -> (total_: float32, p_: float32)
    logarithm = Log(p)
    sum = AddV2(total, logarithm:y:0)
    return total_ = sum:z:0
    return p_ = p
"""
GOES_ON = """
    function goes_on(total: float32, p: float32) -> (goes: bool)
    goes = Const() dtype=bool value=bool[]*0
    return goes = goes:output:0
"""


def decided(*texts, **settings):
    """The nodes of a program by name, the root's first, and the reports of its functions."""
    root, *callees = map(function, texts)
    library = FunctionDefLibrary(function=callees)
    config = AmpConfig(**{"precision": "bfloat16", "target": "cpu", **settings})
    results = rewrite_program(root, callees, config, BF16_CPU, library)
    graphs = [graph for result in results for graph in result.report.graphs]
    return {node.name: node for graph in graphs for node in graph.nodes}, graphs


def called(call, result="given:output:0"):
    return ROOT.format(call=call, result=result)


BRANCHES = "Tcond=bool Tin=[float32] Tout=[float32] then_branch=log else_branch=tanh"
NEEDED = {
    "by a call": (
        called("PartitionedCall(chance:y:0) Tin=[float32] Tout=[float32] f=log"),
        LOG,
    ),
    "by a call in a call": (called("outer(chance:y:0)", "given:l:0"), LOG, OUTER),
    "by one branch": (called(f"StatelessIf(go, chance:y:0) {BRANCHES}"), LOG, TANH),
    "by a loop": (
        called(
            "StatelessWhile(x, chance:y:0) T=[float32, float32] cond=goes_on body=step",
        ),
        STEP,
        GOES_ON,
    ),
    "by one of two calls": (
        called(
            "log(before:product:0)\n    other = log(chance:y:0)",
            "other:l:0",
        ),
        LOG,
    ),
}


@pytest.mark.parametrize("texts", NEEDED.values(), ids=NEEDED)
def test_what_a_function_needs_exactly_is_float32_where_it_is_made(texts):
    nodes, _ = decided(*texts)
    assert nodes["chance"].reason.rule is Code.NEEDED
    assert nodes["chance"].reason.cause in ("given", "other")
    assert nodes["before"].precision.is_f16
    assert nodes["after"].precision.is_f16


NOT_NEEDED = {
    "by a function without a need": (called("tanh(chance:y:0)", "given:l:0"), TANH),
    "by an op that is no call": (
        called("SymbolicGradient(chance:y:0) Tin=[float32] Tout=[float32] f=log"),
        LOG,
    ),
}


@pytest.mark.parametrize("texts", NOT_NEEDED.values(), ids=NOT_NEEDED)
def test_a_value_that_a_function_needs_not_is_16_bit(texts):
    nodes, _ = decided(*texts)
    assert nodes["chance"].precision.is_f16


LAYER = """
    function layer(x: float32) -> (p: float32, y: float32)
    before = MatMul(x, x)
    chance = Sigmoid(before:product:0)
    after = MatMul(chance:y:0, x)
    return p = chance:y:0
    return y = after:product:0
"""


def test_what_a_caller_needs_exactly_is_float32_in_the_function():
    root = """
        function root(x: float32) -> (y: float32, z: float32)
        made = layer(x)
        logarithm = Log(made:p:0)
        return y = made:y:0
        return z = logarithm:y:0
    """
    nodes, _ = decided(root, LAYER)
    assert nodes["chance"].reason.rule is Code.NEEDED
    assert nodes["chance"].reason.cause == "layer/p"
    assert nodes["after"].precision.is_f16


def test_the_deny_list_reaches_what_uses_a_functions_result():
    root = """
        function root(x: float32) -> (y: float32)
        before = MatMul(x, x)
        large = exp(x)
        sum = AddV2(before:product:0, large:e:0)
        after = MatMul(sum:z:0, x)
        return y = after:product:0
    """
    exp = """
        function exp(x: float32) -> (e: float32)
        power = Exp(x)
        return e = power:y:0
    """
    nodes, _ = decided(root, exp, precision="float16")
    assert nodes["sum"].reason.rule is Code.AFTER_DENY
    assert nodes["sum"].reason.cause == "large"


def test_a_constant_beyond_range_reaches_the_function_that_gets_it():
    root = """
        function root(x: float32) -> (y: float32)
        never = Const() value=float32[4]*-1e9
        given = PartitionedCall(x, never:output:0) Tin=[float32, float32] Tout=[float32] f=attend
        return y = given:output:0
    """
    attend = """
        function attend(x: float32, mask: float32) -> (y: float32)
        before = MatMul(x, x)
        masked = AddV2(before:product:0, mask)
        weights = Softmax(masked:z:0)
        after = MatMul(weights:softmax:0, x)
        return y = after:product:0
    """
    nodes, _ = decided(root, attend, precision="float16")
    assert nodes["masked"].reason.rule is Code.BEYOND_RANGE
    assert nodes["weights"].reason.rule is Code.BEYOND_RANGE
    assert nodes["after"].precision.is_f16


def test_a_report_tells_what_a_rule_costs_that_another_function_asks_for(tmp_path):
    _, graphs = decided(*NEEDED["by a call"], report_path=str(tmp_path / "report.json"))
    _, _, turned = graphs[0].gain(Change(rules=frozenset(["needs"])))
    assert turned == 1
