"""When tensors are live, and what that takes at its peak."""

from __future__ import annotations

from amp_tf.graph.lifetimes import Lifetimes
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from tests.rewriting.rewritten import GraphShapes
from tests.small_graphs import graph


def lifetimes_of(text):
    proto = graph(text)
    view = read_graph(proto, Templates())
    return view, Lifetimes.of(view, GraphShapes(proto))


def test_a_tensor_is_live_from_its_node_to_its_last_reader():
    text = """
        x = Placeholder() shape=[10]
        a = Relu(x)
        b = Relu(a)
        c = Relu(b)
        d = AddV2(c, a)
    """
    view, lifetimes = lifetimes_of(text)
    assert lifetimes.times.tolist() == [1, 2, 3, 4, 5]
    assert lifetimes.span((1, 0)) == (2, 5)
    # x is fed, and who reads d is not known: neither takes memory of the step.
    assert lifetimes.bytes_over_time(view.dtypes).tolist() == [0, 0, 40, 80, 120, 80, 0]


def test_what_is_handed_on_is_live_as_long_as_its_last_reader_says():
    shape = "n = Const() dtype=int32 value=int32[2]*5"
    text = f"{shape}\nx = Placeholder() shape=[25]\na = Relu(x)\nr = Reshape(a, n)\nb = Relu(r)\nc = AddV2(b, r)"
    _, lifetimes = lifetimes_of(text)
    assert lifetimes.owners == {(3, 0): (2, 0)}
    assert lifetimes.span((2, 0)) == (2, 5)
    assert (3, 0) not in lifetimes.elements


def test_variables_take_nothing_of_their_own_and_waiting_counts():
    text = """
        w = VarHandleOp() dtype=float32 shape=[10]
        x = Placeholder() shape=[10]
        a = Relu(x)
        read = ReadVariableOp(w) dtype=float32 ^a
        b = AddV2(a, read)
    """
    view, lifetimes = lifetimes_of(text)
    assert lifetimes.times.tolist() == [1, 1, 2, 3, 4]
    assert [view.names[node] for node, _ in lifetimes.elements] == ["a"]
    assert lifetimes.last_input(view.names.index("b")) == view.names.index("read")


def test_a_loop_has_times_too_and_what_stands_behind_it_may_never_run():
    text = """
        x = Placeholder() shape=[10]
        y = Relu(x)
        e = Enter(y) frame_name='f'
        m = Merge(e, n)
        r = Relu(m)
        n = NextIteration(r)
        out = Exit(m)
        z = AddV2(out, y)
    """
    view, lifetimes = lifetimes_of(text)
    assert lifetimes.times.tolist() == [1, 2, 3, 4, 5, 6, 5, 6]
    bound = {name for name, is_so in zip(view.names, lifetimes.is_bound, strict=True) if is_so}
    assert bound == {"e", "m", "r", "n", "out", "z"}
    assert lifetimes.last_input(view.names.index("z")) == view.names.index("y")
