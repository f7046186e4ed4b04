from __future__ import annotations

import pytest

import amp_tf
from amp_tf.errors import GraphError
from amp_tf.graph import datatypes, templates
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from tests.small_graphs import function, graph, node


def signature(line, templates=None):
    made = node(line)
    return (templates or Templates()).find(made.op).signature(made)


def test_ports_of_one_type_attribute_share_a_slot():
    found = signature("m = MatMul(a, b)")
    assert [str(slot) for slot in found.slots] == ["T"]
    assert (found.inputs, found.outputs) == ((0, 0), (0,))


def test_each_entry_of_a_list_of_types_is_a_slot():
    found = signature("i = IdentityN(a, b) T=[float32, int32]")
    assert [str(slot) for slot in found.slots] == ["T[0]", "T[1]"]
    assert (found.inputs, found.outputs) == ((0, 1), (0, 1))


def test_a_count_repeats_the_port_but_not_the_slot():
    found = signature("a = AddN(a, b, c)")
    assert (found.inputs, found.outputs) == ((0, 0, 0), (0,))


def test_a_fixed_type_is_a_slot_that_nothing_can_change():
    found = signature("s = SparseMatMul(a, b) Ta=float32 Tb=float32")
    fixed = found.slots[found.outputs[0]]
    assert fixed.is_fixed
    assert fixed.fixed == datatypes.FLOAT
    assert str(fixed) == "float32"
    assert not fixed.can_be(datatypes.HALF)


def test_the_types_that_a_definition_allows_are_kept():
    found = signature("f = FusedBatchNorm(a, b, c, d, e)").slots[0]
    assert found.can_be(datatypes.FLOAT)
    assert not found.can_be(datatypes.HALF)
    assert signature("i = Identity(a)").slots[0].can_be(datatypes.INT32)


def test_output_arguments_know_their_first_port():
    assert signature("u = Unique(a)").output_starts == {"y": 0, "idx": 1}


def test_state_references_and_calls_are_known():
    assert signature("v = VariableV2() shape=[2]").has_refs
    assert signature("v = VariableV2() shape=[2]").is_stateful
    assert signature("w = While(a) T=[float32] cond=c body=b").holds_functions
    plain = signature("m = MatMul(a, b)")
    assert (plain.has_refs, plain.is_stateful, plain.holds_functions) == (False, False, False)


def test_a_library_function_is_an_op_and_hides_a_registered_one():
    library = graph("", function("function MatMul(x: int32) -> (y: int32)\nreturn y = x")).library
    templates = Templates(library)
    assert templates.is_function("MatMul")
    assert not templates.is_function("Relu")
    assert templates.find("MatMul").fixed_signature.inputs == (0,)
    assert len(Templates().find("MatMul").fixed_signature.inputs) == 2, "one library must not leak into another"


def test_a_successor_stands_for_its_op_with_one_type_more():
    found = signature("f = FusedBatchNorm(a, b, c, d, e)", Templates(successors=SUCCESSORS))
    assert found.op == "FusedBatchNormV2"
    assert found.slots[found.slot_of("U")].fixed == datatypes.FLOAT
    assert found.slots[found.slot_of("T")].can_be(datatypes.HALF)


def test_an_unknown_op_is_refused():
    with pytest.raises(GraphError) as caught:
        Templates().find("MatMull")
    assert str(caught.value) == (
        "op 'MatMull' is not registered in this TensorFlow and not in the graph's function library. "
        "Load the library that defines it (tf.load_op_library) first."
    )


def test_a_missing_count_is_refused():
    made = node("a = AddN(a, b)")
    del made.attr["N"]
    with pytest.raises(GraphError, match=r"^AddN needs the attribute 'N', which is missing\."):
        Templates().find("AddN").signature(made)


@pytest.mark.parametrize("count", [-1, 1 << 40])
def test_an_absurd_count_is_refused_before_any_port_is_made(count):
    made = node("a = AddN(a, b)")
    made.attr["N"].i = count
    with pytest.raises(GraphError, match=rf"^attribute 'N' of AddN is {count}, expected 0 to 1048576\."):
        Templates().find("AddN").signature(made)


PRODUCTS = frozenset({"MatMul"})


def calling(name, callee):
    return function(
        f"function {name}(x: float32) -> (y: float32)\nc = PartitionedCall(x) Tin=[float32] Tout=[float32] f={callee}\n"
        "return y = c:output:0"
    )


def product(name):
    return function(f"function {name}(x: float32) -> (y: float32)\na = MatMul(x, x)\nreturn y = a:product:0")


def sine(name):
    return function(f"function {name}(x: float32) -> (y: float32)\na = Sin(x)\nreturn y = a:y:0")


@pytest.mark.parametrize(
    ("functions", "answer"),
    [
        ([product("f")], True),
        ([sine("f")], False),
        ([calling("f", "g"), product("g")], True),
        ([calling("f", "g"), sine("g"), product("h")], False),
        ([calling("f", "g"), calling("g", "f")], False),
        ([calling("f", "g"), calling("g", "h"), calling("h", "f"), product("i")], False),
        ([calling("f", "unknown")], True),
        ([calling("f", "g"), calling("g", "unknown")], True),
        ([], True),
    ],
)
def test_a_call_reaches_what_the_functions_behind_it_run(functions, answer):
    caller = calling("main", "f").node_def[0]
    assert Templates(graph("", *functions).library).reaches(caller, PRODUCTS) is answer


def test_a_chain_of_calls_is_walked_once_not_once_for_each_of_its_functions(monkeypatch):
    asked = []
    monkeypatch.setattr(
        templates, "referenced", lambda node, original=templates.referenced: asked.append(node) or original(node)
    )
    count = 150
    proto = graph("x = Placeholder()\nc = PartitionedCall(x) Tin=[float32] Tout=[float32] f=f0")
    proto.library.function.extend(calling(f"f{i}", f"f{i + 1}") for i in range(count))
    proto.library.function.append(product(f"f{count}"))
    result = amp_tf.rewrite(proto, amp_tf.AmpConfig(precision="bfloat16"), hardware=Hardware(cpu_has_bf16=True))
    assert result.report.converted == 1
    assert len(asked) < 5 * count
