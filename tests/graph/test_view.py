"""A view answers queries, live ranges of tensors, and minimum cuts as trying every cut does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.graph.algorithms import SINK, SOURCE, UNBOUNDED, Network
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.sizes import Lifetimes
from amp_tf.graph.templates import Templates
from tests.rewriting.rewritten import GraphShapes
from tests.small_graphs import function, graph


@pytest.fixture(scope="module")
def view():
    text = """
        x = Placeholder()
        c = Cast(x) SrcT=float32 DstT=int32
        p = Pack(x, x, x)
        n = NoOp()
        i = IdentityN(c, p) T=[int32, float32]
    """
    return read_graph(graph(text), Templates())


def test_a_place_names_function_and_node(view):
    assert view.where(2) == "node 'p'"
    body = read_function(function("function f(x: int32) -> (y: int32)\nreturn y = x"), Templates())
    assert body.where(0) == "function 'f', node 'x'"


def test_a_detached_view_forgets_protos_and_edges_alone(view):
    detached = view.detached()
    assert detached.protos == []
    assert len(detached.edges) == 0
    assert detached.edges.src_node.base is None, "the arrays of the edges stay in memory"
    for node in range(5):
        assert detached.units(node) == view.units(node)
    for field in ("names", "ops", "dtypes"):
        assert getattr(detached, field) == getattr(view, field)
    assert len(view.protos) == 5


def test_a_view_tells_what_a_node_reads_and_who_reads_it(view):
    reads = [[], [(0, 0)], [(0, 0)] * 3, [], [(1, 0), (2, 0)]]
    for node, read in enumerate(reads):
        assert view.inputs(node) == read
    assert view.readers(0) == [(1, 0), (2, 0), (2, 1), (2, 2)]
    assert view.readers(2, port=0) == [(4, 1)]
    assert view.readers(2, port=1) == []
    assert view.input_unit(4, 1) == view.input_units(4)[1]
    assert view.output_unit(2, 0) == view.output_units(2)[0]
    for node, reader in enumerate([None, 4, 4, None, None]):
        assert view.only_reader(node) == reader


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
    text = (
        f"{shape}\nx = Placeholder() shape=[25]\na = Relu(x)\nr = Reshape(a, n)\nb = Relu(r)\nc = "
        "AddV2(b, r)"
    )
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
    bound = set()
    for name, is_bound in zip(view.names, lifetimes.is_bound, strict=True):
        if is_bound:
            bound.add(name)
    assert bound == {"e", "m", "r", "n", "out", "z"}
    assert lifetimes.last_input(view.names.index("z")) == view.names.index("y")


def test_sixteen_bit_halves_what_is_live():
    view, lifetimes = lifetimes_of("x = Placeholder() shape=[10]\na = Relu(x)\nb = Relu(a)")
    halved = np.where(np.asarray(view.dtypes) == 1, 14, view.dtypes)
    assert lifetimes.bytes_over_time(view.dtypes).max() == 40
    assert lifetimes.bytes_over_time(halved).max() == 20


@st.composite
def networks(draw):
    inner = draw(st.integers(1, 6))
    vertices = [SOURCE, SINK, *range(2, inner + 2)]
    edge = st.tuples(st.sampled_from(vertices), st.sampled_from(vertices), st.integers(0, 9))
    return inner, draw(st.lists(edge, max_size=16))


def _cost(edges, sides):
    cost = 0
    for tail, head, capacity in edges:
        if sides[tail] and not sides[head]:
            cost += capacity
    return cost


@settings(max_examples=200, deadline=None)
@given(networks())
def test_no_cut_is_cheaper(case):
    inner, edges = case
    network = Network()
    for number in range(inner):
        assert network.add_vertex() == number + 2
    for edge in edges:
        network.add_edge(*edge)
    sides = network.source_side()
    assert sides[SOURCE]
    assert not sides[SINK]
    costs = []
    for others in itertools.product([False, True], repeat=inner):
        costs.append(_cost(edges, [True, False, *others]))
    assert _cost(edges, sides) == min(costs)


@pytest.mark.parametrize(
    "capacity", [UNBOUNDED, 5], ids=["not where it is unbounded", "nearest the source"]
)
def test_the_cut_is_at_the_source(capacity):
    network = Network()
    middle = network.add_vertex()
    network.add_edge(SOURCE, middle, 5)
    network.add_edge(middle, SINK, capacity)
    assert network.source_side() == [True, False, False]
