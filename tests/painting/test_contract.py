"""The numerical contract, rule by rule: what stays in float32 because of where it comes from and where it goes."""

from __future__ import annotations

import pytest

from amp_tf.painting.contract import LONGEST_SUM
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = "x = Placeholder()\ny = Placeholder()\n"
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


# ---------------------------------------------------------------- after the last product


@both
def test_a_gradient_is_unscaled_in_float32(settings):
    result = painted(
        INPUT
        + """
        handle = VarHandleOp() dtype=float32 shape=[4, 4]
        gradient = MatMul(x, y) transpose_a=true
        unscaled = RealDiv(gradient, x)
        clipped = Mul(unscaled, y)
        step = AssignSubVariableOp(handle, clipped)
        """,
        **settings,
    )
    assert result.f16 == "gradient"
    assert result.rule("unscaled") is result.rule("clipped") is Rule.AFTER_PRODUCTS


@both
def test_what_the_next_layer_uses_as_well_is_converted(settings):
    result = painted(
        INPUT + "a = MatMul(x, y)\nh = Tanh(a)\nb = MatMul(h, y)\nread = Mul(h, h)\nlogged = Mul(read, x)", **settings
    )
    assert result.f16 == "a h b"


@both
def test_what_only_moves_a_gradient_has_its_type(settings):
    result = painted(
        INPUT + "axes = Const() dtype=int32 value=int32[2]*1\ng = MatMul(x, y)\nt = Transpose(g, axes)\nr = Relu(t)"
        "\ns = Mul(r, x)",
        **settings,
    )
    assert result.f16 == "g t r"


@both
def test_a_bias_can_be_fused_with_the_last_product(settings):
    result = painted(INPUT + "a = MatMul(x, y)\nb = BiasAdd(a, x)\nc = Relu(b)\nd = Softmax(c)", **settings)
    assert result.f16 == "a b c"
    assert result.rule("d") is Rule.AFTER_PRODUCTS


def test_a_mean_that_somebody_reads_is_float32():
    result = painted(
        INPUT + "axis = Const() dtype=int32 value=int32[]*0\na = MatMul(x, y)\nloss = Mean(a, axis)", **CPU
    )
    assert result.f16 == "a"


@both
def test_what_is_stored_serves_no_product_of_this_step(settings):
    """The gradient of a training loop's next step reads the variable, not what was stored in it."""
    result = painted(
        """
        v = VariableV2() shape=[4, 4]
        x = Placeholder()
        a = MatMul(x, x)
        change = Mul(a, x)
        stored = AssignAdd(v, change)
        again = MatMul(stored, x)
        """,
        **settings,
    )
    assert result.f16 == "a again"
    assert result.rule("change") is Rule.AFTER_PRODUCTS


CALLED = """
    function callee(x: float32) -> (y: float32)
    t = {op}(x, x)
    return y = t:{result}:0
"""


@pytest.mark.parametrize(("op", "result", "f16"), [("MatMul", "product", "a m"), ("Mul", "z", "a")])
def test_what_a_call_gets_is_used_by_a_product_if_its_function_has_one(op, result, f16):
    from amp_tf import AmpConfig, rewrite
    from tests.small_graphs import function, graph

    text = INPUT + "a = MatMul(x, y)\nm = Mul(a, y)\nc = callee(m)"
    config = AmpConfig(precision="bfloat16", target="cpu")
    done = rewrite(graph(text, function(CALLED.format(op=op, result=result))), config, preserve=["c"])
    assert " ".join(node.name for node in done.report.graphs[0].nodes if node.precision.is_f16) == f16


def test_who_forces_a_node_gets_it():
    result = painted(INPUT + "a = MatMul(x, y)\nm = Mul(a, y)\nn = Mul(m, y)", force_f16=("^m$",), **CPU)
    assert result.f16 == "a m"


# ---------------------------------------------------------------- running sums

LOOP = """
    x = Placeholder()
    start = Enter(x) frame_name='f'
    w = Enter(x) frame_name='f' is_constant=true
    state = Merge(start, next)
    go = Placeholder() dtype=bool shape=[]
    on = Enter(go) T=bool frame_name='f' is_constant=true
    cond = LoopCond(on)
    switch = Switch(state, cond)
    {body}
    next = NextIteration(new)
    done = Exit(switch)
    result = MatMul(done, x)
"""


@both
def test_a_state_that_is_itself_and_something_is_float32(settings):
    result = painted(
        LOOP.format(body="p = MatMul(switch:1, w)\nh = Tanh(p)\nq = MatMul(h, w)\nnew = AddV2(switch:1, q)"), **settings
    )
    assert result.f16 == "w p h q done result"
    assert result.rule("new") is result.rule("state") is Rule.RUNNING_SUM


@both
def test_a_state_that_each_turn_makes_anew_is_converted(settings):
    result = painted(LOOP.format(body="p = MatMul(switch:1, w)\nnew = Tanh(p)"), **settings)
    assert {"state", "switch", "p", "new", "next"} <= set(result.f16.split())


@both
def test_a_state_that_only_passes_is_converted(settings):
    result = painted(LOOP.format(body="p = MatMul(switch:1, w)\nnew = Identity(switch:1)"), **settings)
    assert "new" in result.f16.split()


@both
def test_what_a_state_is_multiplied_by_is_float32_from_its_product_on(settings):
    result = painted(
        LOOP.format(
            body="""
            p = MatMul(switch:1, w)
            keep = Sigmoid(p)
            kept = Mul(keep, switch:1)
            q = MatMul(switch:1, w)
            step = Tanh(q)
            new = AddV2(kept, step)
            """
        ),
        **settings,
    )
    assert not {"keep", "kept", "new", "state"} & set(result.f16.split())
    assert {"p", "q"} <= set(result.f16.split())


def test_a_result_that_may_be_the_next_argument_is_a_running_sum():
    text = """
        function body(x: float32, w: float32) -> (y: float32, z: float32)
        p = MatMul(x, w)
        t = Tanh(p:product:0)
        q = MatMul(t:y:0, w)
        s = AddV2(x, q:product:0)
        u = MatMul(s:z:0, w)
        return y = s:z:0
        return z = u:product:0
    """
    result = painted(text, **CPU)
    assert result.rule("s") is Rule.RUNNING_SUM
    assert result.f16 == "p t q u"


def chain(additions: int) -> str:
    lines = [INPUT, "s0 = MatMul(x, y)"]
    for number in range(additions):
        lines += [f"p{number} = MatMul(s{number}, y)", f"s{number + 1} = AddV2(s{number}, p{number})"]
    return "\n".join([*lines, f"end = MatMul(s{additions}, y)"])


@both
def test_a_sum_that_is_normalized_on_its_way_begins_anew(settings):
    lines = [INPUT, "s0 = MatMul(x, y)", "g = MatMul(y, y)"]
    for n in range(12):
        lines += [f"f{n} = MatMul(s{n}, y)", f"a{n} = AddV2(s{n}, f{n})", f"s{n + 1} = Mul(a{n}, g)"]
    result = painted("\n".join([*lines, "end = MatMul(s12, y)"]), **settings)
    assert {"a0", "a6", "a11"} <= set(result.f16.split())


@both
def test_a_long_chain_of_additions_is_float32_and_a_short_one_is_not(settings):
    assert "s1" in painted(chain(LONGEST_SUM), **settings).f16.split()
    long = painted(chain(LONGEST_SUM + 1), **settings)
    assert {long.rule(f"s{number}") for number in range(1, LONGEST_SUM + 2)} == {Rule.RUNNING_SUM}
    assert {f"p{number}" for number in range(LONGEST_SUM + 1)} <= set(long.f16.split())


@both
def test_the_constant_factor_of_what_a_running_sum_adds_is_float32(settings):
    body = """
    step = MatMul(switch:1, w)
    rate = Const() value=float32[]*0.01
    scaled = Mul(step, rate)
    new = AddV2(switch:1, scaled)
    """
    result = painted(LOOP.format(body=body), **settings)
    assert result.rule("scaled") is Rule.RUNNING_SUM
    assert "step" in result.f16.split()


# ---------------------------------------------------------------- differences


@both
def test_a_distance_is_float32_from_its_product_to_its_root(settings):
    result = painted(
        INPUT + "a = MatMul(x, y)\ntwice = Mul(a, y)\nd = Sub(x, twice)\nr = Sqrt(d)\nb = MatMul(r, y)", **settings
    )
    assert not {"twice", "d"} & set(result.f16.split())
    assert result.rule("d") is Rule.DIFFERENCE
    assert {"a", "b"} <= set(result.f16.split())


@both
def test_a_difference_that_the_next_product_uses_is_converted(settings):
    assert painted(INPUT + "a = MatMul(x, y)\nd = Sub(a, y)\nb = MatMul(d, y)", **settings).f16 == "a d b"


@both
def test_a_difference_that_is_one_term_of_many_is_converted(settings):
    result = painted(
        INPUT
        + """
        a = MatMul(x, y)
        d = Sub(a, y)
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
    text = INPUT + "a = MatMul(x, y)\nn = Neg(a)\ns = AddV2(x, n)\nr = Sqrt(s)\nb = MatMul(r, y)"
    assert painted(text, **settings).rule("s") is Rule.DIFFERENCE


@both
def test_a_difference_of_squares_is_float32_whatever_follows(settings):
    text = INPUT + "a = MatMul(x, y)\nm = Mul(a, a)\nd = Sub(x, m)\nb = MatMul(d, y)"
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
    bias = BiasAdd(a, y)
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
    text = INPUT + "a = MatMul(x, y)\nd = Sub(a, y)\nb = MatMul(d, y)\naxis = Const() dtype=int32 value=int32[]*0\n"
    assert "d" in painted(text + "loss = Mean(b, axis)", **settings).f16.split()


@both
@pytest.mark.parametrize("op", ["Cholesky", "MatrixInverse", "MatrixDeterminant"])
def test_a_matrix_that_is_decomposed_is_float32_from_its_product_on(op, settings):
    text = INPUT + f"a = MatMul(x, y)\ns = AddV2(a, y)\nd = {op}(s)\nb = MatMul(d, s)"
    result = painted(text, **settings)
    assert result.rule("s") is Rule.DIFFERENCE
    assert result.f16 == "a b"


@both
def test_a_sum_that_is_exponentiated_is_float32(settings):
    text = INPUT + "a = MatMul(x, y)\ns = AddV2(a, y)\ne = Exp(s)\nb = MatMul(e, y)"
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
    c = Placeholder()
    a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]
    {between}
    n = FusedBatchNormV3(s, c, c, c, c) is_training=true
    b = Conv2D(n, y) padding='SAME' strides=[1, 1, 1, 1]
"""
)


def test_an_offset_that_a_fused_normalization_takes_off_again_is_float32():
    assert painted(NORMALIZED.format(between="s = AddV2(a, y)"), **CPU).f16 == "a b"
    assert "n" in painted(NORMALIZED.format(between="s = BiasAdd(a, y)"), **CPU).f16.split()
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


# ---------------------------------------------------------------- float16's range


def test_a_square_is_float32_in_float16_and_a_product_of_two_is_not():
    text = INPUT + "a = MatMul(x, y)\ns = Mul(a, {other})\nb = MatMul(s, y)"
    assert painted(text.format(other="a"), **GPU).rule("s") is Rule.LEAVES_RANGE
    assert painted(text.format(other="y"), **GPU).f16 == "a s b"
    assert painted(text.format(other="a"), **CPU).f16 == "a s b"


def test_a_quotient_is_float32_in_float16_unless_its_divisor_is_a_constant():
    text = INPUT + "eight = Const() value=float32[]*8\na = MatMul(x, y)\nq = RealDiv(a, {divisor})\nb = MatMul(q, y)"
    assert painted(text.format(divisor="y"), **GPU).rule("q") is Rule.LEAVES_RANGE
    assert painted(text.format(divisor="eight"), **GPU).f16 == "a q b"


def test_what_reads_the_gradient_of_a_root_is_float32_in_float16():
    """The gradient of a root of 1e-3 is 16 times as large; times 1e-3 it is in range again, but not if it was cast."""
    text = INPUT + "a = MatMul(x, y)\ng = SqrtGrad(x, a)\nm = Mul(g, a)\nb = MatMul(m, y)"
    assert painted(text, **GPU).rule("m") is Rule.LEAVES_RANGE
    assert painted(text, **CPU).f16 == "a m b"


def test_a_kernel_that_loses_small_results_is_not_used():
    result = painted(INPUT + "a = MatMul(x, y)\ne = Elu(a)\nb = MatMul(e, y)", **CPU)
    assert result.f16 == "a b"
    assert result.rule("e") is Rule.INACCURATE
