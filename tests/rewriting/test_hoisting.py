"""Reads of variables in loops: which move out, what they wait for there, and that all values stay
what they were.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.names import HOIST_SUFFIX as SUFFIX
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.hardware import Hardware
from tests.rewriting.rewritten import AUTO, BF16_CPU
from tests.small_graphs import function, graph, run

pytestmark = pytest.mark.cpu_dependent

START = """
    w = VarHandleOp() dtype=float32 shape=[4, 4] shared_name='w'
    start = Const() value=float32[4, 4]*0.125
    init = AssignVariableOp(w, start) dtype=float32
    x = Placeholder() shape=[4, 4]
    zero = Const() dtype=int32 value=int32[]*0
"""
# A turn of y = y @ w.
TURN = """
    i = Merge(i_in, i_next) T=int32
    y = Merge(y_in, y_next)
    less = Less(i, limit) T=int32
    cond = LoopCond(less)
    i_switch = Switch(i, cond) T=int32
    y_switch = Switch(y, cond)
    pivot = Identity(i_switch:1) T=int32
    read = ReadVariableOp(w_in) dtype=float32 ^pivot
    product = MatMul(y_switch:1, read)
    one = Const() dtype=int32 value=int32[]*1 ^pivot
    more = AddV2(i_switch:1, one) T=int32
    i_next = NextIteration(more) T=int32 ^read
    y_next = NextIteration(product)
    i_out = Exit(i_switch) T=int32
    y_out = Exit(y_switch)
"""

# Three turns of y = y @ w. The limit enters like the handle; the counter decides.
LOOP = f"""
{START}
    three = Const() dtype=int32 value=int32[]*3
    i_in = Enter(zero) T=int32 frame_name='loop'
    y_in = Enter(x) frame_name='loop'
    w_in = Enter(w) T=resource frame_name='loop' is_constant=true
    limit = Enter(three) T=int32 frame_name='loop' is_constant=true
{TURN}
    fetch = Identity(y_out)
"""
EARLY = f"w_in-Read-0-{SUFFIX}"
ENTER = f"w_in-0-{SUFFIX}"

# Twice two turns, one loop in the other.
INNER = TURN.replace("(i, limit)", "(i, i_limit)").replace("(w_in)", "(v_in)")
NESTED = f"""
{START}
    two = Const() dtype=int32 value=int32[]*2
    j_in = Enter(zero) T=int32 frame_name='outer'
    z_in = Enter(x) frame_name='outer'
    w_in = Enter(w) T=resource frame_name='outer' is_constant=true
    limit = Enter(two) T=int32 frame_name='outer' is_constant=true
    j = Merge(j_in, j_next) T=int32
    z = Merge(z_in, z_next)
    j_less = Less(j, limit) T=int32
    j_cond = LoopCond(j_less)
    j_switch = Switch(j, j_cond) T=int32
    z_switch = Switch(z, j_cond)
    j_pivot = Identity(j_switch:1) T=int32
    nil = Const() dtype=int32 value=int32[]*0 ^j_pivot
    handed = Identity(w_in) T=resource ^j_pivot
    i_in = Enter(nil) T=int32 frame_name='inner'
    y_in = Enter(z_switch:1) frame_name='inner'
    v_in = Enter(handed) T=resource frame_name='inner' is_constant=true
    i_limit = Enter(limit) T=int32 frame_name='inner' is_constant=true
{INNER}
    j_one = Const() dtype=int32 value=int32[]*1 ^j_pivot
    j_more = AddV2(j_switch:1, j_one) T=int32
    j_next = NextIteration(j_more) T=int32 ^i_out
    z_next = NextIteration(y_out)
    z_out = Exit(z_switch)
    fetch = Identity(z_out)
"""


X = {"x:0": np.linspace(0.5, 1.0, 16, dtype=np.float32).reshape(4, 4)}


def rewrite(proto, config=AUTO, preserve=("fetch",), hardware=BF16_CPU):
    return amp_tf.rewrite(proto, config, hardware=hardware, preserve=preserve)


def edited(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return graph(text)


def nodes(proto):
    return {node.name: node for node in proto.node}


def moved(proto):
    return sorted(node.name for node in proto.node if node.name.endswith(SUFFIX))


def values(proto, times=1, **others):
    return run(proto, ["fetch"], {**X, **others}, times)[0]


def check_same(proto, result, monkeypatch):
    """As without the move: the same values are cast in the same way, so no bit differs."""
    monkeypatch.setattr("amp_tf.rewriting.hoisting.find_loop_reads", lambda form: ())
    kept = rewrite(proto)
    assert not moved(kept.graph)
    np.testing.assert_array_equal(values(result.graph, 3), values(kept.graph, 3))


def casts(proto):
    """Returns the inputs of new casts to bfloat16."""
    found = []
    for node in proto.node:
        if node.op == "Cast" and node.attr["DstT"].type == tf.bfloat16:
            found.append(node.input[0])
    return found


def test_a_weight_is_read_and_cast_before_the_loop(monkeypatch):
    proto = graph(LOOP)
    result = rewrite(proto)
    before = nodes(proto)
    after = nodes(result.graph)
    assert moved(result.graph) == [ENTER, EARLY]
    assert list(after[EARLY].input) == ["w"]
    assert casts(result.graph) == ["x", EARLY]
    assert after[ENTER].input[0].startswith(f"{EARLY}-0-CastToBf16")
    assert list(after["product"].input) == ["y_switch:1", ENTER]
    assert after[ENTER].attr["T"].type == after["product"].attr["T"].type == tf.bfloat16
    for key in ("frame_name", "is_constant", "parallel_iterations"):
        assert after[ENTER].attr[key] == before["w_in"].attr[key]
    assert after[EARLY].attr == before["read"].attr
    check_same(proto, result, monkeypatch)


@pytest.mark.parametrize(
    ("config", "hardware"),
    [
        (amp_tf.AmpConfig(precision="bfloat16"), BF16_CPU),
        (amp_tf.AmpConfig(precision="bfloat16"), Hardware()),
        (AUTO, Hardware(gpu_capabilities=((7, 0),))),
    ],
    ids=["named", "named on a CPU without bfloat16", "GPU"],
)
def test_it_moves_wherever_products_are_16_bit(config, hardware):
    result = rewrite(graph(LOOP), config, hardware=hardware)
    assert moved(result.graph) == [ENTER, EARLY]


def test_of_loops_in_loops_it_leaves_the_innermost_alone(monkeypatch):
    written = """
    two_w = Const() value=float32[4, 4]*0.25 ^y_out
    written = AssignVariableOp(handed, two_w) dtype=float32"""
    proto = edited(
        NESTED + written,
        ("NextIteration(j_more) T=int32 ^i_out", "NextIteration(j_more) T=int32 ^written"),
    )
    result = rewrite(proto)
    after = nodes(result.graph)
    early = f"v_in-Read-0-{SUFFIX}"
    assert moved(result.graph) == [f"v_in-0-{SUFFIX}", early]
    assert list(after[early].input) == ["handed", "^limit", "^nil", "^z_switch"]
    # Twice by 0.125, the second time by 0.25: a read that moved too far would not see the write.
    np.testing.assert_allclose(values(result.graph), values(proto), rtol=2**-6)
    check_same(proto, result, monkeypatch)


def test_it_stays_where_a_loop_inside_writes():
    written = """
    outer_read = ReadVariableOp(handed) dtype=float32 ^j_pivot
    outer_product = MatMul(z_switch:1, outer_read)
    doubled = AddV2(read, read)
    written = AssignVariableOp(v_in, doubled) dtype=float32 ^product"""
    assert not moved(rewrite(graph(NESTED + written)).graph)


def test_it_comes_after_all_that_the_loop_comes_after():
    slow = """
    big = Fill(size, tiny) T=float32 index_type=int32
    size = Const() dtype=int32 value=int32[2]*1500
    tiny = Const() value=float32[]*0.001
    much = MatMul(big, big)
    again = MatMul(much, big)
    axes = Const() dtype=int32 value=int32[2]*0
    corner = Slice(again, axes, few) Index=int32
    few = Const() dtype=int32 value=int32[2]*4
    written = AssignVariableOp(w, corner) dtype=float32
    """
    entry = "i_in = Enter(zero) T=int32 frame_name='loop'"
    proto = edited(LOOP + slow, (entry, f"{entry} ^written"))
    result = rewrite(proto, amp_tf.AmpConfig(keep_float32=("much", "again")))
    assert list(nodes(result.graph)[EARLY].input) == ["w", "^written"]
    # Three products: two roundings to 8 bits each, and those of their sums where Eigen computes
    # them. An old value of w would be off by far more.
    np.testing.assert_allclose(values(result.graph), values(proto), rtol=2**-5)


def test_who_waits_for_the_late_read_waits_for_the_early_one():
    """The counter runs ahead; what is written after its last turn must not be read by the turns
    that lag behind.
    """
    after = nodes(rewrite(graph(LOOP)).graph)
    assert list(after["read"].input) == ["w_in", "^pivot", f"^{ENTER}"]
    assert "^read" in after["i_next"].input


def test_a_read_waits_for_nothing_that_the_late_one_does_not_come_after():
    """Who fetches an Exit that nothing reads runs the counter and the read, but no product."""
    counted = "y_in = Enter(start_y) frame_name='loop'\n    start_y = Relu(x)"
    proto = edited(LOOP, ("y_in = Enter(x) frame_name='loop'", counted))
    result = rewrite(proto)
    assert list(nodes(result.graph)[EARLY].input) == ["w"]
    np.testing.assert_allclose(values(result.graph), values(proto), rtol=2**-5)
    assert run(result.graph, ["i_out"], {}) == [3]


def test_a_part_of_a_loop_asks_for_no_input_of_another_part():
    """Whoever fetches the product does not feed ``other``."""
    proto = graph(f"""
        {LOOP}
        other = Placeholder() shape=[4, 4]
        v = Relu(other)
        v_in = Enter(v) frame_name='loop'
        u = Merge(v_in, v_next)
        v_switch = Switch(u, cond)
        relu = Relu(v_switch:1)
        v_next = NextIteration(relu)
        v_out = Exit(v_switch)
        fetch_other = Identity(v_out)
    """)
    result = rewrite(proto, preserve=("fetch", "fetch_other"))
    assert list(nodes(result.graph)[EARLY].input) == ["w"]
    np.testing.assert_allclose(values(result.graph), values(proto), rtol=2**-5)


def test_a_loop_without_turns_is_left_at_once():
    three = "three = Const() dtype=int32 value=int32[]*3"
    proto = edited(LOOP, (three, "three = Placeholder() dtype=int32 shape=[]"))
    result = rewrite(proto)
    no_turns = {"three:0": 0}
    assert moved(result.graph)
    # x itself comes out, rounded to the 8 bits of bfloat16 as the loop hands it on.
    exact = values(proto, **no_turns)
    np.testing.assert_allclose(values(result.graph, **no_turns), exact, rtol=2**-8)


def test_readers_that_stay_in_float32_keep_the_exact_weight():
    proto = edited(
        LOOP,
        (
            "NextIteration(product)",
            "NextIteration(sum)\n    sum = AddV2(product, sine)\n    sine = Sin(read)\n    cosine "
            "= Cos(read) ^pivot",
        ),
    )
    after = nodes(rewrite(proto).graph)
    assert after["product"].input[1] == ENTER
    assert after["sine"].input[0] == after["cosine"].input[0] == "read"


def test_a_reader_besides_the_product_that_becomes_16_bit_goes_along():
    biased = """
    b = VarHandleOp() dtype=float32 shape=[4] shared_name='b'
    b_in = Enter(b) T=resource frame_name='loop' is_constant=true
    bias = ReadVariableOp(b_in) dtype=float32 ^pivot
    sum = BiasAdd(product, bias)
    squared = MatMul(sum, read)"""
    proto = edited(LOOP + biased, ("NextIteration(product)", "NextIteration(squared)"))
    elements = {**SHIPPED.elements, "BiasAdd": SHIPPED.other}  # the same in 16 bit
    costs = dataclasses.replace(SHIPPED, elements=elements)
    after = nodes(rewrite(proto, hardware=dataclasses.replace(BF16_CPU, costs=costs)).graph)
    assert after["sum"].input[1] == f"b_in-0-{SUFFIX}"
    assert after[f"b_in-0-{SUFFIX}"].attr["T"].type == tf.bfloat16


WRITE = (
    "doubled = AddV2(read, read)\nwritten = AssignVariableOp(w_in, doubled) dtype=float32 ^product"
)
BY_ANOTHER_HANDLE = WRITE.replace("(w_in,", "(v_in,")
ENTERED = "Enter(w) T=resource frame_name='loop' is_constant=true"
READ = "read = ReadVariableOp(w_in) dtype=float32"
#: A function that is given no handle, but could make one.
SETTER = function(
    """
    function setter(x: float32) -> (y: float32)
      s = Sin(x)
      return y = s:y:0
    """
)
#: Further nodes, and changes of others.
REFUSED = {
    "the loop writes the variable": (WRITE,),
    "the loop may write it by another handle": (f"{BY_ANOTHER_HANDLE}\nv_in = {ENTERED}",),
    "the loop makes a handle itself": (
        f"{BY_ANOTHER_HANDLE}\nv_in = VarHandleOp() dtype=float32 shape=[4, 4] ^pivot",
    ),
    "the loop calls a function": (
        "called = PartitionedCall(product) Tin=[float32] Tout=[float32] f=setter()",
    ),
    "the loop calls a function as an op": ("called = setter(product)",),
    "the loop runs Python": ("run = PyFunc(product) token='f' Tin=[float32] Tout=[float32]",),
    "the handle may change from turn to turn": ("", (ENTERED, ENTERED.replace("true", "false"))),
    "the handle comes through a branch": (
        "w_switch = Switch(w_in, less) T=resource",
        (READ, READ.replace("w_in", "w_switch:1")),
    ),
    "the read is in a branch": (
        "branch = Switch(i_switch:1, less) T=int32",
        ("pivot = Identity(i_switch:1)", "pivot = Identity(branch:1)"),
    ),
    "nothing else keeps the product in the turns": (
        "x_in = Enter(x) frame_name='loop' is_constant=true",
        ("MatMul(y_switch:1, read)", "MatMul(x_in, read)"),
    ),
    "the read is on another device": (
        "",
        ("dtype=float32 ^pivot", "dtype=float32 @/device:GPU:0 ^pivot"),
    ),
    "the Enter is on another device": ("", (ENTERED, f"{ENTERED} @/device:CPU:1")),
    "the read was made to stay in float32": ("", (READ, f"{READ} _amp_tf_scope='float32'")),
    "its entry was made to stay in float32": ("", (ENTERED, f"{ENTERED} _amp_tf_scope='float32'")),
    "the variable is no float32": (
        "wide = ReadVariableOp(w_in) dtype=float64 ^pivot",
        (f"{READ} ^pivot", "read = Cast(wide) SrcT=float64 DstT=float32"),
    ),
    "no product reads it": ("", ("MatMul(y_switch:1, read)", "AddV2(y_switch:1, read)")),
    "the loop is broken": ("", ("fetch = Identity(y_out)", "fetch = AddV2(y_out, y)")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_it_stays_in_the_loop_where(why):
    added, *changes = REFUSED[why]
    proto = edited(f"{LOOP}\n{added}", *changes)
    proto.library.function.append(SETTER)
    result = rewrite(proto)
    assert not moved(result.graph)
    assert nodes(result.graph)["read"].input == nodes(proto)["read"].input


@pytest.mark.parametrize(
    ("config", "preserve"),
    [
        (amp_tf.AmpConfig(keep_float32=("read",)), ()),
        (amp_tf.AmpConfig(keep_float32=("product",)), ()),
        (amp_tf.AmpConfig(allow_remove=("MatMul",)), ()),
        (amp_tf.AmpConfig(clear_remove=("Enter",)), ()),
        (AUTO, ("read",)),
    ],
)
def test_it_stays_in_the_loop_where_the_user_wishes_otherwise(config, preserve):
    assert not moved(rewrite(graph(LOOP), config, preserve).graph)


@pytest.mark.parametrize("text", [LOOP, NESTED])
def test_the_order_of_nodes_does_not_matter(text):
    proto = graph(text)
    turned = graph("\n".join(reversed(text.splitlines())))
    found = nodes(rewrite(proto).graph)
    assert found == nodes(rewrite(turned).graph)


def test_names_that_are_taken_are_not_used_again():
    taken = f"\n    {ENTER} = Placeholder()\n    {EARLY} = Placeholder()\n"
    found = moved(rewrite(graph(LOOP + taken)).graph)
    names = [ENTER, EARLY]
    for name in (ENTER, EARLY):
        names.append(name.replace("-0-", "-1-"))
    assert found == sorted(names)


def test_two_reads_of_one_handle_share_an_entry():
    second = (
        "second = ReadVariableOp(w_in) dtype=float32 ^pivot\n    squared = MatMul(product, second)"
    )
    proto = edited(
        LOOP,
        ("one = Const()", f"{second}\n    one = Const()"),
        ("NextIteration(product)", "NextIteration(squared)"),
    )
    result = rewrite(proto)
    after = nodes(result.graph)
    assert moved(result.graph) == [ENTER, EARLY]
    assert after["product"].input[1] == after["squared"].input[1] == ENTER
    # Six products by weights that are exact.
    np.testing.assert_allclose(values(result.graph), values(proto), rtol=2**-5)
