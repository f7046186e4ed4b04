from __future__ import annotations

import re

import pytest

from amp_tf.errors import GraphError
from amp_tf.graph.edits import Edits, NewNode, Rewire
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import find_violation
from tests.graph.test_edits import (
    CONV,
    FLOAT,
    FOLD,
    FOLDING,
    HOISTING,
    PARTED,
    SHIFTED,
    SPLITTING,
    W,
    X,
    hoist,
    written,
)
from tests.graph_text import node_to_text
from tests.small_graphs import function, graph


def view(text):
    return read_graph(graph(text), Templates())


PLAIN = "x = Placeholder()\nr = Relu(x) @/device:CPU:0\ns = Relu(r)"
SPLIT = (
    "n = Const() dtype=int32 value=int32[]*0\nx = Placeholder()\np = Split(n, x) num_split=2\ns = "
    "Relu(p:1)"
)
SUM = "x = Placeholder()\na = AddN(x, x, x) N=3"
CAST = "Cast({}) SrcT=float32 DstT=float32"


ORDER = """
    x = Placeholder()
    y = Placeholder()
    s = Relu(x)
    m = MatMul(x, x) transpose_b=true _mark='a' _sizes=[1, 2] ^s ^x
    i = IdentityN(x, x) T=[float32, float32]
"""


def test_types_may_change_and_attributes_may_stand_in_another_order():
    after = graph(ORDER)
    for node, attr in zip(after.node[:4], ("dtype", "dtype", "T", "T"), strict=True):
        node.attr[attr].type = 14
    after.node[4].attr["T"].list.type[:] = [14, 14]
    product = after.node[3]
    attributes = dict(product.attr)
    product.ClearField("attr")
    for key in reversed(attributes):
        product.attr[key].CopyFrom(attributes[key])
    assert find_violation(view(ORDER), read_graph(after, Templates())) == ""


CHANGED = "attributes kept: an attribute of '{}' that is not a type changed"


def test_a_type_may_be_written_that_was_left_to_the_ops_definition():
    text = "x = Placeholder()\nr = LeakyRelu(x) alpha=0.5"
    assert find_violation(view(text), view(f"{text} T=float32")) == ""


def test_a_value_that_is_not_a_number_is_the_one_that_it_was():
    text = "x = Placeholder()\nr = LeakyRelu(x) alpha=nan"
    assert find_violation(view(text), view(text)) == ""
    changed = view(text.replace("nan", "0.5"))
    assert find_violation(view(text), changed) == CHANGED.format("r")


def test_maps_inside_attributes_may_be_written_in_another_order():
    keys = [f"key{number}" for number in range(20)]
    views = []
    for order in (keys, keys[::-1]):
        made = graph("x = Placeholder()\nr = Relu(x) _many=300 ^x")
        for key in order:
            made.node[1].attr["_call"].func.attr[key].i = len(key)
        views.append(read_graph(made, Templates()))
    assert find_violation(*views) == ""
    made.node[1].attr["_call"].func.attr["key7"].i = 0
    assert find_violation(views[0], read_graph(made, Templates())) == CHANGED.format("r")


def test_in_a_function_attributes_are_kept_too():
    text = """
        function f(x: float32) -> (y: float32)
          m = MatMul(x, x) transpose_b=true
          return y = m:product:0
    """
    before = read_function(function(text), Templates())
    after = read_function(function(text.replace("true", "false")), Templates())
    assert find_violation(before, after) == CHANGED.format("m")


def test_a_graph_agrees_with_itself_after_casts():
    cast = PLAIN.replace("(r)", "(c)\nc = " + CAST.format("r"))
    assert find_violation(view(PLAIN), view(cast)) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("transpose_b=true", "transpose_b=false"),
        ("_mark='a'", ""),
        ("_mark='a'", "_mark='b'"),
        ("_mark='a'", "_mark='a' _more='a'"),
        ("[1, 2]", "[1, 3]"),
    ],
)
def test_an_attribute_stays(old, new):
    found = find_violation(view(ORDER), view(ORDER.replace(old, new)))
    assert found == CHANGED.format("m")


@pytest.mark.parametrize(("old", "new"), [("^s", ""), ("^x", "^y")])
def test_a_control_input_stays(old, new):
    found = find_violation(view(ORDER), view(ORDER.replace(old, new)))
    assert found == "waits kept: 'm' waits for others than was planned"


@pytest.mark.parametrize(
    ("text", "old", "new", "sentence"),
    [
        (PLAIN, "\ns = Relu(r)", "", "nodes kept: a node of the original graph is missing"),
        (PLAIN, "s =", "t =", "nodes kept: a node of the original graph is missing"),
        (
            PLAIN,
            "CPU",
            "GPU",
            "devices kept: the device of 'r' changed from '/device:CPU:0' to '/device:GPU:0'",
        ),
        (PLAIN, "s = Relu", "s = Sin", "ops kept: the op of 's' changed from 'Relu' to 'Sin'"),
        (PLAIN, "Relu(x)", "Relu(s)", "no new cycle: 'r' is on a cycle"),
        (PLAIN, "(r)", "(x)", "inputs kept: input 0 of 's' comes from x:0 instead of r:0"),
        (SPLIT, "p:1", "p", "inputs kept: input 0 of 's' comes from p:0 instead of p:1"),
        (
            PLAIN,
            "(r)",
            "(c)\nc = " + CAST.format("x"),
            "inputs kept: input 0 of 's' comes from x:0 instead of r:0",
        ),
        (
            PLAIN,
            "(r)",
            "(c)\nc = Neg(r)",
            "inputs kept: input 0 of 's' comes from a new node instead of r:0",
        ),
        (
            PLAIN,
            "(r)",
            f"(c)\nc = {CAST.format('d')}\nd = {CAST.format('r')}",
            "inputs kept: input 0 of 's' comes from a new node instead of r:0",
        ),
        (SUM, ", x) N=3", ") N=2", "inputs kept: a node has not as many inputs as before"),
    ],
)
def test_each_row_finds_its_violation(text, old, new, sentence):
    assert find_violation(view(text), view(text.replace(old, new))) == sentence


EDITED = {
    "folding": (FOLDING, FOLD),
    "hoisting": (HOISTING, hoist()),
    "splitting": (SPLITTING, PARTED),
}
#: Changes of a line: the node, what is replaced in its line, and what is found.
TAMPERED = {
    "folding": [
        (
            "scaled",
            "w, vector",
            "vector, w",
            "inputs kept: input 0 of 'scaled' comes from",
        ),
        ("conv", "x, scaled", "x, w", "inputs kept: input 1 of 'conv' comes from w:0 instead"),
        ("scaled", "Mul", "Sub", "ops kept: the op of 'scaled' changed"),
        ("x", "()", "() @/cpu:0", "devices kept: the device of 'x' changed"),
        (
            "vector",
            "T=float32",
            "T=float32 @/cpu:0",
            "devices kept: the device of 'vector' changed",
        ),
        ("shape", "shape", "other", "input 1 is 'shape', which is not a tensor"),
        ("shifted", "NHWC", "SAME", "attributes kept: an attribute of 'shifted'"),
        ("shape", "int32[2]", "int32[2]*2", "attributes kept: an attribute of 'shape'"),
    ],
    "hoisting": [
        ("early", " ^x", "", "waits kept: 'early' waits for others than was planned"),
        ("read", " ^x_in", "", "waits kept: 'read' waits for others"),
        ("read", " ^enter", "", "waits kept: 'read' waits for others"),
        ("read", "^enter", "^enter ^product", "no new cycle|waits kept: 'read' waits for others"),
        ("early", "(w)", "(w_in)", "inputs kept: input 0 of 'early'"),
        ("enter", "(early)", "(read)", "no new cycle: '(read|enter)' is on a cycle"),
        ("enter", "(early)", "(x)", "inputs kept: input 0 of 'enter'"),
        ("enter", "Enter", "Identity", "ops kept: the op of 'enter' changed"),
        ("early", "@/device:CPU:0", "", "devices kept: the device of 'early' changed"),
        ("enter", "=true", "=false", "attributes kept: an attribute of 'enter'"),
        ("early", "_mark=true", "", "attributes kept: an attribute of 'early'"),
    ],
    "splitting": [
        ("whole", "(part,", "(x,", "inputs kept: input 0 of 'whole'"),
        ("whole", " ^x", "", "waits kept: 'whole' waits for others"),
        ("part", "(x, y)", "(x, z)", "inputs kept: input 1 of 'part'"),
        ("part", "AddV2", "Mul", "ops kept: the op of 'part' changed"),
    ],
}


@pytest.mark.parametrize("is_known", [False, True], ids=["read whole", "read beside"])
@pytest.mark.parametrize(
    ("kind", "name", "old", "new", "found"),
    [(kind, *row) for kind in TAMPERED for row in TAMPERED[kind]],
)
def test_what_was_not_planned_is_found(kind, name, old, new, found, is_known):
    text, edits = EDITED[kind]
    before, proto = written(text, edits)
    known = before if is_known else None
    after = before.after(edits, Templates())
    lines = {node.name: node_to_text(node) for node in proto.node}
    planned = "\n".join(lines.values())
    read = read_graph(graph(planned), Templates(), known)
    assert find_violation(before, read, edits, after) == ""
    assert old in lines[name]
    line = lines[name]
    tampered = planned.replace(line, line.replace(old, new, 1))
    try:
        read = read_graph(graph(tampered), Templates(), known)
        violation = find_violation(before, read, edits, after)
    except GraphError as error:
        violation = str(error)
    assert re.search(found, violation)


@pytest.mark.parametrize(("text", "edits"), EDITED.values(), ids=EDITED)
def test_a_graph_in_which_nothing_was_edited_is_not_the_planned_one(text, edits):
    before = view(text)
    planned = before.after(edits, Templates())
    assert find_violation(before, view(text), edits, planned)


def test_a_cycle_that_a_waiting_cast_makes_is_found():
    cast = NewNode.cast("cast", (X, 0), "", of=FLOAT, to=FLOAT)
    rewire = Rewire(CONV, 0, SHIFTED + 1, 0)
    violations = []
    for after in (W, CONV):
        waiting = cast._replace(after=(after,))
        edits = Edits(rewires=(rewire,), new=(waiting,))
        before, proto = written(FOLDING, edits)
        violations.append(find_violation(before, read_graph(proto, Templates())))
    assert violations == ["", "no new cycle: 'conv' is on a cycle"]


def test_a_cycle_that_was_there_before_is_not_blamed_on_the_rewrite():
    text = "a = Relu(b)\nb = Relu(a)"
    assert find_violation(view(text), view(text)) == ""
