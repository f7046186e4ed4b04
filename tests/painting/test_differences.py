"""Differences of values that are nearly alike, rule by rule: from where to where they are float32."""

from __future__ import annotations

import pytest

from amp_tf.painting.differences import FARTHEST
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

PARAMETER = "z_of = VarHandleOp() dtype=float32 shape=[4, 4]\nz = ReadVariableOp(z_of) dtype=float32"
INPUT = f"x = Placeholder()\ny = Placeholder()\n{PARAMETER}\n"
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


@both
def test_a_distance_is_float32_from_its_product_to_its_root(settings):
    result = painted(
        INPUT + "a = MatMul(x, y)\ntwice = Mul(a, y)\nd = Sub(z, twice)\nr = Sqrt(d)\nb = MatMul(r, y)", **settings
    )
    assert not {"twice", "d"} & set(result.f16.split())
    assert result.rule("d") is Rule.DIFFERENCE
    assert {"a", "b"} <= set(result.f16.split())


@both
def test_a_difference_that_the_next_product_uses_is_converted(settings):
    assert painted(INPUT + "a = MatMul(x, y)\nd = Sub(a, z)\nb = MatMul(d, y)", **settings).f16 == "a d b"


@both
def test_a_difference_that_is_one_term_of_many_is_converted(settings):
    result = painted(
        INPUT
        + """
        a = MatMul(x, y)
        d = Sub(a, z)
        b = MatMul(d, y)
        scaled = Mul(d, y)
        joined = AddV2(scaled, b)
        r = Sqrt(joined)
        c = MatMul(r, y)
        e = MatMul(joined, y)
        """,
        **settings,
    )
    assert "d" in result.f16.split()


@both
def test_an_addition_of_a_negative_value_is_a_difference(settings):
    text = INPUT + "a = MatMul(x, y)\nn = Neg(a)\ns = AddV2(z, n)\nr = Sqrt(s)\nb = MatMul(r, y)"
    assert painted(text, **settings).rule("s") is Rule.DIFFERENCE


@both
def test_a_difference_of_squares_is_float32_whatever_follows(settings):
    text = INPUT + "a = MatMul(x, y)\nm = Mul(a, a)\nd = Sub(z, m)\nb = MatMul(d, y)"
    result = painted(text, **settings)
    assert result.f16 == "a b"
    assert result.rule("d") is Rule.DIFFERENCE


@both
def test_a_difference_of_logarithms_is_float32_from_their_products_on(settings):
    """Of nearly equal distributions it is next to nothing."""
    result = painted(
        INPUT
        + """
        a = MatMul(x, y)
        b = MatMul(y, x)
        first = LogSoftmax(a)
        second = LogSoftmax(b)
        d = Sub(first, second)
        axis = Const() dtype=int32 value=int32[]*0
        loss = Mean(d, axis)
        c = MatMul(first, second)
        """,
        **settings,
    )
    assert result.f16 == "a b c"
    assert {result.rule(name) for name in ("first", "second")} == {Rule.DIFFERENCE}


ERROR = """
    a = MatMul(x, y)
    bias = BiasAdd(a, z)
    error = {op}(bias, x)
    axis = Const() dtype=int32 value=int32[]*0
    loss = Mean(error, axis)
    back = MatMul({back}, y)
"""


@both
@pytest.mark.parametrize("op", ["Sub", "SquaredDifference"])
def test_a_prediction_minus_its_label_is_float32(op, settings):
    result = painted(INPUT + ERROR.format(op=op, back="error"), **settings)
    assert result.f16 == "a back"
    assert result.rule("bias") is Rule.DIFFERENCE


def test_a_prediction_whose_kernel_adds_its_bias_is_no_16_bit_product():
    """Their sum is rounded once: near 2,000 it is a multiple of 8."""
    text = """
    a = _FusedMatMul(x, y, y) num_args=1 fused_ops=['BiasAdd']
    moved = Squeeze(a)
    error = Sub(moved, x)
    axis = Const() dtype=int32 value=int32[]*0
    loss = Mean(error, axis)
    back = MatMul(error, y)
    """
    result = painted(INPUT + text, **CPU)
    assert result.f16 == "back"
    assert result.rule("a") is Rule.DIFFERENCE


@both
def test_a_difference_of_which_no_loss_is_made_but_by_a_product_is_converted(settings):
    text = INPUT + "a = MatMul(x, y)\nd = Sub(a, z)\nb = MatMul(d, y)\naxis = Const() dtype=int32 value=int32[]*0\n"
    assert "d" in painted(text + "loss = Mean(b, axis)", **settings).f16.split()


@both
@pytest.mark.parametrize("op", ["Cholesky", "MatrixInverse", "MatrixDeterminant"])
def test_a_matrix_that_is_decomposed_is_float32_from_its_product_on(op, settings):
    text = INPUT + f"a = MatMul(x, y)\ns = AddV2(a, z)\nd = {op}(s)\nb = MatMul(d, s)"
    result = painted(text, **settings)
    assert result.rule("s") is Rule.DIFFERENCE
    assert result.f16 == "a b"


@both
def test_a_sum_that_is_exponentiated_is_float32(settings):
    text = INPUT + "a = MatMul(x, y)\ns = AddV2(a, z)\ne = Exp(s)\nb = MatMul(e, y)"
    assert painted(text, **settings).rule("s") is Rule.DIFFERENCE


@both
def test_an_optimizers_difference_does_not_reach_the_way_back_to_the_layer(settings):
    """Keras' Adam divides gradient minus momentum; of a bias the gradient is no product's result."""
    result = painted(
        INPUT
        + """
        a = MatMul(x, y)
        back = ReluGrad(a, y)
        b = MatMul(back, y)
        bias = BiasAddGrad(back)
        moved = Sub(bias, x)
        step = RealDiv(moved, x)
        out = Identity(step)
        """,
        **settings,
    )
    assert "back" in result.f16.split()
    assert not {"moved", "step"} & set(result.f16.split())


BIAS = """
    a = MatMul(x, y)
    g = MatMul(a, y)
    slope = Mul(g, a)
    turned = Neg(slope)
    through = Mul(g, y)
    back = AddN(turned, through) N=2
    b = MatMul(back, y)
    axis = Const() dtype=int32 value=int32[]*0
    {total}
    step = RealDiv(total, y)
    out = Identity(step)
"""


@both
@pytest.mark.parametrize("total", ["total = BiasAddGrad(back)", "total = Sum(back, axis)"])
def test_the_gradient_of_a_bias_may_be_divided(total, settings):
    """As loss scaling does: the roundings of what a sum after the last product adds have either sign."""
    result = painted(INPUT + BIAS.format(total=total), **settings)
    assert {"a", "g", "b"} <= set(result.f16.split())
    assert result.rule("back") is not Rule.DIFFERENCE


@both
@pytest.mark.parametrize("term", ["Square(back)", "Abs(back)", "SquaredDifference(back, a)"])
def test_a_total_of_differences_without_their_signs_shows_them(term, settings):
    result = painted(INPUT + BIAS.format(total=f"term = {term}\ntotal = Sum(term, axis)"), **settings)
    assert result.rule("back") is Rule.DIFFERENCE
    assert not {"a", "g"} & set(result.f16.split())


@both
def test_what_is_logged_is_float32(settings):
    result = painted(INPUT + "a = MatMul(x, y)\np = Sigmoid(a)\nl = Log(p)\nb = MatMul(l, y)", **settings)
    assert result.f16 == "a b"


@both
def test_products_that_are_subtracted_from_each_other_and_divided_are_float32(settings):
    text = INPUT + "a = MatMul(x, y)\nb = MatMul(y, x)\nd = Sub(a, {other})\nq = RealDiv(x, d)\nc = MatMul(q, y)"
    assert painted(text.format(other="b"), **settings).f16 == "c"
    assert "a" in painted(text.format(other="x"), **settings).f16.split()


def test_products_behind_the_difference_from_their_own_mean_are_converted():
    result = painted(
        INPUT
        + """
        axis = Const() dtype=int32 value=int32[]*0
        a = MatMul(x, y)
        mean = Mean(a, axis) keep_dims=true
        centered = Sub(a, mean)
        deviation = Rsqrt(y)
        normal = Mul(centered, deviation)
        b = MatMul(normal, y)
        """,
        **CPU,
    )
    assert result.f16 == "a b"
    assert result.rule("centered") is Rule.DIFFERENCE


NORMALIZED = (
    INPUT
    + """
    a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]
    {between}
    n = FusedBatchNormV3(s, z, z, z, z) is_training=true
    b = Conv2D(n, y) padding='SAME' strides=[1, 1, 1, 1]
"""
)


def test_an_offset_that_a_fused_normalization_takes_off_again_is_float32():
    assert painted(NORMALIZED.format(between="s = AddV2(a, z)"), **CPU).f16 == "a b"
    assert "n" in painted(NORMALIZED.format(between="s = BiasAdd(a, z)"), **CPU).f16.split()
    residual = "d = Conv2D(a, y) padding='SAME' strides=[1, 1, 1, 1]\ns = AddV2(a, d)"
    assert "n" in painted(NORMALIZED.format(between=residual), **CPU).f16.split()


@both
def test_what_gives_a_products_values_on_as_they_are_is_converted(settings):
    """So is an activation by which a gradient only sees where it was zero."""
    result = painted(
        INPUT
        + """
        axis = Const() dtype=int32 value=int32[]*0
        a = MatMul(x, y)
        r = Relu(a)
        b = MatMul(r, y)
        back = ReluGrad(b, r)
        mean = Mean(back, axis) keep_dims=true
        d = Sub(back, mean)
        q = RealDiv(d, y)
        c = MatMul(q, y)
        """,
        **settings,
    )
    assert {"r", "back"} <= set(result.f16.split())
    assert not {"mean", "d", "q"} & set(result.f16.split())


@both
def test_what_a_pooling_chose_by_is_no_part_of_its_gradient(settings):
    pooling = "ksize=[1, 2, 2, 1] padding='SAME' strides=[1, 2, 2, 1]"
    result = painted(
        INPUT
        + f"""
        a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]
        negative = Neg(a)
        d = AddV2(negative, y)
        r = Relu(d)
        m = MaxPool(r) {pooling}
        b = Conv2D(m, y) padding='SAME' strides=[1, 1, 1, 1]
        back = MaxPoolGrad(r, m, b) {pooling}
        q = RealDiv(back, y)
        c = Conv2D(q, y) padding='SAME' strides=[1, 1, 1, 1]
        """,
        **settings,
    )
    assert {"r", "m", "back"} <= set(result.f16.split())


# ---------------------------------------------------------------- centred values

CENTRED = (
    INPUT
    + """
    axis = Const() dtype=int32 value=int32[]*1
    scores = MatMul(x, y)
    weights = Softmax(scores)
    out = MatMul(weights, y)
    back = MatMul(out, y) transpose_b=true
    weighted = Mul({factors})
    mean = Sum(weighted, axis) keep_dims=true
    {moved}
    centred = Sub(back, {mean})
    to_scores = Mul(centred, weights)
    queries = MatMul(to_scores, y)
"""
)


@both
@pytest.mark.parametrize("factors", ["back, weights", "weights, back"])
def test_the_gradient_of_a_softmax_adds_up_to_zero(factors, settings):
    """With it the softmax is float32: weights that were rounded, each, no longer add up to one."""
    result = painted(CENTRED.format(factors=factors, moved="", mean="mean"), **settings)
    assert {name for name in ("weights", "weighted", "mean", "centred") if result.rule(name) is Rule.CENTRED} == {
        "weights",
        "weighted",
        "centred",
        *(["mean"] if settings is CPU else []),  # of sums float16's own deny list has none
    }
    assert result.f16 == "scores out back queries"


@both
def test_a_mean_of_something_else_is_no_mean_of_its_row(settings):
    result = painted(CENTRED.format(factors="weights, y", moved="", mean="mean"), **settings)
    assert result.rule("weights") is not Rule.CENTRED
    assert "weights" in result.f16.split()


@both
@pytest.mark.parametrize(("steps", "is_found"), [(1, True), (FARTHEST - 2, True), (FARTHEST, False)])
def test_a_mean_that_was_only_moved_is_looked_for_behind_a_bounded_number_of_nodes(steps, is_found, settings):
    moved = "\n".join(f"m{step} = Squeeze({f'm{step - 1}' if step else 'mean'})" for step in range(steps))
    result = painted(CENTRED.format(factors="back, weights", moved=moved, mean=f"m{steps - 1}"), **settings)
    assert (result.rule("centred") is Rule.CENTRED) is is_found


@both
def test_a_value_minus_its_mean_is_float32_with_it(settings):
    """In the gradient of a variance: nothing magnifies it there."""
    axis = "axis = Const() dtype=int32 value=int32[]*0\n"
    text = "a = MatMul(x, y)\nm = Mean(a, axis) keep_dims=true\nstopped = StopGradient(m)\nd = Sub(a, stopped)\n"
    result = painted(INPUT + axis + text + "scaled = Mul(d, y)\nb = MatMul(scaled, y)", **settings)
    assert result.f16 == "a b"
    assert result.rule("d") is Rule.CENTRED


# ---------------------------------------------------------------- promoted differences


@both
@pytest.mark.parametrize("difference", ["more, a", "a, more", "moved, a"])
def test_a_difference_of_which_one_side_is_kept_in_float32_is_float32(difference, settings):
    text = "a = MatMul(x, y)\nmore = AddV2(a, z)\nlogged = Log(more)\nmoved = Squeeze(more)\n"
    result = painted(INPUT + text + f"left = Sub({difference})\nb = MatMul(left, logged)", **settings)
    assert result.rule("more") is result.rule("left") is Rule.DIFFERENCE
    assert set(result.f16.split()) <= {"a", "moved", "b"}


@both
def test_who_forces_such_a_difference_gets_it(settings):
    text = "a = MatMul(x, y)\nmore = AddV2(a, z)\nlogged = Log(more)\nleft = Sub(more, a)\nb = MatMul(left, logged)"
    assert "left" in painted(INPUT + text, force_f16=("^left$",), **settings).f16.split()
