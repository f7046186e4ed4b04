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
    EARLY,
    ENTER,
    FLOAT,
    FOLD,
    FOLDING,
    HOISTING,
    PART,
    PARTED,
    READ,
    SCALED,
    SHIFTED,
    SPLITTING,
    WHOLE,
    W,
    X,
    hoist,
    written,
)
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
    before = graph(ORDER)
    after = graph(ORDER)
    for node, attr in zip(after.node, ("dtype", "dtype", "T", "T"), strict=False):
        node.attr[attr].type = 14
    after.node[4].attr["T"].list.type[:] = [14, 14]
    attributes = dict(after.node[3].attr)
    after.node[3].ClearField("attr")
    for key in reversed(attributes):
        after.node[3].attr[key].CopyFrom(attributes[key])
    assert find_violation(*(read_graph(made, Templates()) for made in (before, after))) == ""


def test_a_type_may_be_written_that_was_left_to_the_ops_definition():
    before, after = (graph("x = Placeholder()\nr = LeakyRelu(x) alpha=0.5") for _ in range(2))
    after.node[1].attr["T"].type = 1
    assert "T" not in before.node[1].attr
    assert find_violation(*(read_graph(made, Templates()) for made in (before, after))) == ""


def test_a_value_that_is_not_a_number_is_the_one_that_it_was():
    before = graph("x = Placeholder()\nr = LeakyRelu(x)")
    after = graph("x = Placeholder()\nr = LeakyRelu(x)")
    for made in (before, after):
        made.node[1].attr["alpha"].f = float("nan")
    views = [read_graph(made, Templates()) for made in (before, after)]
    assert find_violation(*views) == ""
    after.node[1].attr["alpha"].f = 0.5
    assert (
        find_violation(views[0], read_graph(after, Templates()))
        == "attributes kept: an attribute of 'r' that is not a type changed"
    )


def test_maps_inside_attributes_may_be_written_in_another_order():
    keys = [f"key{number}" for number in range(20)]
    views = []
    for order in (keys, keys[::-1]):
        made = graph("x = Placeholder()\nr = Relu(x) ^x")
        for key in order:
            made.node[1].attr["_call"].func.attr[key].i = len(key)
        made.node[1].attr["_many"].i = 300
        views.append(read_graph(made, Templates()))
    assert find_violation(*views) == ""
    made.node[1].attr["_call"].func.attr["key7"].i = 0
    assert (
        find_violation(views[0], read_graph(made, Templates()))
        == "attributes kept: an attribute of 'r' that is not a type changed"
    )


def test_in_a_function_attributes_are_kept_too():
    before = (
        "function f(x: float32) -> (y: float32)\nm = MatMul(x, x) transpose_b=true\nreturn y = "
        "m:product:0"
    )
    after = before.replace("true", "false")
    views = [read_function(function(text), Templates()) for text in (before, after)]
    assert (
        find_violation(*views) == "attributes kept: an attribute of 'm' that is not a type changed"
    )


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
    assert found == "attributes kept: an attribute of 'm' that is not a type changed"


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
            *(PLAIN, "CPU", "GPU"),
            "devices kept: the device of 'r' changed from '/device:CPU:0' to '/device:GPU:0'",
        ),
        (PLAIN, "s = Relu", "s = Sin", "ops kept: the op of 's' changed from 'Relu' to 'Sin'"),
        (PLAIN, "Relu(x)", "Relu(s)", "no new cycle: 'r' is on a cycle"),
        (PLAIN, "(r)", "(x)", "inputs kept: input 0 of 's' comes from x:0 instead of r:0"),
        (SPLIT, "p:1", "p", "inputs kept: input 0 of 's' comes from p:0 instead of p:1"),
        (
            *(PLAIN, "(r)", "(c)\nc = " + CAST.format("x")),
            "inputs kept: input 0 of 's' comes from x:0 instead of r:0",
        ),
        (
            *(PLAIN, "(r)", "(c)\nc = Neg(r)"),
            "inputs kept: input 0 of 's' comes from a new node instead of r:0",
        ),
        (
            *(PLAIN, "(r)", f"(c)\nc = {CAST.format('d')}\nd = {CAST.format('r')}"),
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
TAMPERED = {
    "folding": [
        (
            lambda nodes: nodes[SCALED].input.reverse(),
            "inputs kept: input 0 of 'scaled' comes from vector:0 instead",
        ),
        (
            lambda nodes: nodes[CONV].input.__setitem__(1, "w"),
            "inputs kept: input 1 of 'conv' comes from w:0 instead",
        ),
        (lambda nodes: setattr(nodes[SCALED], "op", "Sub"), "ops kept: the op of 'scaled' changed"),
        (
            lambda nodes: setattr(nodes[X], "device", "/cpu:0"),
            "devices kept: the device of 'x' changed",
        ),
        (
            lambda nodes: setattr(nodes[7], "device", "/cpu:0"),
            "devices kept: the device of 'vector' changed",
        ),
        (
            lambda nodes: setattr(nodes[6], "name", "other"),
            "input 1 is 'shape', which is not a tensor",
        ),
        (
            lambda nodes: nodes[SHIFTED].attr["data_format"].CopyFrom(nodes[CONV].attr["padding"]),
            "attributes kept: an attribute of 'shifted'",
        ),
        (
            lambda nodes: nodes[6].attr["value"].tensor.int_val.append(2),
            "attributes kept: an attribute of 'shape'",
        ),
    ],
    "hoisting": [
        (
            lambda nodes: nodes[EARLY].input.remove("^x"),
            "waits kept: 'early' waits for others than was planned",
        ),
        (lambda nodes: nodes[READ].input.remove("^x_in"), "waits kept: 'read' waits for others"),
        (lambda nodes: nodes[READ].input.remove("^enter"), "waits kept: 'read' waits for others"),
        (
            lambda nodes: nodes[READ].input.append("^product"),
            "no new cycle|waits kept: 'read' waits for others",
        ),
        (
            lambda nodes: nodes[EARLY].input.__setitem__(0, "w_in"),
            "inputs kept: input 0 of 'early'",
        ),
        (
            lambda nodes: nodes[ENTER].input.__setitem__(0, "read"),
            "no new cycle: '(read|enter)' is on a cycle",
        ),
        (lambda nodes: nodes[ENTER].input.__setitem__(0, "x"), "inputs kept: input 0 of 'enter'"),
        (
            lambda nodes: setattr(nodes[ENTER], "op", "Identity"),
            "ops kept: the op of 'enter' changed",
        ),
        (
            lambda nodes: setattr(nodes[EARLY], "device", ""),
            "devices kept: the device of 'early' changed",
        ),
        (
            lambda nodes: nodes[ENTER].attr["is_constant"].Clear(),
            "attributes kept: an attribute of 'enter'",
        ),
        (
            lambda nodes: nodes[EARLY].attr["_mark"].Clear(),
            "attributes kept: an attribute of 'early'",
        ),
    ],
    "splitting": [
        (lambda nodes: nodes[WHOLE].input.__setitem__(0, "x"), "inputs kept: input 0 of 'whole'"),
        (lambda nodes: nodes[WHOLE].input.remove("^x"), "waits kept: 'whole' waits for others"),
        (lambda nodes: nodes[PART].input.__setitem__(1, "z"), "inputs kept: input 1 of 'part'"),
        (lambda nodes: setattr(nodes[PART], "op", "Mul"), "ops kept: the op of 'part' changed"),
    ],
}


@pytest.mark.parametrize("is_known", [False, True], ids=["read whole", "read beside"])
@pytest.mark.parametrize(
    ("kind", "tamper", "found"), [(kind, *row) for kind in TAMPERED for row in TAMPERED[kind]]
)
def test_what_was_not_planned_is_found(kind, tamper, found, is_known):
    text, edits = EDITED[kind]
    before, proto = written(text, edits)
    known = before if is_known else None
    planned = before.after(edits, Templates())
    after = read_graph(proto, Templates(), known)
    assert find_violation(before, after, edits, planned) == ""
    tamper(proto.node)
    try:
        after = read_graph(proto, Templates(), known)
        violation = find_violation(before, after, edits, planned)
    except GraphError as error:
        violation = str(error)
    assert re.search(found, violation)


@pytest.mark.parametrize(("text", "edits"), EDITED.values(), ids=EDITED)
def test_a_graph_in_which_nothing_was_edited_is_not_the_planned_one(text, edits):
    assert find_violation(view(text), view(text), edits, view(text).after(edits, Templates()))


def test_a_cycle_that_a_waiting_cast_makes_is_found():
    cast = NewNode.cast("cast", (X, 0), "", of=FLOAT, to=FLOAT)
    violations = []
    for after in (W, CONV):
        edits = Edits(
            rewires=(Rewire(CONV, 0, SHIFTED + 1, 0),), new=(cast._replace(after=(after,)),)
        )
        before, proto = written(FOLDING, edits)
        violations.append(find_violation(before, read_graph(proto, Templates())))
    assert violations == ["", "no new cycle: 'conv' is on a cycle"]


def test_a_cycle_that_was_there_before_is_not_blamed_on_the_rewrite():
    text = "a = Relu(b)\nb = Relu(a)"
    assert find_violation(view(text), view(text)) == ""
