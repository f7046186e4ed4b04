"""The numerical contract, rule by rule: what stays in float32 because of where it comes from and where it goes."""

from __future__ import annotations

import pytest

from amp_tf.painting.contract import LONGEST_SUM
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = (
    "x = Placeholder()\ny = Placeholder()\n"
    "z_of = VarHandleOp() dtype=float32 shape=[4, 4]\nz = ReadVariableOp(z_of) dtype=float32\n"
)
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
    result = painted(INPUT + "a = MatMul(x, y)\nb = BiasAdd(a, z)\nc = Relu(b)\nd = Softmax(c)", **settings)
    assert result.f16 == "a b c"
    assert result.rule("d") is Rule.AFTER_PRODUCTS


def test_a_mean_that_somebody_reads_is_float32():
    result = painted(
        INPUT + "axis = Const() dtype=int32 value=int32[]*0\na = MatMul(x, y)\nloss = Mean(a, axis)", **CPU
    )
    assert result.f16 == "a"


def test_a_normalization_that_keeps_its_own_running_average_is_converted():
    """As in tf_keras, where it reads the averages as well and gives the new ones: they are float32 on every list."""
    text = """
        handle = VarHandleOp() dtype=float32 shape=[4]
        average = ReadVariableOp(handle)
        a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]
        n = FusedBatchNormV3(a, z, z, average, z) exponential_avg_factor=0.01 is_training=true
        stored = AssignVariableOp(handle, n:1)
        b = Conv2D(n, y) padding='SAME' strides=[1, 1, 1, 1]
    """
    assert painted(INPUT + text, **CPU).f16 == "a n b"


def test_the_gradient_of_a_normalization_whose_scale_it_trains_is_converted():
    """Its scale reads the variable that its result goes to, and is float32 on every list."""
    text = """
        handle = VarHandleOp() dtype=float32 shape=[4]
        scale = ReadVariableOp(handle)
        a = Conv2D(x, y) padding='SAME' strides=[1, 1, 1, 1]
        n = FusedBatchNormGradV3(a, a, scale, z, z, z) is_training=true
        stepped = Mul(n:1, z)
        stored = AssignSubVariableOp(handle, stepped)
        b = Conv2D(n, y) padding='SAME' strides=[1, 1, 1, 1]
    """
    assert painted(INPUT + text, **CPU).f16 == "a n b"


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
