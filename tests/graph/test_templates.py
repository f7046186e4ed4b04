"""Signatures of ops, what calls reach, the names of types, and whole numbers in constants."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2

import amp_tf
from amp_tf.errors import GraphError
from amp_tf.graph import datatypes, templates
from amp_tf.graph.attributes import whole_number
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from tests.small_graphs import function, graph, node


def signature(line, templates=None):
    made = node(line)
    return (templates or Templates()).find(made.op).signature(made)


def test_a_library_function_is_an_op_and_hides_a_registered_one():
    library = graph("", function("function MatMul(x: int32) -> (y: int32)\nreturn y = x")).library
    templates = Templates(library)
    assert templates.is_function("MatMul")
    assert not templates.is_function("Relu")
    assert templates.find("MatMul").signature(None).inputs == (0,)
    assert len(Templates().find("MatMul").signature(None).inputs) == 2, (
        "one library must not leak into another"
    )


def test_a_successor_stands_for_its_op_with_one_type_more():
    found = signature("f = FusedBatchNorm(a, b, c, d, e)", Templates(successors=SUCCESSORS))
    assert found.op == "FusedBatchNormV2"
    slots = {slot.attr: slot for slot in found.slots}
    assert slots["U"].fixed == datatypes.FLOAT
    assert slots["T"].can_be(datatypes.HALF)


def test_a_missing_count_is_refused():
    made = node("a = AddN(a, b)")
    del made.attr["N"]
    with pytest.raises(GraphError, match=r"^AddN needs the attribute 'N', which is missing\."):
        Templates().find("AddN").signature(made)


PRODUCTS = frozenset({"MatMul"})


def calling(name, callee):
    return function(
        f"function {name}(x: float32) -> (y: float32)\nc = PartitionedCall(x) Tin=[float32] "
        f"Tout=[float32] f={callee}\n"
        "return y = c:output:0"
    )


def product(name):
    return function(
        f"function {name}(x: float32) -> (y: float32)\na = MatMul(x, x)\nreturn y = a:product:0"
    )


def sine(name):
    return function(f"function {name}(x: float32) -> (y: float32)\na = Sin(x)\nreturn y = a:y:0")


#: Functions, what each calls or multiplies (or not), and whether a call of f reaches a product.
CALLED = {
    "f:product": True,
    "f:sine": False,
    "f:g g:product": True,
    "f:g g:sine h:product": False,
    "f:g g:f": False,
    "f:g g:h h:f i:product": False,
    "f:unknown": True,
    "f:g g:unknown": True,
    "": True,
}


@pytest.mark.parametrize("library", CALLED)
def test_a_call_reaches_what_the_functions_behind_it_run(library):
    functions = []
    for entry in library.split():
        name, does = entry.split(":")
        bodies = {"product": product, "sine": sine}
        functions.append(bodies[does](name) if does in bodies else calling(name, does))
    caller = calling("main", "f").node_def[0]
    found = Templates(graph("", *functions).library)
    assert found.reaches(caller, PRODUCTS) is CALLED[library]


def test_a_chain_of_calls_is_walked_once_not_once_for_each_of_its_functions(monkeypatch):
    asked = []
    original = templates.referenced

    def counted(node):
        asked.append(node)
        return original(node)

    monkeypatch.setattr(templates, "referenced", counted)
    count = 150
    # Products stand in the graph alone: it asks of each function whether it reaches one.
    lines = ["x = Placeholder()", "y0 = MatMul(x, x)"]
    for i in range(count):
        lines.append(f"y{i + 1} = PartitionedCall(y{i}) Tin=[float32] Tout=[float32] f=f{i}")
    functions = [calling(f"f{i}", f"f{i + 1}") for i in range(count)]
    proto = graph("\n".join(lines), *functions, sine(f"f{count}"))
    config = amp_tf.AmpConfig(precision="bfloat16")
    result = amp_tf.rewrite(proto, config, hardware=Hardware(cpu_has_bf16=True))
    assert result.report.converted == 1
    assert len(asked) < 5 * count


def test_quantized_types_are_those_of_tensorflow():
    quantized = set()
    for number in types_pb2.DataType.values():
        if 0 < number < 100 and tf.as_dtype(number).is_quantized:
            quantized.add(number)
    assert quantized == datatypes.QUANTIZED


def test_names_are_those_that_python_users_know():
    for number in types_pb2.DataType.values():
        if 0 < number <= 25:
            assert datatypes.type_name(number) == tf.as_dtype(number).name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "float32"),
        (101, "float32_ref"),
        (119, "float16_ref"),
        (0, "invalid"),
        (77, "DataType 77"),
    ],
)
def test_a_reference_type_is_named_after_its_base(number, name):
    assert datatypes.type_name(number) == name


def _constant(tensor):
    node = node_def_pb2.NodeDef(name="c", op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    return node


@pytest.mark.parametrize("number", [0, 1, -1, 24, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_number_is_read_in_each_of_its_forms(number, dtype):
    written = tf.make_tensor_proto(number, dtype)
    packed = tf.make_tensor_proto(number, dtype)
    packed.ClearField("int_val")
    packed.ClearField("int64_val")
    packed.tensor_content = np.array(number, dtype).tobytes()
    assert whole_number(_constant(written)) == whole_number(_constant(packed)) == number


def test_a_zero_may_be_left_out():
    zero = tf.make_tensor_proto(0, np.int32)
    zero.ClearField("int_val")
    assert tf.make_ndarray(zero) == 0
    assert whole_number(_constant(zero)) == 0


@pytest.mark.parametrize("value", [1.5, True, [1, 2], [3, 3], np.zeros((0,), np.int32)])
def test_what_is_no_single_whole_number_is_none(value):
    assert whole_number(_constant(tf.make_tensor_proto(value))) is None
    assert whole_number(node_def_pb2.NodeDef(name="c", op="Const")) is None
