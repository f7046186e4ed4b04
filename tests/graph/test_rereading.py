"""An edited graph is read again only where it differs, with the same result as reading all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.errors import GraphError
from amp_tf.graph import serialized
from amp_tf.graph.reader import read_graph
from amp_tf.graph.rereading import reread_graph
from amp_tf.graph.serialized import SerializedGraph
from amp_tf.graph.templates import Templates
from tests.small_graphs import graph

TEXT = """
    x = Placeholder() shape=[4, 4]
    n = Const() dtype=int32 value=int32[]*0
    a = MatMul(x, x) ^n
    s = Split(n, a) num_split=2
    i = IdentityN(s:1, n, s) T=[float32, int32, float32]
    t = AddN(i, i:2, a)
    r = Relu(t)
"""
CAST = "c = Cast(a) SrcT=float32 DstT=float32 @/device:CPU:0"
EDITS = {
    "nothing": (),
    "another source": (("Relu(t)", "Relu(a)"),),
    "a device": (("Relu(t)", "Relu(t) @/device:CPU:0"),),
    "fewer inputs": (("AddN(i, i:2, a)", "AddN(i, a) N=2"),),
    "a list of another length": (
        ("(s:1, n, s) T=[float32, int32, float32]", "(s:1, n, s, a) T=[float32, int32, float32, float32]"),
    ),
    "another op": (("Relu(t)", "Sin(t)"),),
    "a new node": (("r = Relu(t)", f"r = Relu(t)\n{CAST}"),),
    "a new node with readers": (("(n, a)", "(n, c)"), ("r = Relu(t)", f"r = Relu(c)\n{CAST}")),
    "another name": (("r = Relu", "q = Relu"),),
    "a node less": (("r = Relu(t)", ""),),
    "another order": (("r = Relu(t)", ""), ("n = Const", "r = Relu(t)\nn = Const")),
}


def edited(*edits):
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return graph(text)


def reread(before, after):
    return reread_with(before, after, Templates())


def reread_with(before, after, templates):
    old, new = (SerializedGraph(made.SerializeToString()).node for made in (before, after))
    middle = len(new) // 2
    pieces = [new.fields(0, middle), new.fields(middle, len(new))]
    return reread_graph(pieces, old, read_graph(before, Templates()), templates)


def facts(view):
    """Everything that a view says, as plain data."""
    columns = (view.edges.src_node, view.edges.src_port, view.edges.dst_node, view.edges.dst_position)
    units = (view.edges.src_unit, view.edges.dst_unit)
    edges = [column.tolist() for column in (*columns, *units)]
    return (view.names, view.ops, view.devices, view.signatures, view.base, view.dtypes, edges)


@pytest.mark.parametrize("piece", [1024, 2], ids=["one piece", "many pieces"])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_reading_what_differs_gives_what_reading_all_gives(monkeypatch, edits, piece):
    monkeypatch.setattr(serialized, "PIECE", piece)
    after = edited(*edits)
    assert facts(reread(edited(), after)) == facts(read_graph(after, Templates()))


def test_only_what_differs_is_read():
    read = []

    class Listening(Templates):
        def find(self, op):
            read.append(op)
            return super().find(op)

    before, after = edited(), edited(("(n, a)", "(n, c)"), ("r = Relu(t)", f"r = Relu(t)\n{CAST}"))
    reread_with(before, after, Listening())
    assert read == ["Split", "Cast"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("Relu(t)", "Relu(z)"), "node 'r': input 0 is 'z', which is no tensor of this graph"),
        (("Relu(t)", "Relu(t) T=float16"), "node 'r': input 0 expects float16 and gets float32 from 't'"),
        (("MatMul(x, x)", "MatMul(x, x) T=float16"), "node 'a': input 0 expects float16 and gets float32 from 'x'"),
        (("shape=[4, 4]", "dtype=float16"), "node 'a': input 0 expects float32 and gets float16 from 'x'"),
        (("Relu(t)", "Relu(t) ^z"), "node 'r': control input '^z' names no node of this graph"),
        (("Relu(t)", "Relu(t:1)"), "node 'r': reads port 1 of 't', which has 1 output"),
        (("num_split=2", "num_split=1"), "node 'i': reads port 1 of 's', which has 1 output"),
        (("r = Relu(t)", "r = Relu(t)\nr = Relu(t)"), "node 'r': two nodes have this name"),
    ],
)
def test_what_is_broken_by_an_edit_is_found_also_where_the_node_itself_is_untouched(edit, message):
    with pytest.raises(GraphError) as caught:
        reread(edited(), edited(edit))
    assert str(caught.value).startswith(message)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(list(EDITS)), max_size=3, unique=True))
def test_several_edits_together_are_read_as_if_all_were_read(names):
    text = TEXT
    for name in names:
        for old, new in EDITS[name]:
            text = text.replace(old, new)
    after = graph(text)
    try:
        expected = facts(read_graph(after, Templates()))
    except GraphError:
        with pytest.raises(GraphError):
            reread(edited(), after)
    else:
        assert facts(reread(edited(), after)) == expected
