from __future__ import annotations

import re

import numpy as np
import pytest

from amp_tf.errors import GraphError
from amp_tf.graph import editor
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, Wait, attribute, having
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from tests import small_graphs
from tests.small_graphs import graph

FLOAT = 1
HALF = 19


def made(line, *inputs, after=()):
    """A new node with the attributes of a line."""
    model = small_graphs.node(line)
    return NewNode(model.name, model.op, "", inputs, after, having(**model.attr))


FOLDING = """
    x = Placeholder() shape=[2, 4, 4, 3]
    w = Placeholder() shape=[1, 1, 3, 3]
    s = Placeholder() shape=[3]
    conv = Conv2D(x, w) padding='SAME' strides=[1, 1, 1, 1]
    scaled = Mul(conv, s)
    shifted = AddN(scaled, s) N=2
"""
X, W, S, CONV, SCALED, SHIFTED = range(6)
FOLD = Edits(
    reops=(Reop(SHIFTED, "BiasAdd", {"data_format": attribute(s=b"NHWC"), "N": None}),),
    rewires=(
        Rewire(CONV, 1, SCALED, 0),
        Rewire(SCALED, 0, W, 0),
        Rewire(SCALED, 1, 7, 0),
        Rewire(SHIFTED, 0, CONV, 0),
    ),
    new=(
        made("shape = Const() dtype=int32 value=int32[2]"),
        made("vector = Reshape()", (S, 0), (6, 0)),
    ),
)

SPLITTING = """
    x = Placeholder()
    y = Placeholder()
    z = Placeholder()
    early = Relu(whole)
    whole = AddN(x, y, z) N=3 ^x
    late = Relu(whole)
"""
WHOLE = 4
PART = 6
PARTED = Edits(
    reops=(Reop(WHOLE, "AddV2", {"N": None}, ((PART, 0), (2, 0))),),
    new=(made("part = AddV2()", (0, 0), (1, 0), after=(0,)),),
)

HOISTING = """
w = VarHandleOp() dtype=float32 shape=[4, 4]
x = Placeholder() shape=[4, 4]
w_in = Enter(w) T=resource frame_name='loop' is_constant=true parallel_iterations=7 @/device:CPU:0
x_in = Enter(x) frame_name='loop'
read = ReadVariableOp(w_in) dtype=float32 _mark=true @/device:CPU:0 ^x_in
product = MatMul(x_in, read)
"""
W_OUTSIDE, X_OUTSIDE, _, _, READ, PRODUCT, EARLY, ENTER = range(8)


def view_of(text):
    return read_graph(graph(text), Templates())


def hoist():
    view = view_of(HOISTING)
    variable = ((W_OUTSIDE, 0),)
    after = (X_OUTSIDE,)
    attributes = having(**view.protos[READ].attr)
    device = view.devices[READ]
    early = NewNode("early", "ReadVariableOp", device, variable, after, attributes)
    enter = made("enter = Enter() frame_name='l' is_constant=true", (EARLY, 0), after=after)
    rewire = Rewire(PRODUCT, 1, ENTER, 0)
    return Edits(rewires=(rewire,), waits=(Wait(READ, ENTER),), new=(early, enter))


def written(text, edits):
    """The view before, and the graph once the edits are made."""
    before = graph(text)
    view = read_graph(before, Templates())
    return view, editor.apply_to_graph(before, view.names, edits)


def check_same(planned, found):
    """Checks that a view is the one that was read from bytes; its kinds may be finer."""
    for field in ("names", "ops", "devices", "dtypes"):
        assert getattr(planned, field) == getattr(found, field), field
    assert list(planned.base) == list(found.base)
    assert sorted(planned.controls.tolist()) == sorted(found.controls.tolist())
    for mine, other in zip(planned.signatures, found.signatures, strict=True):
        assert mine.slots == other.slots
    for column in ("src_node", "src_port", "dst_node", "dst_position", "src_unit", "dst_unit"):
        mine = getattr(planned.edges, column)
        other = getattr(found.edges, column)
        np.testing.assert_array_equal(mine, other)
    assert list(planned.protos) == list(found.protos)
    for node, kind in enumerate(planned.kinds):
        assert planned.of_kind[kind] is planned.signatures[node]


def retyped(view):
    """More edits, of a graph after others: a type, a cast of a new node's result, and one more
    reader of that.
    """
    last = view.node_count - 1
    units = []
    for unit in view.units(last):
        if view.dtypes[unit] == FLOAT:
            units.append(unit)
    retype = view.retyped(units[:1], HALF)
    rewire = Rewire(last, 0, view.node_count, 0)
    cast = NewNode.cast("cast", (X, 0), "/device:CPU:0", of=FLOAT, to=HALF)
    return Edits(retypes=(retype,), rewires=(rewire,), new=(cast,))


@pytest.mark.parametrize(
    ("text", "edits"),
    [(FOLDING, FOLD), (SPLITTING, PARTED), (HOISTING, hoist())],
    ids=["folding", "splitting", "hoisting"],
)
def test_the_view_after_edits_is_that_of_the_graph_when_it_is_written(text, edits):
    view, proto = written(text, edits)
    check_same(view.after(edits, Templates()), read_graph(proto, Templates()))
    check_same(read_graph(proto, Templates(), view), read_graph(proto, Templates()))


@pytest.mark.parametrize(
    "change",
    [
        lambda nodes: nodes.pop(0),
        lambda nodes: nodes.pop(),
        lambda nodes: nodes.insert(0, nodes[-1]),
        lambda nodes: nodes.append(type(nodes[0])(name="new", op="NoOp", input=["^x"])),
        lambda nodes: setattr(nodes[-1], "name", "other"),
        lambda nodes: setattr(nodes[0], "device", "/cpu:0"),
        lambda nodes: nodes[0].attr["_mark"].CopyFrom(attribute(b=True)),
    ],
)
def test_a_graph_that_is_read_beside_another_one_is_read_as_by_itself(change):
    view = view_of(SPLITTING)
    nodes = list(graph(SPLITTING).node)
    change(nodes)
    proto = graph("")
    for node in nodes:
        if node.name not in [other.name for other in proto.node]:
            proto.node.append(node)
    try:
        alone = read_graph(proto, Templates())
    except GraphError as error:
        with pytest.raises(GraphError, match=re.escape(str(error))):
            read_graph(proto, Templates(), view)
        return
    beside = read_graph(proto, Templates(), view)
    check_same(beside, alone)
    for mark in ("_mark", "_none"):
        assert beside.marked(mark) == alone.marked(mark)


def test_the_view_after_an_op_with_more_types_is_that_of_the_graph_when_it_is_written():
    """All units behind it have other numbers then."""
    text = "x = Placeholder()\nr = Relu(x)\ns = IdentityN(r, x) T=[float32, float32]\nt = Relu(s:1)"
    attributes = {"SrcT": attribute(type=FLOAT), "DstT": attribute(type=FLOAT), "T": None}
    edits = Edits((Reop(1, "Cast", attributes),), waits=(Wait(2, 0),))
    view, proto = written(text, edits)
    assert len(view.units(1)) == 1
    check_same(view.after(edits, Templates()), read_graph(proto, Templates()))


@pytest.mark.parametrize(
    ("text", "edits"), [(FOLDING, FOLD), (HOISTING, hoist())], ids=["folding", "hoisting"]
)
def test_edits_of_the_graph_that_edits_make_are_edits_of_the_graph_before(text, edits):
    before = view_of(text)
    middle = before.after(edits, Templates())
    more = retyped(middle)
    _, proto = written(text, edits.then(more))
    nodes = {node.name: node for node in proto.node}
    assert nodes[middle.names[-1]].input[0] == "cast"
    assert [node.name for node in proto.node] == [*middle.names, "cast"]
    twice = middle.after(more, Templates())
    at_once = before.after(edits.then(more), Templates())
    for each in (twice, at_once):
        assert list(each.protos) == list(proto.node)
        assert each.names == [*middle.names, "cast"]
    assert twice.dtypes == at_once.dtypes
    assert HALF in twice.dtypes


def test_a_node_that_is_made_anew_keeps_no_input_that_was_given_to_what_it_was():
    before = view_of(SPLITTING)
    shared = Edits(rewires=(Rewire(WHOLE, 1, 0, 0),))
    both = shared.then(PARTED)
    twice = before.after(shared, Templates()).after(PARTED, Templates())
    at_once = before.after(both, Templates())
    assert twice.inputs(WHOLE) == at_once.inputs(WHOLE) == [(PART, 0), (2, 0)]
    _, proto = written(SPLITTING, both)
    assert list(proto.node[WHOLE].input) == ["part", "z", "^x"]
