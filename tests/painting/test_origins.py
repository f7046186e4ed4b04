"""Origins tell exact values from parameters, and join exact values and products."""

from __future__ import annotations

import pytest

from amp_tf.painting.origins import GREAT, LONGEST_CHAIN, NEVER
from amp_tf.painting.reasons import Code
from tests.left_out import without
from tests.painting.painted import CPU, both, check, painted

GIVEN = "x = Placeholder()\ny = Placeholder()\n"
START = """
    x = Placeholder()
    handle = VarHandleOp() dtype=float32 shape=[4]
    bias = ReadVariableOp(handle) dtype=float32
    axis = Const() dtype=int32 value=int32[]*1
    a = MatMul(x, x)
"""
END = "\nb = MatMul(s, x)"


@pytest.fixture
def without_needs():
    """Leaves out needs: a subtraction needs its operands, and would be the reason that is named
    first.
    """
    with without(["needs"]):
        yield


@pytest.mark.usefixtures("without_needs")
@pytest.mark.parametrize(
    "joined",
    [
        "s = AddV2(x, a)",
        "q = Placeholder() dtype=resource\nf = QueueDequeueV2(q) component_types=[float32]\ns = "
        "AddV2(a, f)",
        "s = Sub(a, x)",
        "n = Placeholder() dtype=int32\nf = Cast(n) SrcT=int32 DstT=float32\ns = AddV2(a, f)",
        f"c = Const() value=float32[]*{GREAT}\ns = AddV2(a, c)",
        f"c = Const() value=float32[]*{NEVER:.0f}\ns = AddV2(a, c)",  # an offset
        "f = EagerPyFunc() token='f' Tin=[] Tout=[float32]\ns = AddV2(a, f)",
        "n = Placeholder() dtype=string\nf = StringToNumber(n)\ns = AddV2(a, f)",
        "t = Mul(x, bias)\ns = AddV2(a, t)",
        "t = Mul(a, x)\ns = AddV2(bias, t)\nstored = AssignVariableOp(handle, s)",  # an update
        "t = Mul(bias, x)\ns = AddV2(t, a)\nm = Identity(s)\nstored = AssignVariableOp(handle, m)",
        "s = AddV2(bias, a)\nm = Maximum(s, bias)\nstored = AssignVariableOp(handle, m)",
        "n = Const() dtype=int32 value=int32[2]*1\n"
        "r = ResourceGather(handle, n) dtype=float32 Tindices=int32\n"
        "s = AddV2(r, a)\nstored = ResourceScatterUpdate(handle, n, s) Tindices=int32",
    ],
)
def test_what_adds_exact_data_to_what_a_product_gave_is_float32(joined):
    result = painted(START + joined + END, **CPU)
    assert result.code("s") is Code.JOINED


@pytest.mark.parametrize(
    "free",
    [
        "s = AddV2(a, bias)",
        "s = BiasAdd(a, x)",  # a value for each channel, whatever it is
        "s = Mul(a, x)",
        "t = Mul(x, a)\ns = AddV2(t, a)",
        "c = Const() value=float32[]*1\ns = AddV2(a, c)",
        f"c = Const() value=float32[]*-{NEVER:.0f}\nm = Mul(x, c)\ns = AddV2(a, m)",  # a mask
        "size = Const() dtype=int32 value=int32[2]*4\nr = RandomUniform(size) T=int32\ns = "
        "AddV2(a, r)",
        "t = Tanh(x)\ns = AddV2(a, t)",
        "s = ConcatV2(a, x, axis) N=2",  # each number keeps its own rounding
    ],
)
def test_what_multiplies_or_adds_parameters_and_what_products_alone_read_may_be_16_bit(free):
    result = painted(START + free + END, **CPU)
    assert "s" in result.f16.split()


@pytest.mark.usefixtures("without_needs")
def test_what_moves_a_joined_value_to_a_sum_is_float32():
    text = "m = ConcatV2(a, x, axis) N=2\nr = Relu(m)\ns = Sub(r, a)"
    result = painted(START + text + END, **CPU)
    assert result.f16 == "a b"
    for name in ("m", "r", "s"):
        assert result.code(name) == Code.JOINED, name


def test_a_bounded_or_normalized_result_begins_anew():
    result = painted(START + "j = AddV2(x, a)\nt = Tanh(j)\ns = AddV2(t, a)" + END, **CPU)
    for name in ("j", "t"):
        assert result.code(name) is Code.JOINED
    assert "s" in result.f16.split()


def test_a_sum_that_no_product_uses_is_told_so():
    result = painted(START + "s = AddV2(x, a)", **CPU)
    assert result.code("s") is Code.AFTER_PRODUCTS


def test_an_argument_that_a_trace_captured_is_a_parameter():
    """Callers give those before; a captured table of positions is added as a bias is."""
    import tensorflow as tf

    from amp_tf import AmpConfig, rewrite

    kept = tf.random.normal((4, 4))
    weight = tf.Variable(tf.eye(4))

    @tf.function
    def run(x, y):
        a = tf.matmul(x, weight)
        captured = tf.add(a, kept, name="captured")
        given = tf.add(a, y, name="given")
        return tf.matmul(captured, given)

    function = run.get_concrete_function(*[tf.TensorSpec((4, 4))] * 2)
    library = function.graph.as_graph_def().library
    done = rewrite(function.function_def, AmpConfig(**CPU), library=library)
    nodes = {node.name: node for node in done.report.graphs[0].nodes}
    assert nodes["captured"].precision.is_f16
    assert not nodes["given"].precision.is_f16


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


STATES = {
    "itself and something": (
        "p = MatMul(switch:1, w)\nh = Tanh(p)\nq = MatMul(h, w)\nnew = AddV2(switch:1, q)",
        "w p h q done result",
        "new state",
    ),
    "made anew each turn": (
        "p = MatMul(switch:1, w)\nnew = Tanh(p)",
        "+state switch p new next",
        "",
    ),
    "only passed": ("p = MatMul(switch:1, w)\nnew = Identity(switch:1)", "+new", ""),
    "multiplied, by what is float32 from its product on": (
        "p = MatMul(switch:1, w)\nkeep = Sigmoid(p)\nkept = Mul(keep, switch:1)\nq = "
        "MatMul(switch:1, w)\n"
        "step = Tanh(q)\nnew = AddV2(kept, step)",
        "+p q",
        "keep kept new state",
    ),
    "itself and something times a constant": (
        "step = MatMul(switch:1, w)\nrate = Const() value=float32[]*0.01\nscaled = Mul(step, "
        "rate)\n"
        "new = AddV2(switch:1, scaled)",
        "+step scaled",
        "new state",
    ),
}


@both
@pytest.mark.parametrize(("body", "f16", "summed"), STATES.values(), ids=STATES)
def test_a_state_is_a_running_sum_where_it_is_itself_and_something(body, f16, summed, settings):
    rules = dict.fromkeys(summed.split(), Code.RUNNING_SUM)
    check(LOOP.format(body=body), f16, rules, settings)


#: The second as the Tversky loss, whose labels are an argument and whose sums are results.
RESULTS = {
    "added": (
        "t = Tanh(p:product:0)\nq = MatMul(t:y:0, w)\ns = AddV2(x, q:product:0)",
        "s:z:0",
        "p t q u",
        "s",
    ),
    "summed": (
        "axis = Const() dtype=int32 value=int32[]*0\nt = Mul(p:product:0, x)\ns = Sum(t:z:0, "
        "axis:output:0)",
        "s:output:0",
        "+p u",
        "t s",
    ),
}


@pytest.mark.parametrize(("body", "result", "f16", "summed"), RESULTS.values(), ids=RESULTS)
def test_a_result_that_may_be_the_next_argument_is_a_running_sum(body, result, f16, summed):
    text = f"""
        function body(x: float32, w: float32) -> (y: float32, z: float32)
        p = MatMul(x, w)
        {body}
        u = MatMul({result}, w)
        return y = {result}
        return z = u:product:0
    """
    rules = dict.fromkeys(summed.split(), Code.RUNNING_SUM)
    check(text, f16, rules, CPU)


def chain(additions: int) -> str:
    lines = [GIVEN, "s0 = MatMul(x, y)"]
    for number in range(additions):
        lines.append(f"p{number} = MatMul(s{number}, y)")
        lines.append(f"s{number + 1} = AddV2(s{number}, p{number})")
    lines.append(f"end = MatMul(s{additions}, y)")
    return "\n".join(lines)


@both
def test_a_sum_that_is_normalized_on_its_way_begins_anew(settings):
    lines = [GIVEN, "s0 = MatMul(x, y)", "g = MatMul(y, y)"]
    for n in range(12):
        lines.append(f"f{n} = MatMul(s{n}, y)")
        lines.append(f"a{n} = AddV2(s{n}, f{n})")
        lines.append(f"s{n + 1} = Mul(a{n}, g)")
    lines.append("end = MatMul(s12, y)")
    result = painted("\n".join(lines), **settings)
    assert {"a0", "a6", "a11"} <= set(result.f16.split())


NORM = """
    axis = Const() dtype=int32 value=int32[]*1
    mean = Mean(s8, axis)
    stopped = StopGradient(mean)
    centred = Sub(s8, stopped)
    last = MatMul(centred, y)
"""
BIAS = """s0 = MatMul(x, y)
    {read}
    rows = Const() dtype=int32 value=int32[2]*4
    bias = Reshape(read, rows)
    moved = Reshape(s0, rows)
    biased = AddV2(moved, bias)
"""
READ = "handle = VarHandleOp() dtype=float32 shape=[4]\nread = ReadVariableOp(handle) dtype=float32"


@both
@pytest.mark.parametrize(
    "read", ["", READ, "read = _Arg() T=float32 index=0", "read = Placeholder()"]
)
def test_neither_a_norm_behind_a_chain_nor_a_bias_before_it_makes_it_longer(read, settings):
    text = chain(LONGEST_CHAIN) + NORM
    if read:
        text = text.replace("s0 = MatMul(x, y)\n", BIAS.format(read=read))
        text = text.replace("AddV2(s0,", "AddV2(biased,")
    converted = painted(text, **settings).f16.split()
    assert ("s1" in converted) == ("Placeholder" not in read)


@both
def test_a_long_chain_of_additions_is_float32_and_a_short_one_is_not(settings):
    short = painted(chain(LONGEST_CHAIN), **settings)
    assert "s1" in short.f16.split()
    long = painted(chain(LONGEST_CHAIN + 1), **settings)
    converted = long.f16.split()
    for number in range(LONGEST_CHAIN + 1):
        assert long.code(f"s{number + 1}") == Code.RUNNING_SUM
        assert f"p{number}" in converted


@both
def test_a_long_chain_of_factors_is_float32_and_a_short_one_is_not(settings):
    """A factor of .993 that is rounded once is .9922, and that to the thirtieth is .79, not .81."""

    def factors(count: int) -> str:
        lines = [GIVEN, "s0 = MatMul(x, y)", "t = MatMul(y, y)", "f = Sigmoid(t)"]
        for number in range(count):
            lines.append(f"s{number + 1} = Mul(s{number}, f)")
        lines.append(f"end = MatMul(s{count}, y)")
        return "\n".join(lines)

    short = painted(factors(LONGEST_CHAIN), **settings)
    assert {"f", "s1"} <= set(short.f16.split())
    long = painted(factors(LONGEST_CHAIN + 1), **settings)
    assert long.f16 == "s0 t end"
    assert long.code("f") == long.code("s1") == Code.RUNNING_SUM
