"""Constants that are infinite or zero in 16 bit; in float16 squares, quotients and gradients of
roots.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.painting.reasons import Code
from amp_tf.precision import Precision
from tests.left_out import differing, without
from tests.painting.painted import BF16_CPU, CPU, GPU, both, fetched, painted
from tests.rewriting.rewritten import node_of, shaped


@pytest.fixture(autouse=True)
def only_range():
    """Without what else decides by where values come from and where they go."""
    with without(differing("need", "origin")):
        yield


LOWEST = float(tf.float32.min)


#: Products of 512 rows, with a mask over the scores.
ATTENTION = """
    x = Placeholder() shape=[8, 512, 64]
    allowed = Placeholder() dtype=bool shape=[512, 512]
    lowest = Const() value=float32[]*{lowest}
    zero = Const() value=float32[]*0
    scores = BatchMatMulV2(x, x) adj_y=true
    {mask}
    masked = Identity(mask)
    softmax = Softmax(masked)
    result = BatchMatMulV2(softmax, x)
"""
WHERE = "mask = SelectV2(allowed, scores, lowest)"
FULL = """
    size = Const() dtype=int32 value=int32[2]*512
    full = Fill(size, lowest) index_type=int32
"""
CELLS = """
    cells = Const() dtype=int64 value=int64[2, 2]*1
    many = Const() dtype=int64 value=int64[2]*512
    two = Const() dtype=int32 value=int32[1]*2
    values = Fill(two, lowest) index_type=int32
"""
SEGMENT = """
    ids = Const() dtype=int32 value=int32[2]*3
    count = Const() dtype=int32 value=int32[]*512
    ones = Const() value=float32[2]*1
    never = UnsortedSegmentMax(ones, ids, count) Tindices=int32 Tnumsegments=int32
"""
DIAGONAL = f"""
    line = Const() value=float32[512]*{LOWEST}
    none = Const() dtype=int32 value=int32[]*0
    any = Const() dtype=int32 value=int32[]*-1
    never = MatrixDiagV3(line, none, any, any, zero)
"""
TRIANGLE = f"""
    {FULL}
    all = Const() dtype=int64 value=int64[]*-1
    no = Const() dtype=int64 value=int64[]*0
    never = MatrixBandPart(full, all, no) Tindex=int64
"""
#: The mask, or what is added to the scores.
MASKS = {
    "where": WHERE,
    "a sum": "never = SelectV2(allowed, zero, lowest)",
    "a fill": f"{FULL}mask = SelectV2(allowed, scores, full)",
    "a sparse sum": f"{CELLS}never = SparseToDense(cells, many, values, zero) Tindices=int64",
    "a scattered sum": f"{CELLS}never = ScatterNd(cells, values, many) Tindices=int64",
    "an update": (
        f"{CELLS}zeros = Const() value=float32[512, 512]*0\n"
        "never = TensorScatterUpdate(zeros, cells, values) Tindices=int64"
    ),
    "a diagonal": DIAGONAL,
    "a triangle": TRIANGLE,
    "an empty segment": SEGMENT,
    "many values": "never = Const() value=float32[512, 512]",
}


def attention(mask=WHERE, lowest=LOWEST):
    if "never = " in mask:
        mask += "\nmask = AddV2(scores, never)"
    made = shaped(ATTENTION.format(mask=mask, lowest=lowest))
    for node in made.node:
        if node.name == "never" and node.op == "Const":
            values = np.where(np.eye(512), 0.0, LOWEST).astype("float32")
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    return made


def nodes(graph_def, **settings):
    result = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(**settings), hardware=BF16_CPU)
    return result, {node.name: node for node in result.report.nodes}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_of_the_lowest_float32_stays_in_float32_with_its_softmax(mask):
    _, found = nodes(attention(mask))
    assert found["softmax"].reason.code is Code.BEYOND_RANGE
    assert found["softmax"].reason.cause == "masked"
    for name in ("scores", "result"):
        assert found[name].reason.code is Code.ALLOW_LIST


@pytest.mark.parametrize("lowest", [-1e9, -np.inf, Precision.BFLOAT16.max_finite])
def test_a_mask_that_bfloat16_can_hold_is_converted(lowest):
    _, found = nodes(attention(lowest=lowest))
    assert found["softmax"].reason.code.converts


@pytest.mark.parametrize("settings", [{"level": "UNSAFE_FORCE_ALL"}, {"force_f16": ("softmax",)}])
def test_who_forces_16_bit_gets_it(settings):
    _, found = nodes(attention(), precision="bfloat16", **settings)
    assert found["softmax"].precision.is_f16


def test_a_carrier_that_is_forced_says_so_and_carries_no_further():
    text = """
        never = Const() value=float32[]*-1e9
        x = Placeholder()
        i = Const() dtype=int32 value=int32[1]*0
        d = MatrixSetDiagV3(x, never, i)
        a = MatMul(x, x)
        s = AddV2(a, d)
        b = MatMul(s, x)
    """
    assert painted(text).f16 == "a b"
    forced = painted(text, force_f16=("^d$",))
    assert forced.f16 == "d a s b"
    assert forced.code("d") is Code.FORCED_BY_NAME


def guarded(guard):
    """A logarithm of a product, kept from zero by a constant."""
    made = shaped("""
        x = Placeholder() shape=[512, 512]
        guard = Const() value=float32[]
        product = MatMul(x, x)
        odds = Sigmoid(product)
        above = AddV2(odds, guard)
        log = Log(above)
        result = MatMul(log, x)
    """)
    values = np.asarray(guard, "float32")
    node_of(made, "guard").attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    return made


TABLE = np.full(512, 1e-9, "float32")
GUARDS = {
    "one": 1e-8,
    "rounded to zero": 2.0**-25,
    "a row": TABLE,
    "different ones": TABLE * np.linspace(0, 9, 512, dtype="float32"),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_guard_that_float16_makes_zero_stays(guard):
    _, found = nodes(guarded(guard), precision="float16", ignore_performance=True)
    assert found["log"].reason.code is Code.BEYOND_RANGE
    assert found["odds"].reason.code.converts


@pytest.mark.parametrize(
    ("guard", "precision"),
    [
        (0.0, "float16"),
        (1e-7, "float16"),
        (2.0**-24, "float16"),
        (np.where(np.arange(512) == 7, 1.0, TABLE), "float16"),
        (1e-30, "bfloat16"),
    ],
)
def test_a_guard_that_the_type_holds_is_converted(guard, precision):
    _, found = nodes(guarded(guard), precision=precision, ignore_performance=True)
    assert found["log"].reason.code.converts


@pytest.mark.parametrize(
    ("precision", "bound", "is_held"),
    [
        ("float16", 0.999, True),
        ("bfloat16", 0.999, False),
        ("bfloat16", 0.99, True),
        ("bfloat16", 1.0, True),
    ],
)
def test_a_factor_close_to_one(precision, bound, is_held):
    text = f"""
        x = Placeholder()
        bound = Const() value=float32[]*{bound}
        product = MatMul(x, x)
        scaled = Mul(product, bound)
        last = MatMul(scaled, x)
    """
    assert painted(text, precision=precision).code("scaled").converts is is_held


@pytest.mark.parametrize("content", [b"odd", None])
def test_a_broken_constant_is_no_extreme_one_and_stays_as_it_is(content):
    graph_def = attention()
    attributes = node_of(graph_def, "lowest").attr
    if content is None:
        del attributes["value"]
    else:
        attributes["value"].tensor.tensor_content = content
    before = graph_def.SerializeToString(deterministic=True)
    _, found = nodes(graph_def)
    assert found["softmax"].reason.code.converts
    assert graph_def.SerializeToString(deterministic=True) == before


#: A product of what a constant makes, and one behind an addition.
INTO_A_PRODUCT = """
    x = Placeholder() shape=[64, 64]
    never = Const() value=float32[]*-1e9
    one = Const() value=float32[]*1
    w = Const() value=float32[64, 64]*0.5
    size = Const() dtype=int32 value=int32[2]*64
    {}
    relu = Relu(first)
    above = AddV2(relu, one)
    second = MatMul(above, w)
    fetch = Identity(first)
"""
INTO_PRODUCTS = {
    "a constant": "c = Const() value=float32[64, 64]*-1e9\nfirst = MatMul(x, c)",
    "a fill": "c = Fill(size, never) index_type=int32\nfirst = MatMul(c, x)",
    "ones times it": "o = OnesLike(x)\nc = Mul(o, never)\nfirst = MatMul(c, x)",
    "a broadcast": "c = BroadcastTo(never, size)\nfirst = MatMul(c, x) transpose_b=true",
    "data times it": (
        "tiny = Const() value=float32[]*1e-8\nc = Mul(x, tiny)\nr = Reshape(c, size)\n"
        "first = MatMul(x, r)"
    ),
    "one of two": (
        "half = Const() value=float32[]*0.5\nzero = Const() value=float32[]*0\n"
        "is_large = Greater(x, half)\nc = SelectV2(is_large, zero, never)\nfirst = MatMul(c, x)"
    ),
    "a part": (
        "rows = Const() dtype=int32 value=int32[]*2\naxis = Const() dtype=int32 value=int32[]*0\n"
        "halves = Split(axis, x) num_split=2\npart = OnesLike(halves)\nfilled = Mul(part, never)\n"
        "c = ConcatV2(halves:1, filled, axis) N=2\nfirst = MatMul(x, c)"
    ),
}


@pytest.mark.parametrize("lines", INTO_PRODUCTS.values(), ids=INTO_PRODUCTS)
def test_a_constant_beyond_the_range_that_goes_straight_into_a_product_keeps_it(lines):
    graph_def = shaped(INTO_A_PRODUCT.format(lines))
    converted, found = nodes(graph_def, precision="float16", ignore_performance=True)
    assert found["first"].reason.code is Code.BEYOND_RANGE
    assert found["second"].reason.code is Code.ALLOW_LIST
    x = np.random.default_rng(0).uniform(size=(64, 64)).astype("float32")
    expected = fetched(graph_def, x=x)
    assert expected.any()
    np.testing.assert_array_equal(fetched(converted.graph, x=x), expected)


def test_a_guard_that_is_added_or_a_bound_keeps_no_product():
    lines = """
        guard = Const() value=float32[]*1e-8
        bound = Const() value=float32[]*0.9999999
        m = Maximum(x, guard)
        c = AddV2(m, guard)
        d = Mul(x, bound)
        first = MatMul(c, d)
    """
    graph_def = shaped(INTO_A_PRODUCT.format(lines))
    _, found = nodes(graph_def, precision="float16", ignore_performance=True)
    assert found["first"].reason.code is Code.ALLOW_LIST


# ---------------------------------------------------------------- squares and quotients

INPUT = "x = Placeholder()\ny = Placeholder()\na = MatMul(x, y)\n"
MOVED = (
    "multiples = Const() dtype=int32 value=int32[2]*4\ncount = Const() value=float32[]*8\ng = "
    "RsqrtGrad(x, a)\n"
    "moved = Tile(g, multiples)\nscaled = RealDiv(moved, count)\nm = Mul(scaled, {})\nb = "
    "MatMul(m, y)"
)
#: The graph, what leaves float16's range, and what becomes 16 bit in bfloat16.
SQUARES = {
    "a square": ("s = Mul(a, a)\nb = MatMul(s, y)", "s", "a s b"),
    "a product of two values does not": ("s = Mul(a, y)\nb = MatMul(s, y)", "", "a s b"),
    "a quotient": ("q = RealDiv(a, y)\nb = MatMul(q, y)", "q", "a q b"),
    "a quotient by a constant does not": (
        "eight = Const() value=float32[]*8\nq = RealDiv(a, eight)\nb = MatMul(q, y)",
        "",
        "a q b",
    ),
    # that of a root of 1e-3 is 16 times as large; times 1e-3 it is in range again, but not if it
    # was cast
    "what reads the gradient of a root": (
        "g = SqrtGrad(x, a)\nm = Mul(g, a)\nb = MatMul(m, y)",
        "m",
        "a m b",
    ),
    # in the gradient of RMSNorm: the gradient of a mean tiles it and divides it by a count
    "also once it was moved and multiplied by a constant": (MOVED.format("a"), "scaled m", "a m b"),
    "whatever reads it then": (MOVED.format("y"), "scaled m", None),
}


@pytest.mark.parametrize(("text", "left", "bfloat16"), SQUARES.values(), ids=SQUARES)
def test_squares_and_quotients_are_float32_in_float16_alone(text, left, bfloat16):
    result = painted(INPUT + text, **GPU)
    for name in left.split():
        assert result.code(name) is Code.LEAVES_RANGE
    if not left:
        assert result.f16 == bfloat16
    if bfloat16 is not None:
        assert painted(INPUT + text, **CPU).f16 == bfloat16


#: gamma / sqrt(variance + epsilon), by which a normalization multiplies: how the variance is
#: guarded, and whether that keeps the factor in float16's range.
GUARDED = {
    "by an epsilon": ("AddV2(variance, epsilon)", "1e-5", True),
    "by one that is too small": ("AddV2(variance, epsilon)", "9e-6", False),
    "by one that is taken off": ("Sub(variance, epsilon)", "1e-3", False),
    "by one that is negative": ("AddV2(variance, epsilon)", "-1e-3", False),
    "the mean, which may be negative": ("AddV2(mean, epsilon)", "1e-3", False),
    "beside a third term": ("AddN(variance, epsilon, y) N=3", "1e-3", False),
}


@pytest.mark.parametrize(("guarded", "epsilon", "is_bounded"), GUARDED.values(), ids=GUARDED)
def test_a_normalized_value_leaves_the_range_unless_epsilon_bounds_the_factor(
    guarded, epsilon, is_bounded
):
    text = (
        "axis = Const() dtype=int32 value=int32[]*0\n"
        f"epsilon = Const() value=float32[]*{epsilon}\n"
        "mean = Mean(a, axis)\nsquare = SquaredDifference(a, mean)\n"
        f"variance = Mean(square, axis)\nguarded = {guarded}\n"
        "root = Rsqrt(guarded)\nfactor = Mul(root, y)\nscaled = Mul(a, factor)\n"
        "negative = Neg(mean)\nshift = Mul(negative, factor)\n"
        "normal = AddV2(scaled, shift)\nb = MatMul(normal, y)"
    )
    result = painted(INPUT + text, **GPU)
    assert result.f16 == ("a scaled normal b" if is_bounded else "a b")
    assert result.code("shift") is Code.LEAVES_RANGE
    assert is_bounded or result.code("scaled") is Code.LEAVES_RANGE


@both
def test_what_reads_an_op_that_gives_the_lowest_float32_is_float32(settings):
    """As a sampled softmax does, for samples that are among the true classes."""
    text = (
        "x = Placeholder()\ntrue = Placeholder() dtype=int64\nsampled = Placeholder() "
        "dtype=int64\na = MatMul(x, x)\n"
        "hits = ComputeAccidentalHits(true, sampled) num_true=1\ns = AddV2(a, hits:2)\nb = "
        "MatMul(s, x)"
    )
    result = painted(text, **settings)
    assert result.why("s") == (Code.BEYOND_RANGE, "hits")
