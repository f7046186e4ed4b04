"""Static shapes, as far as they are known."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from amp_tf.cpu.list_shapes import follow_lists
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import NOMINAL_BATCH, KnownShapes, element_count
from amp_tf.graph.templates import Templates
from amp_tf.oplists.table import ALIKE, BROADCASTING, CONTROL_FLOW
from amp_tf.painting.work import operations_of
from tests.rewriting.rewritten import GraphShapes
from tests.small_graphs import graph


def test_an_unknown_first_dimension_counts_as_a_nominal_batch():
    assert element_count((-1, 3)) == 3 * NOMINAL_BATCH
    assert element_count(()) == 1
    assert element_count(None) is None
    assert element_count((3, -1)) is None


def test_shapes_come_from_the_attribute_that_exporters_write():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        tf.split(x, 2, axis=1, name="s")
        tf.compat.v1.placeholder(tf.float32, None, name="any")
    view = read_graph(graph.as_graph_def(add_shapes=True), Templates())
    shapes = KnownShapes.of_nodes(view)
    assert shapes.output_shapes("s") == [(-1, 2), (-1, 2)]
    assert shapes.output_shapes("any") == [None]
    assert shapes.output_shapes("nothing") == ()


KEPT = """
    first = Placeholder()
    x = Enter(first) frame_name='f'
    anything = Const() dtype=int32 value=int32[]*-1
    size = Const() dtype=int32 value=int32[]*5
    list = EmptyTensorList(anything, size) element_dtype=float32 shape_type=int32
    more = TensorListPushBack(list, x) element_dtype=float32
    kept = TensorListPopBack(more, anything) element_dtype=float32
"""
AXIS = "axis = Const() dtype=int32 value=int32[]"


def _shapes(lines, x=(4, 8), **others):
    """Follows lists in a graph of which some shapes are known."""
    view = read_graph(graph(KEPT + lines), Templates())
    known = {name: [shape] for name, shape in others.items()}
    shapes = KnownShapes({"x": [x], "kept": [(), None], **known})
    return follow_lists(view, shapes).output_shapes


def test_an_element_has_the_shape_that_was_pushed():
    assert _shapes("")("kept") == [(), (4, 8)]
    assert _shapes("", (-1, 8))("kept") == [(), (-1, 8)]
    assert _shapes("", (4, -1))("kept") == [(), None]


def test_an_element_that_is_set_by_number_has_the_shape_of_the_one_that_was_set():
    lines = """
        set = TensorListSetItem(list, size, x) element_dtype=float32
        got = TensorListGetItem(set, size, anything) element_dtype=float32
    """
    assert _shapes(lines, got=None)("got") == [(4, 8)]


def _line(op):
    """The line of a node that computes something of the element alone."""
    if op == "Cast":
        return "y = Cast(kept:1) SrcT=float32 DstT=bfloat16"
    inputs = ["kept:1"] * max(len(op_def_registry.get(op).input_arg), 1)
    if op == "AddN":
        inputs *= 2
    if op == "SelectV2":
        inputs[0] = "no"
    return f"no = Const() dtype=bool value=bool[]*0\n y = {op}({', '.join(inputs)})"


CHAINS = {
    "first turned": "y = MatMul(kept:1, kept:1) transpose_a=true",
    "second turned": "y = MatMul(kept:1, kept:1) transpose_b=true",
    "joined": f"{AXIS}*1\n y = ConcatV2(kept:1, kept:1, axis) N=2",
    "joined from behind": f"{AXIS}*-2\n y = ConcatV2(kept:1, kept:1, axis) N=2",
    "parted": f"{AXIS}*1\n y = Split(axis, kept:1) num_split=4",
    "in a chain": "z = AddV2(kept:1, x)\n y = TanhGrad(z, kept:1)",
    "broadcast": "row = Const() value=float32[8]\n y = Mul(kept:1, row)",
    **{op: _line(op) for op in sorted((ALIKE | BROADCASTING) - CONTROL_FLOW)},
}


@pytest.mark.parametrize("lines", CHAINS.values(), ids=CHAINS)
def test_what_is_computed_of_it_has_the_shape_that_tensorflow_gives_it(lines):
    """TensorFlow infers it where a tensor of the shape is in the element's place."""
    given = "x = Placeholder() shape=[4, 8]\n"
    inferred = GraphShapes(graph(given + lines.replace("kept:1", "x")))
    found = _shapes(lines, no=(), row=(8,))("y")
    assert found == inferred.output_shapes("y")


@pytest.mark.parametrize(
    "line",
    [
        "axis = Placeholder() dtype=int32\n y = ConcatV2(kept:1, kept:1, axis) N=2",
        "axis = Const() dtype=int32 value=int32[]*2\n y = ConcatV2(kept:1, kept:1, axis) N=2",
        "axis = Placeholder() dtype=int32\n y = Split(axis, kept:1) num_split=2",
        "y = Reshape(kept:1, size)",
        "z = Placeholder()\n y = Mul(kept:1, z)",
        "z = Placeholder()\n y = MatMul(kept:1, z)",
    ],
)
def test_what_does_not_follow_stays_unknown(line):
    assert _shapes(line)("y") == ()


def test_the_products_of_a_loops_gradient_are_known():
    """As TensorFlow itself lowers a loop and its gradient, and infers shapes."""

    @tf.function(input_signature=[tf.TensorSpec((4, 16)), tf.TensorSpec((16, 16))])
    def step(x, w):
        y = tf.while_loop(lambda i, _: i < 9, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x))[1]
        return tf.gradients(y, w)

    concrete = step.get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=True)
    with tf.Graph().as_default() as lowered:
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
    graph_def = lowered.as_graph_def(add_shapes=True)
    view = read_graph(graph_def, Templates(graph_def.library))
    before = KnownShapes.of_nodes(view)
    after = follow_lists(view, before)
    products = view.nodes_with(("MatMul",))
    assert len(products) == 3
    assert None in [operations_of(view, node, before) for node in products]
    for node in products:
        assert operations_of(view, node, after) == 2.0 * 4 * 16 * 16


def test_elements_of_different_shapes_say_nothing():
    lines = """
        y = Reshape(x, size) T=float32
        both = TensorListPushBack(more, y) element_dtype=float32
        other = TensorListPopBack(both, anything) element_dtype=float32
    """
    found = _shapes(lines, y=(32,))
    assert found("other") == ()
    assert found("kept") == [(), (4, 8)]
