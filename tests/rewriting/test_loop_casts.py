"""Casts of what a functional loop only reads: which stand before it, and what stays as it is."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.rewriting.pipeline import rewrite_program
from tests.small_graphs import function

BF16 = tf.bfloat16.as_datatype_enum
TYPES = "T=[int32, float32, resource, float32]"
MAIN = f"""
    function main(x: float32, w: resource, v: float32) -> (y: float32)
      zero = Const() dtype=int32 value=int32[]*0
      first = AssignVariableOp(w, v) dtype=float32
      loop = While(zero:output:0, x, w, v, ^first) {TYPES} body=body cond=cond
      return y = loop:output:1
"""
ARGUMENTS = "i: int32, x: float32, w: resource, v: float32"
COND = f"""
    function cond({ARGUMENTS}) -> (more: bool)
      three = Const() dtype=int32 value=int32[]*3
      less = Less(i, three:output:0) T=int32
      return more = less:z:0
"""
BODY = f"""
    function body({ARGUMENTS}) -> (i_: int32, x_: float32, w_: resource, v_: float32)
      one = Const() dtype=int32 value=int32[]*1
      next = AddV2(i, one:output:0) T=int32
      read = ReadVariableOp(w) dtype=float32
      product = MatMul(x, read:value:0)
      given = Identity(v)
      again = MatMul(product:product:0, v)
      return i_ = next:z:0
      return x_ = again:product:0
      return w_ = w
      return v_ = given:output:0
"""
READ = "      read = "
LESS = "      less = "
WRITING = "      write = AssignVariableOp(w, v) dtype=float32\n"
OTHER = f"""
    function other({ARGUMENTS}) -> (y: float32)
      again = While(i, x, w, v) {TYPES} body=body cond=cond
      return y = again:output:1
"""


def rewritten(*texts):
    """The functions of a program for XLA in bfloat16, by name; the first is the root."""
    return rewritten_functions(*map(function, texts))


def rewritten_functions(root, *functions):
    library = FunctionDefLibrary(function=functions)
    config = AmpConfig(precision="bfloat16")
    results = rewrite_program(root, functions, config, Hardware(is_xla=True), library)
    return {result.graph.signature.name: result.graph for result in results}


def nodes(definition):
    return {node.name: node for node in definition.node_def}


def test_a_weight_and_a_value_that_no_turn_changes_are_cast_before_the_loop():
    found = rewritten(MAIN, COND, BODY)
    main = nodes(found["main"])
    loop = main["loop"]
    *given, weight, value, control = loop.input
    assert (given, control) == (["zero:output:0", "x", "w", "v"], "^first")
    read = main[main[weight.partition(":")[0]].input[0].partition(":")[0]]
    # It reads what was written before the loop.
    assert (read.op, list(read.input)) == ("ReadVariableOp", ["w", "^first"])
    assert main[value.partition(":")[0]].input == ["v"]
    assert list(loop.attr["T"].list.type)[-2:] == [BF16, BF16]
    body = found["body"]
    names = [arg.name for arg in body.signature.input_arg[-2:]]
    for definition in (body, found["cond"]):
        assert [arg.name for arg in definition.signature.input_arg[-2:]] == names
        assert {arg.type for arg in definition.signature.input_arg[-2:]} == {BF16}
    assert [body.ret[arg.name] for arg in body.signature.output_arg[-2:]] == names
    products = nodes(body)
    assert [products[name].input[1] for name in ("product", "again")] == names


OUTPUTS = ("output_shapes", "_output_shapes")


def test_an_imported_loop_has_a_shape_for_each_variable_and_any_other_has_none():
    """``tf.Graph.as_graph_def(add_shapes=True)`` writes shapes, as exporters do."""
    definitions = list(map(function, (MAIN, COND, BODY)))
    without = rewritten_functions(*definitions)
    (loop,) = (node for node in definitions[0].node_def if node.name == "loop")
    shaped = [(loop.attr, name) for name in OUTPUTS]
    shaped += [(definition.attr, "_input_shapes") for definition in definitions[1:]]
    for attributes, name in shaped:
        for _ in range(4):
            attributes[name].list.shape.add(unknown_rank=True)
    found = rewritten_functions(*definitions)
    shapes = nodes(found["main"])["loop"].attr
    assert [len(shapes[name].list.shape) for name in OUTPUTS] == [6, 6]
    for name in ("cond", "body"):
        graph = function_def_to_graph(found[name])
        assert [tensor.shape.rank for tensor in graph.inputs[-2:]] == [None, None]
        assert "_input_shapes" not in without[name].attr
    assert set(OUTPUTS).isdisjoint(nodes(without["main"])["loop"].attr)


CALL = (
    "      call = StatefulPartitionedCall(x, w, v) Tin=[float32, resource, float32] Tout=[float32] "
    "f={}\n"
)
WAVE = """
    function wave(x: float32, w: resource, v: float32) -> (y: float32)
      y = Sin(x)
      return y = y:y:0
"""
SETTER = WAVE.replace("wave", "setter").replace("      y = ", f"{WRITING}      y = ")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((MAIN, COND, BODY.replace(READ, WRITING + READ)), "the body writes"),
        ((MAIN, COND.replace(LESS, WRITING + LESS), BODY), "the condition writes"),
        ((MAIN, COND, BODY, OTHER), "another loop has its body"),
        ((MAIN, COND, BODY.replace(READ, CALL.format("setter") + READ), SETTER), "a call writes"),
        ((MAIN, COND, BODY.replace(READ, CALL.format("f") + READ), WAVE), "a function is unknown"),
    ],
)
def test_a_loop_stays_as_it_is_where(texts, why):
    found = rewritten(*texts)
    assert len(nodes(found["main"])["loop"].input) == 5, why
    assert len(found["body"].signature.input_arg) == 4


@pytest.mark.parametrize(
    "added",
    [
        CALL.format("wave"),
        "      write = AssignVariableOp(w, i) dtype=int32\n",
        "      count = AssignAddVariableOp(w, i) dtype=int32\n",
    ],
    ids=["a function that writes nothing", "an integer", "a count"],
)
def test_other_calls_and_writes_do_not_matter(added):
    found = rewritten(MAIN, COND, BODY.replace(READ, added + READ), WAVE)
    assert len(nodes(found["main"])["loop"].input) == 7


def test_what_turns_change_is_cast_in_the_loop():
    changing = BODY.replace("given = Identity(v)", "given = Tanh(v)").replace(
        "given:output:0", "given:y:0"
    )
    found = rewritten(MAIN, COND, changing)
    added = nodes(found["main"])["loop"].input[4:-1]
    assert [nodes(found["main"])[text.partition(":")[0]].op for text in added] == ["Cast"]
    assert "v" in {node.input[0] for node in found["body"].node_def if node.op == "Cast"}


def test_names_that_are_taken_are_not_used_again():
    taken = BODY.replace("one = Const", "amp_tf_cast_0 = Const").replace(
        "AddV2(i, one:output:0)", "AddV2(i, amp_tf_cast_0:output:0)"
    )
    found = rewritten(MAIN, COND.replace("three", "amp_tf_cast_1"), taken)
    names = [arg.name for arg in found["body"].signature.input_arg[-2:]]
    assert names == ["amp_tf_cast_2", "amp_tf_cast_3"]
