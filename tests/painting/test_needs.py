"""Readers need float32, row by row: from where to where."""

from __future__ import annotations

import numpy as np
import pytest

from amp_tf.oplists import table
from amp_tf.painting.reasons import Code
from tests.painting.painted import CPU, both, check, fetched, painted, rewritten

GIVEN = (
    "x = Placeholder()\ny = Placeholder()\n"
    "z_of = VarHandleOp() dtype=float32 shape=[4, 4]\nz = ReadVariableOp(z_of) dtype=float32\n"
)
INPUT = f"""
{GIVEN}
axis = Const() dtype=int32 value=int32[]*1
half = Const() value=float32[]*0.5
one = Const() value=float32[]*1
a = MatMul(x, y)
"""


@both
@pytest.mark.parametrize(
    "op", ["Sub(twice, z)", "Sub(z, twice)", "SquaredDifference(twice, z)", "Sqrt(twice)"]
)
def test_what_is_needed_is_float32_back_to_its_product(op, settings):
    result = painted(INPUT + f"twice = Mul(a, y)\nd = {op}\nb = MatMul(d, y)", **settings)
    assert result.f16 == "a b"
    assert result.why("twice") == (Code.NEEDED, "d")


@pytest.mark.parametrize(
    "text",
    [
        "s = AddV2(t, z)\nd = Sub(s, half)",
        "s = Softplus(t)\nd = Sub(s, half)",
        "s = Softmax(t)\nd = Sub(half, s)",
        "s = Sigmoid(t)\nd = Sub(s, half)",
        "u = Tanh(t)\ns = Square(u)\nd = Sub(one, s)",
        "s = AddV2(t, one)\nd = Pow(s, z)",
        "s = Sum(t, axis)\nd = Acos(s)",
    ],
    ids=["sum", "softplus", "softmax", "half", "square", "power", "angle"],
)
def test_what_is_left_beside_a_number_is_float32(text):
    """A function changes little beside a number, or the reader is steep there."""
    result = painted(INPUT + f"t = Mul(a, y)\n{text}\nb = MatMul(d, y)", **CPU)
    assert result.f16 == "a b"
    assert result.why("s") == (Code.NEEDED, "d")
    assert result.code("t") is Code.NEEDED


@both
@pytest.mark.parametrize(
    "text",
    [
        "d = Sub(twice, s)",
        "t = Sub(half, s)\nd = AddV2(t, twice)",
        "t = Sub(half, z)\nu = Sub(t, s)\nd = Add(u, twice)",
    ],
)
def test_where_filtered_images_are_compared_they_are_float32(text, settings):
    filtered = "strides=[1, 1, 1, 1] padding=SAME"
    given = f"""{GIVEN}
        half = Const() value=float32[]*0.5
        s_of = Mul(x, x)
        twice_of = Mul(x, y)
        s = DepthwiseConv2dNative(s_of, z) {filtered}
        twice = DepthwiseConv2dNative(twice_of, z) {filtered}
    """
    result = painted(f"{given}{text}\nb = MatMul(d, y)", **settings)
    assert result.f16 == "b"
    assert result.code("s") is Code.NEEDED
    assert result.why("twice") == (Code.NEEDED, "d")
    multiplied = painted(f"{given}d = Mul(s, twice)\nb = MatMul(d, y)", **settings)
    assert {"s", "twice"} <= set(multiplied.f16.split())


@both
@pytest.mark.parametrize(
    "op",
    [
        "Log(p)",
        "Log1p(p)",
        "Xlogy(half, p)",
        "Xlog1py(half, p)",
        "Cholesky(p)",
        "MatrixInverse(p)",
        "Prod(p, axis)",
    ],
)
def test_a_logarithm_needs_all_that_it_is_computed_of(op, settings):
    text = f"s = AddV2(a, z)\np = Sigmoid(s)\nd = {op}\nb = MatMul(d, s)"
    result = painted(INPUT + text, **settings)
    assert result.why("p") == (Code.NEEDED, "d")
    assert result.why("s") == (Code.NEEDED, "p")
    if op.partition("(")[0] in table.DECOMPOSING:
        assert result.f16 == ""
    else:
        assert result.f16 == "a b"


@both
@pytest.mark.parametrize(
    "text",
    [
        "t = Mul(a, y)\ns = Sigmoid(t)\nd = Sub(one, s)",  # a gate
        "s = AddV2(a, z)\nm = Mean(s, axis) keep_dims=true\nstopped = StopGradient(m)\nd = Sub(s, "
        "stopped)",
        "s = AddV2(a, z)\nm = Mean(s, axis)\nwide = ExpandDims(m, axis)\nmoved = Squeeze(s)\nd = "
        "Sub(moved, wide)",
        "s = Tanh(a)\nd = Sqrt(s)",  # what is bounded is as it was rounded
        "s = Mul(a, y)\nm = Mean(s, axis)\nd = Sqrt(m)",  # roundings of either sign
    ],
    ids=["gate", "centred", "moved", "bounded", "mean"],
)
def test_what_asks_nothing_of_a_value_leaves_it_16_bit(text, settings):
    result = painted(INPUT + text + "\ndown = MatMul(s, y)\nb = MatMul(d, y)", **settings)
    assert "s" in result.f16.split()


def test_a_product_is_16_bit_whoever_reads_it_and_what_was_fused_into_it_is_split_from_it():
    text = (
        "f = _FusedMatMul(a, y, y) num_args=1 fused_ops=['BiasAdd']\nmoved = Squeeze(f)\nd = "
        "Sub(moved, a)\n"
    )
    result = painted(INPUT + text + "b = MatMul(d, y)", **CPU)
    assert result.f16 == "a f b"
    painting = result.painting
    (split,) = painting.to_split
    assert painting.view.names[split] == "f"
    text = text.replace("Sub(moved, a)", "Tanh(moved)")
    plain = painted(INPUT + text + "b = MatMul(d, y)", **CPU)
    assert not plain.painting.to_split


@both
def test_what_the_user_forces_stays_so(settings):
    text = "s = AddV2(a, z)\nlogged = Log(s)\nb = MatMul(logged, s)"
    result = painted(INPUT + text, force_f16=("^s$",), **settings)
    assert "s" in result.f16.split()


def test_the_sentence_says_by_which_node_or_nothing():
    result = painted(INPUT + "s = AddV2(a, z)\nd = Sub(s, z)\nb = MatMul(d, y)", **CPU)
    assert result.words("s").endswith("that it is or feeds: 'd'")
    assert result.words("d").endswith("that it is or feeds")


MOMENTS = """
s = AddV2(a, z)
factor = Relu(s)
square = {square}
moved = Squeeze(square)
total = Sum(moved, axis)
mean = Mean(factor, axis)
other = {other}
scaled = DivNoNan(total, z)
d = {difference}
c = MatMul(moved, mean)
b = MatMul(d, factor)
"""


@pytest.mark.parametrize("square", ["Square(factor)", "Mul(factor, factor)", "Mul(factor, z)"])
@pytest.mark.parametrize("other", ["Square(mean)", "Pow(mean, half)"])
def test_of_two_sums_that_are_subtracted_neither_is_rounded_nor_what_is_multiplied_for_them(
    square, other
):
    """The mean square less the square of the mean, as Keras' synchronized BatchNormalization takes
    it; both have the rounding of the factors.
    """
    text = MOMENTS.format(square=square, other=other, difference="Sub(scaled, other)")
    result = painted(INPUT + text, **CPU)
    assert result.f16 == "a s factor c b"
    for name in ("square", "moved", "total", "mean"):
        assert result.code(name) is Code.NEEDED
    text = MOMENTS.format(square="Mul(factor, z)", other=other, difference="Sub(z, other)")
    beside_a_value = painted(INPUT + text, **CPU)
    assert {"square", "moved"} <= set(beside_a_value.f16.split())


def test_of_two_averages_of_windows_that_are_subtracted_neither_is_rounded():
    windows = "ksize=[1, 3, 3, 1] strides=[1, 1, 1, 1] padding='VALID'"
    text = (
        f"square = Mul(a, a)\nfirst = AvgPool(square) {windows}\nmean = AvgPool(a) {windows}\n"
        "other = Mul(mean, mean)\nd = Sub(first, other)\nb = MatMul(d, y)"
    )
    result = painted(INPUT + text, **CPU)
    assert result.f16 == "a b"
    for name in ("square", "mean"):
        assert result.code(name) is Code.NEEDED


SIZED = "q = Mul(twice, twice)\nt = Sum(q, axis)\n"


@both
@pytest.mark.parametrize(
    "text",
    [
        "d = Sub(half, t)",
        "w = Sqrt(t)\nd = Sub(w, z)",
        "w = Mul(t, z)\nd = Sub(z, w)",
        "w = Rsqrt(t)\nc = Mul(z, w)\nd = Sub(half, c)",
    ],
)
def test_squares_whose_sum_is_subtracted_are_float32_back_to_the_product(text, settings):
    result = painted(f"{INPUT}twice = AddV2(a, z)\n{SIZED}{text}\nb = MatMul(d, y)", **settings)
    assert result.f16 == "a b"
    assert result.why("twice") == (Code.NEEDED, "q")


@both
@pytest.mark.parametrize(
    "text",
    [
        "t = Mean(q, axis)\nd = Sub(half, t)",  # a statistic
        "t = Sum(q, axis)\nw = Rsqrt(t)\nd = Mul(twice, w)",  # a length that nothing is taken from
        "p = Mul(twice, x)\nt = Sum(p, axis)\nd = Sub(half, t)",  # terms of either sign
    ],
    ids=["mean", "normalized", "not squares"],
)
def test_other_sums_ask_nothing_of_their_terms(text, settings):
    text = f"twice = AddV2(a, z)\nq = Mul(twice, twice)\n{text}"
    result = painted(f"{INPUT}{text}\ndown = MatMul(twice, y)\nb = MatMul(d, y)", **settings)
    assert "twice" in result.f16.split()


@both
@pytest.mark.parametrize("op", ["Sigmoid(s)", "Tanh(s)", "ClipByValue(s, half, half)", "Erf(s)"])
def test_a_difference_needs_what_a_bounded_function_was_computed_of(op, settings):
    text = f"s = AddV2(t, z)\np = {op}\nd = Sub(p, z)\nb = MatMul(d, y)\nc = MatMul(p, y)"
    result = painted(f"{INPUT}t = Mul(a, y)\n{text}", **settings)
    assert result.f16 == "a b c"
    assert result.why("s") == (Code.NEEDED, "p")
    text = text.replace("AddV2(t", "AddV2(a")
    of_a_layer = painted(f"{INPUT}t = Squeeze(a)\n{text}", **settings)
    assert {"s", "p"} <= set(of_a_layer.f16.split())


@both
@pytest.mark.parametrize(
    ("text", "is_needed"),
    [
        ("s = BiasAdd(a, z)\nt = Transpose(s, axes)\np = Softmax(t)", True),
        ("s = BiasAdd(a, z)\np = Softmax(s)", False),
        ("t = Mul(a, half)\ns = AddV2(t, z)\nu = RealDiv(s, half)\np = Softmax(u)", True),
        ("s = Mul(a, half)\np = Softmax(s)", False),
        ("s = Tanh(a)\np = Softmax(s)", False),
    ],
    ids=["moved", "bias", "scaled", "scores", "bounded"],
)
def test_a_softmax_needs_values_to_which_a_bias_was_added(text, is_needed, settings):
    axes = "axes = Const() dtype=int32 value=int32[2]*1\n"
    result = painted(f"{INPUT}{axes}{text}\nb = MatMul(p, y)\nc = MatMul(s, y)", **settings)
    assert ("s" in result.f16.split()) is not is_needed
    assert (result.code("p") is Code.NEEDED) is is_needed


# ---------------------------------------------------------------- decompositions


#: Each row has the nodes after ``a``, those that become 16 bit (after a ``+``: at least these), and
#: why others do not.
DECOMPOSED = {
    "moves and arithmetic": (
        "m = AddV2(a, z)\nn = Transpose(m, axes)\nd = Cholesky(n)",
        "",
        {"a": Code.DECOMPOSED},
    ),
    "a kernel of distances": (
        "m = Mul(a, z)\nk = Exp(m)\nd = Cholesky(k)",
        "",
        {"a": Code.DECOMPOSED},
    ),
    "not through another product or an activation": (
        "s = Tanh(a)\nb = MatMul(s, y)\nd = MatrixInverse(b)",
        "a s",
        {"b": Code.DECOMPOSED},
    ),
    "another operand": (
        "c = MatMul(x, y)\nm = Mul(c, z)\nd = Qr(a)\nb = MatMul(d, m)\ne = MatMul(b, y)",
        "e",
        {"a": Code.DECOMPOSED, "b": Code.DECOMPOSED, "c": Code.DECOMPOSED},
    ),
    "products of results": (
        "d = SelfAdjointEigV2(a)\nr = Rsqrt(d)\nb = MatMul(d:1, r)\nc = MatMul(b, d:1)\n"
        "e = MatMul(c, y)\nf = MatMul(e, y)",
        "f",
        {"b": Code.DECOMPOSED, "c": Code.DECOMPOSED, "e": Code.DECOMPOSED},
    ),
    "a residual network behind it": (
        "d = MatrixSolve(y, x)\nb = MatMul(d, y)\ns = AddV2(d, b)\nc = MatMul(s, y)\n"
        "t = AddV2(s, c)\ne = MatMul(t, y)",
        "+a c e",
        {"b": Code.DECOMPOSED},
    ),
}


@both
@pytest.mark.parametrize(("text", "f16", "rules"), DECOMPOSED.values(), ids=DECOMPOSED)
def test_the_products_around_a_decomposition_are_float32(text, f16, rules, settings):
    axes = "axes = Const() dtype=int32 value=int32[2]*1\n"
    check(f"{INPUT}{axes}{text}", f16, rules, settings)


def test_a_decomposition_takes_no_product_that_the_user_forces():
    text = "d = Cholesky(a)\nb = MatMul(d, y)"
    result = painted(INPUT + text, force_f16=("^a$",), **CPU)
    assert result.f16 == "a"
    assert result.why("b") == (Code.DECOMPOSED, "d")


# ---------------------------------------------------------------- after the last product


#: The graph, the nodes that become 16 bit (after a ``+``: at least these), and why others do not.
SHOWN = {
    "what a gradient only sees the sign of is not needed": (
        f"{INPUT}f = AddV2(a, z)\nr = Relu(f)\nb = MatMul(r, y)\nback = ReluGrad(b, r)\nd = "
        "Sub(back, z)\n"
        "c = MatMul(d, y)",
        "+f r",
        {"back": Code.NEEDED},
    ),
    "a gradient is unscaled in float32": (
        f"{GIVEN}gradient = MatMul(x, y) transpose_a=true\nunscaled = RealDiv(gradient, x)\n"
        "clipped = Mul(unscaled, y)\nstep = AssignSubVariableOp(z_of, clipped)",
        "gradient",
        {"clipped": Code.AFTER_PRODUCTS},
    ),
    "what the next layer uses as well is converted": (
        f"{GIVEN}a = MatMul(x, y)\nh = Tanh(a)\nb = MatMul(h, y)\nread = Mul(h, h)\nlogged = "
        "Mul(read, x)",
        "a h b",
        {},
    ),
    "what only moves a gradient has its type": (
        f"{GIVEN}axes = Const() dtype=int32 value=int32[2]*1\ng = MatMul(x, y)\nt = Transpose(g, "
        "axes)\nr = Relu(t)\n"
        "s = Mul(r, x)",
        "g t r",
        {},
    ),
    "a bias can be fused with the last product": (
        f"{GIVEN}a = MatMul(x, y)\nb = BiasAdd(a, z)\nc = Relu(b)\nd = Softmax(c)",
        "a b c",
        {"d": Code.AFTER_PRODUCTS},
    ),
    # as in tf_keras, where it reads the averages as well and gives the new ones: they are float32
    # on every list
    "a normalization that keeps its own running average is converted": (
        f"{GIVEN}a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]\n"
        "n = FusedBatchNormV3(a, z, z, z, z) exponential_avg_factor=0.01 is_training=true\n"
        "stored = AssignVariableOp(z_of, n:1)\nb = Conv2D(n, y) padding='SAME' strides=[1, 1, 1, "
        "1]",
        "a n b",
        {},
    ),
    "a maximum that a loop keeps in a stack is found again by its gradient": (
        f"{GIVEN}size = Const() dtype=int32 value=int32[]*1\na = MatMul(x, y)\n"
        "stack = StackV2(size) elem_type=float32\nd = Digamma(x)\nm = Max(d, size)\n"
        "kept = StackPushV2(stack, m)\nb = MatMul(m, y)",
        "a b",
        {"m": Code.COMPARED},
    ),
    "a maximum of what a loop is given is found again behind the loop": (
        f"{GIVEN}size = Const() dtype=int32 value=int32[]*1\nd = Digamma(x)\n"
        "stack = StackV2(size) elem_type=float32\nstart = Enter(d) frame_name='f'\n"
        "state = Merge(start, next)\ngo = Placeholder() dtype=bool shape=[]\n"
        "on = Enter(go) T=bool frame_name='f' is_constant=true\ncond = LoopCond(on)\n"
        "switch = Switch(state, cond)\nm = Max(switch:1, size)\nkept = StackPushV2(stack, m)\n"
        "next = NextIteration(switch:1)\ndone = Exit(switch)\nb = MatMul(done, y)",
        "b",
        {"done": Code.COMPARED},
    ),
    # its scale reads the variable that its result goes to, and is float32 on every list
    "the gradient of a normalization whose scale it trains is converted": (
        f"{GIVEN}a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]\n"
        "n = FusedBatchNormGradV3(a, a, z, z, z, z) is_training=true\nstepped = Mul(n:1, x)\n"
        "stored = AssignSubVariableOp(z_of, stepped)\nb = Conv2D(n, y) padding='SAME' strides=[1, "
        "1, 1, 1]",
        "a n b",
        {},
    ),
}


@both
@pytest.mark.parametrize(("text", "f16", "rules"), SHOWN.values(), ids=SHOWN)
def test_needs_end_at_products_and_begin_behind_the_last(text, f16, rules, settings):
    check(text, f16, rules, settings)


CALLED = """
    function callee(x: float32) -> (y: float32)
    t = {op}(x, x)
    return y = t:{result}:0
"""


@pytest.mark.parametrize(("op", "result", "f16"), [("MatMul", "product", "a m"), ("Mul", "z", "a")])
def test_what_a_call_gets_is_used_by_a_product_if_its_function_has_one(op, result, f16):
    from amp_tf import AmpConfig, rewrite
    from tests.small_graphs import function, graph

    text = GIVEN + "a = MatMul(x, y)\nm = Mul(a, y)\nc = callee(m)"
    callee = function(CALLED.format(op=op, result=result))
    config = AmpConfig(precision="bfloat16", target="cpu")
    done = rewrite(graph(text, callee), config, preserve=["c"])
    converted = []
    for node in done.report.graphs[0].nodes:
        if node.precision.is_f16:
            converted.append(node.name)
    assert " ".join(converted) == f16


# ---------------------------------------------------------------- whole numbers


def test_positions_are_rounded_once_only():
    old, new, nodes = rewritten("""
        ones = Const() value=float32[64, 8]*1
        zeros = Const() value=float32[8, 64]*0
        w = Const() value=float32[64, 4]
        places = Placeholder() shape=[64]
        flow = MatMul(ones, zeros)
        positions = AddV2(flow, places)
        floor = Floor(positions)
        fetch = Cast(floor) SrcT=float32 DstT=int32
        next = MatMul(flow, w)
    """)
    for name in ("positions", "floor"):
        assert nodes[name].reason.code is Code.WHOLE_NUMBERS
    assert nodes["flow"].precision.is_f16
    places = np.arange(513.0, 577.0)
    found = fetched(new, places=places)
    wanted = fetched(old, places=places)
    np.testing.assert_array_equal(found, wanted)


def test_a_cast_to_bool_keeps_nothing():
    nodes = rewritten("""
        x = Placeholder() shape=[8, 8]
        first = MatMul(x, x)
        relu = Relu(first)
        fetch = Cast(relu) SrcT=float32 DstT=bool
        product = MatMul(relu, x)
    """)[2]
    assert nodes["relu"].precision.is_f16


def test_what_two_rules_keep_has_the_reason_of_the_first():
    text = (
        "x = Placeholder()\nb = Placeholder()\nproduct = MatMul(x, x)\nsum = AddV2(product, "
        "b)\nresult = Relu(sum)"
    )
    # And not the origins', who say later that it is joined.
    assert painted(text).code("sum") is Code.AFTER_PRODUCTS
