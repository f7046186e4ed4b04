"""Live ranges get shorter where memory counts: nodes wait, and casts are made late."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import Lifetimes
from amp_tf.graph.templates import Templates
from tests.rewriting import hold_judging
from tests.rewriting.rewritten import BF16_CPU, GraphShapes, feeds, node_of, reads, rewrite, run
from tests.small_graphs import graph

MEMORY = amp_tf.AmpConfig(goal="memory", precision="bfloat16")
SPEED = dataclasses.replace(MEMORY, goal="speed")
CHAIN = "\n".join(f"c{number + 1} = Relu(c{number})" for number in range(12))


def step(early="d = Exp(p)", held="AddV2(late, p)", size=256):
    """A product whose weight is read again much later, and backward nodes that need only forward
    values.
    """
    return graph(f"""
        x = Placeholder() shape=[{size}, {size}]
        w = Placeholder() shape=[{size}, {size}]
        v = Placeholder() shape=[{size}, {size}]
        p = MatMul(x, w)
        {early}
        c0 = Relu(p)
        {CHAIN}
        m = MatMul(c12, w)
        late = Mul(m, d)
        kept = {held}
        fetch = Identity(kept)
    """)


def waits(proto, name):
    return [text for text in reads(proto, name) if text.startswith("^")]


def casts_of(proto, source):
    found = []
    for node in proto.node:
        if node.op == "Cast" and node.input[0] == source:
            found.append(node)
    return found


def test_what_only_late_nodes_read_waits_for_what_else_they_read():
    proto = step()
    assert waits(rewrite(proto, MEMORY).graph, "d") == ["^m"]
    assert not waits(rewrite(proto, SPEED).graph, "d")


def test_a_chain_of_such_nodes_waits_by_its_first():
    result = rewrite(step("a = Exp(p)\nb = Square(a)\nd = Exp(b)"), MEMORY).graph
    assert waits(result, "a") == ["^m"]
    assert waits(result, "b") == []
    assert waits(result, "d") == []


def test_what_waits_does_not_wait_for_its_own_readers():
    """One of two readers stays, and the other waits for it, except for what both read."""
    result = rewrite(step("d = Exp(p)\ne = Square(d)", "AddV2(late, e)"), MEMORY).graph
    assert waits(result, "d") == ["^m"]
    assert waits(result, "e") == ["^late"]


def test_a_node_that_splitting_made_waits_as_any_other():
    proto = step("d = _UnaryOpsComposition(p) T=float32 op_names=['Neg', 'Exp']")
    assert waits(rewrite(proto, MEMORY).graph, "d-Neg-0-AmpTfSplit") == ["^m"]


@pytest.mark.parametrize(("seeds", "is_lowered"), [(range(12), True), (range(300, 306), False)])
def test_random_programs_give_the_same_bits(seeds, is_lowered):
    """``scripts/fuzz_parity memory`` rolls new ones."""
    for verdict in hold_judging.judge(seeds, is_lowered):
        assert not verdict.problem, verdict
        assert verdict.waiting > 10


def test_less_is_held_on_the_way():
    def held(config):
        result = rewrite(step(), config).graph
        view = read_graph(result, Templates())
        lifetimes = Lifetimes.of(view, GraphShapes(result))
        return lifetimes.bytes_over_time(view.dtypes)[lifetimes.times[view.names.index("c6")]]

    # Bytes: of the weight in 16 bit, of the product in float32, and the exponential; less the
    # product in 16 bit.
    copies = 2 + 4 + 4 - 2
    assert held(SPEED) - held(MEMORY) == 256 * 256 * copies


ROWS = "rows = Const() dtype=int32 value=int32[1]*0"
SIZES = "n = Const() dtype=int32 value=int32[2]*256"
OTHERS = {
    "what it reads is larger": (f"d = Sum(p, rows) keep_dims=true\n{ROWS}", "AddV2(late, x)"),
    "it has a state": (f"{SIZES}\nd = RandomUniform(n) T=int32 ^p", "AddV2(late, p)"),
    "it may never run": (
        "t = Const() dtype=bool value=bool[]*1\ns = Switch(p, t)\nd = Exp(s:1)",
        "AddV2(late, p)",
    ),
    "it reads a reference variable": (
        "u = VariableV2() dtype=float32 shape=[256, 256]\nd = Mul(p, u)",
        "AddV2(late, p)",
    ),
}


@pytest.mark.parametrize(("early", "held"), OTHERS.values(), ids=OTHERS)
def test_others_run_as_soon_as_they_can(early, held):
    assert "^m" not in waits(rewrite(step(early, held), MEMORY).graph, "d")


SCALED = """
    row = Mean(p, n) keep_dims=true
    n = Const() dtype=int32 value=int32[1]*1
    column = Const() dtype=float32 value=float32[1, 256]*2
    scale = Mul(row, column)
"""


@pytest.mark.parametrize(
    ("factor", "copies"), [(SCALED, [["row", "column", "^m"]]), ("scale = Mul(p, p)", [])]
)
def test_factors_are_computed_again_for_late_readers_and_nothing_else_is(factor, copies):
    """As those of a layer normalization; a product of two large tensors is held."""
    proto = step(f"{factor}\nd = Exp(scale)\ne = Digamma(scale)", "AddV2(late, scale)")
    result = rewrite(proto, MEMORY, preserve=("fetch", "e")).graph
    found = [list(node.input) for node in result.node if node.name == "scale-0-AmpTfAgain"]
    assert found == copies
    given = feeds(proto)
    given["w:0"] /= 256
    np.testing.assert_array_equal(run(result, given), run(rewrite(proto, SPEED).graph, given))


@pytest.mark.parametrize(
    ("preserved", "settings"), [(["scale"], {}), ([], {"keep_float32": ("^scale$",)})]
)
def test_what_must_stay_as_it_is_is_not_computed_again(preserved, settings):
    """The caller may feed it, and a copy has another name than the one that the user keeps."""
    proto = step(f"{SCALED}\nd = Exp(scale)\ne = Digamma(scale)", "AddV2(late, scale)")
    config = dataclasses.replace(MEMORY, **settings)
    result = rewrite(proto, config, preserve=("fetch", "e", *preserved)).graph
    assert not [node.name for node in result.node if "Again" in node.name]


#: Two signatures read a node that could wait, a tensor that could be computed again, or a weight
#: that could be cast again.
OF_BOTH = {
    "a node": "d = Exp(p)\ne = Mul(c12, d)\nserved = Mul(f12, d)",
    "a factor": f"{SCALED}\nd = Exp(scale)\ne = Mul(c12, scale)\nf = Mul(f12, scale)\n"
    "served = AddV2(f, d)",
    "a weight": "e = MatMul(c12, w)\nserved = MatMul(f12, w)",
}


@pytest.mark.parametrize("read", OF_BOTH.values(), ids=OF_BOTH)
def test_a_signature_asks_for_no_input_of_another(read):
    proto = graph(f"""
        x = Placeholder() shape=[256, 256]
        w = Placeholder() shape=[256, 256]
        label = Placeholder() shape=[256, 256]
        p = MatMul(x, w)
        f0 = Tanh(p)
        {CHAIN.replace("c", "f")}
        c0 = Relu(label)
        {CHAIN}
        {read}
        loss = Identity(e)
        fetch = Identity(served)
    """)
    given = feeds(proto)
    given["w:0"] /= 256
    del given["label:0"]
    speed, memory = (rewrite(proto, each, ("fetch", "loss")).graph for each in (SPEED, MEMORY))
    np.testing.assert_array_equal(run(memory, given), run(speed, given))


def test_what_is_fetched_waits_for_nothing():
    assert not waits(rewrite(step(), MEMORY, preserve=("fetch", "d")).graph, "d")


def test_a_weight_is_cast_again_when_the_backward_pass_reads_it():
    proto = step()
    early, late = casts_of(rewrite(proto, MEMORY).graph, "w")
    assert len(early.input) == 1
    assert list(late.input) == ["w", "^c12"]
    assert len(casts_of(rewrite(proto, SPEED).graph, "w")) == 1


def test_a_small_one_is_cast_once():
    assert len(casts_of(rewrite(step(size=64), MEMORY).graph, "w")) == 1


def test_a_weight_that_is_read_late_alone_is_cast_late():
    proto = step()
    node_of(proto, "m").input[1] = "v"
    (cast,) = casts_of(rewrite(proto, MEMORY).graph, "v")
    assert list(cast.input) == ["v", "^c12"]


def test_what_is_held_in_sixteen_bit_is_cast_to_float32_when_it_is_read():
    """The exponential is what reads it as float32 in the forward pass where nothing waits."""
    (cast,) = casts_of(rewrite(step(), MEMORY).graph, "p")
    assert list(cast.input) == ["p", "^m"]
    proto = step(early="d = Exp(p)\ne = Digamma(p)")
    casts = casts_of(rewrite(proto, MEMORY, preserve=("fetch", "e")).graph, "p")
    assert sorted(list(cast.input) for cast in casts) == [["p"], ["p", "^m"]]


def test_a_second_rewrite_finds_nothing_to_do():
    once = rewrite(step(), MEMORY).graph
    again = rewrite(once, MEMORY)
    assert not again.changed


def test_functions_are_left_as_speed_would_leave_them():
    @tf.function(input_signature=[tf.TensorSpec([256, 256])] * 2)
    def program(x, w):
        hidden = first = tf.matmul(x, w)
        for _ in range(12):
            hidden = tf.nn.relu(hidden)
        return tf.matmul(hidden, w) * tf.exp(first) + first

    definition = program.get_concrete_function().function_def
    speed = amp_tf.rewrite(definition, SPEED, hardware=BF16_CPU)
    memory = amp_tf.rewrite(definition, MEMORY, hardware=BF16_CPU)
    assert memory.graph == speed.graph
