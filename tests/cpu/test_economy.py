"""The cost model: element-wise chains, slow kernels, islands that lose."""

import dataclasses
import math

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Balance, Rule
from tests.rewriting.rewritten import AUTO, BF16_CPU, node_of, shaped
from tests.small_graphs import graph
from tests.strategies import lowered_control_flow


def _reasons(text, config=AUTO, hardware=BF16_CPU):
    report = amp_tf.rewrite(shaped(text), config, hardware=hardware).report
    return {node.name: node.reason for node in report.nodes}


def _rules(text, config=AUTO):
    return {name: reason.rule for name, reason in _reasons(text, config).items()}


def _costing(**changes):
    """A CPU that costs what the shipped table says, but for some changes."""
    return Hardware(cpu_has_bf16=True, costs=dataclasses.replace(SHIPPED, **changes))


MATRICES = """
    x = Placeholder() shape=[512, 512]
    w = Placeholder() shape=[512, 512]
"""
CHAIN = f"""
    {MATRICES}
    allow1 = MatMul(x, w)
    infer0 = Sigmoid(allow1)
    infer1 = Sigmoid(infer0)
    infer2 = Sigmoid(infer1)
    infer3 = Sigmoid(infer2)
    allow2 = MatMul(infer3, w)
"""
SMALL = """
    x = Placeholder() shape=[8, 8]
    small = MatMul(x, x)
"""


def test_a_chain_that_is_slow_in_16_bit_stays_between_two_casts():
    rules = _rules(CHAIN)
    assert rules["allow1"] is rules["allow2"] is Rule.ALLOW_LIST
    assert {rules[f"infer{number}"] for number in range(4)} == {Rule.DOES_NOT_PAY}


@pytest.mark.parametrize(("gain", "is_f16"), [(1.0, True), (0.1, False)])
def test_a_sigmoid_times_its_input_goes_as_the_one_op_that_tensorflow_makes_of_both(gain, is_f16):
    """Alone a Sigmoid loses in 16 bit.

    Neither goes without the other, or TensorFlow could not join them.
    """
    text = f"""
        {MATRICES}
        h = MatMul(x, w)
        inner = Sigmoid(h)
        outer = Mul(h, inner)
        last = MatMul(outer, w)
    """
    row = ((0.5, 0.5 / gain),) * len(SHIPPED.sizes)
    reasons = _reasons(text, hardware=_costing(elements={**SHIPPED.elements, SWISH: row}))
    for name in ("inner", "outer"):
        assert (reasons[name].rule is not Rule.DOES_NOT_PAY) == is_f16


def _faked(rate):
    """A CPU that multiplies bfloat16 at some rate, in operations a ns."""
    in_float32, in_f16 = SHIPPED.products["MatMul"]
    pair = (in_float32, dataclasses.replace(in_f16, rate=rate))
    return _costing(products={**SHIPPED.products, "MatMul": pair})


@pytest.mark.parametrize(
    ("rate", "size", "is_f16"), [(1700, 112, True), (450, 112, False), (220, 512, False)]
)
def test_decisions_follow_the_figures_of_the_cpu(rate, size, is_f16):
    """As with AMX a small product pays, as with avx512_bf16 it does not, and hardly faster no large
    one does.
    """
    text = f"x = Placeholder() shape=[{size}, {size}]\nproduct = MatMul(x, x)"
    reason = _reasons(text, hardware=_faked(rate))["product"]
    assert (reason.rule is Rule.ALLOW_LIST) == is_f16


def test_a_product_too_small_for_its_casts_stays():
    assert _rules(SMALL)["small"] is Rule.DOES_NOT_PAY
    # Without shapes nobody can tell how small it is.
    assert amp_tf.rewrite(graph(SMALL), AUTO, hardware=BF16_CPU).changed


def test_a_product_that_the_user_forces_is_converted_however_small():
    text = f"{SMALL}\nr = Relu(small)\ny = Placeholder() shape=[8, 8]\nother = MatMul(r, y)"
    rules = _rules(text, amp_tf.AmpConfig(force_f16=("^small$",)))
    assert rules["small"] is Rule.FORCED_BY_NAME
    assert rules["other"] is Rule.DOES_NOT_PAY  # its neighbours are weighed as ever


def test_a_kernel_that_is_slow_in_16_bit_is_not_used():
    text = """
        x = Placeholder() shape=[8, 48, 48, 96]
        y = Placeholder() shape=[8, 24, 24, 96]
        w = Placeholder() shape=[3, 3, 96, 1]
        sizes = Shape(x) out_type=int32
        gradient = DepthwiseConv2dNativeBackpropInput(sizes, w, y) strides=[1, 2, 2, 1] padding=SAME
    """
    assert _rules(text)["gradient"] is Rule.DOES_NOT_PAY
    forced = _rules(text, amp_tf.AmpConfig(force_f16=("^gradient$",)))
    assert forced["gradient"] is Rule.FORCED_BY_NAME


def _converts_loop(turns):
    """Tells whether a product with a tensor that its loop never changes is converted."""
    with tf.Graph().as_default() as built, lowered_control_flow():
        w = tf.abs(_placeholder(1024, 1024))
        start = (0, _placeholder(16, 1024))
        tf.while_loop(lambda i, _: i < turns, lambda i, y: (i + 1, tf.matmul(y, w)), start)
    return _converts(built.as_graph_def(add_shapes=True), None)


def test_a_cast_before_a_loop_is_weighed_against_all_of_its_turns():
    """The cast of the weight alone takes longer than 16 bit saves in a few turns."""
    operations = 2 * 16 * 1024 * 1024
    in_float32, in_f16 = SHIPPED.of_product("MatMul", operations, 1024 * (1024 + 2 * 16))
    casts = sum(SHIPPED.of_casts(16 * 1024))
    enough = math.ceil(SHIPPED.of_casts(1024 * 1024)[1] / (in_float32 - in_f16 - casts))
    assert 2 < enough < 100
    assert _converts_loop(2 * enough)
    assert not _converts_loop(enough // 2)


@pytest.mark.parametrize(("reader", "is_stored"), [("", True), ("exact = Exp(w)", False)])
def test_casts_of_weights_that_will_be_stored_in_16_bit_are_not_paid(reader, is_stored):
    """The cast of the weight takes longer than 16 bit saves; a weight that a float32 node reads too
    is not stored.
    """
    proto = shaped(f"""
        handle = VarHandleOp() dtype=float32 shape=[1024, 1024]
        w = ReadVariableOp(handle) dtype=float32
        x = Placeholder() shape=[16, 1024]
        product = MatMul(x, w)
        {reader}
    """)
    assert not amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU).changed
    stored = amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU, stores_weights=True)
    assert stored.changed == is_stored


SAME = "strides=[1, 1, 1, 1] padding='SAME'"


@pytest.mark.parametrize(
    ("size", "channels", "converts"), [(4, 4, False), (8, 8, False), (64, 64, True)]
)
def test_the_types_of_a_fused_product_change_together(size, channels, converts):
    """oneDNN's kernels abort the process where T and TArgs differ."""
    proto = shaped(f"""
        x = Placeholder() shape=[8, {size}, {size}, 3]
        w = Placeholder() shape=[3, 3, 3, {channels}]
        b = Placeholder() shape=[{channels}]
        y = _FusedConv2D(x, w, b) num_args=1 TArgs=[float32] fused_ops=['BiasAdd'] {SAME}
    """)
    node = node_of(amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU).graph, "y")
    expected = tf.bfloat16 if converts else tf.float32
    assert node.attr["T"].type == expected
    assert node.attr["TArgs"].list.type == [expected.as_datatype_enum]


def test_a_pooling_whose_gradient_has_no_16_bit_kernel_stays_in_float32_with_it():
    """MaxPool3DGrad has two types and no kernel for two that differ; beside it a 16-bit MaxPool3D
    would be slow.
    """
    same = "strides=[1, 1, 1, 1, 1] padding='SAME'"
    window = "ksize=[1, 2, 2, 2, 1] strides=[1, 2, 2, 2, 1] padding='SAME'"
    reasons = _reasons(f"""
        x = Placeholder() shape=[4, 16, 32, 32, 32]
        w = Placeholder() shape=[3, 3, 3, 32, 32]
        before = Conv3D(x, w) {same}
        pool = MaxPool3D(before) {window}
        after = Conv3D(pool, w) {same}
        grad = MaxPool3DGrad(before, pool, after) {window}
        last = Conv3D(grad, w) {same}
    """)
    assert reasons["before"].rule is Rule.ALLOW_LIST
    assert reasons["grad"].rule is Rule.NO_KERNEL
    assert reasons["pool"].rule is Rule.DOES_NOT_PAY
    assert "slow in two types" in str(reasons["pool"])


def test_a_product_that_loses_in_16_bit_stays_in_float32_inside_an_island_that_gains():
    """A small depthwise convolution gains less than the cast of an Exp takes beside one of its own,
    smaller result.
    """
    reasons = _reasons(f"""
        x = Placeholder() shape=[2, 30, 30, 30]
        taps = Placeholder() shape=[3, 3, 30, 1]
        w = Placeholder() shape=[3, 3, 30, 2048]
        z = Exp(x)
        small = DepthwiseConv2dNative(z, taps) strides=[1, 2, 2, 1] padding='SAME'
        after = Conv2D(small, w) {SAME}
    """)
    assert reasons["after"].rule is Rule.ALLOW_LIST
    assert reasons["small"].rule is Rule.DOES_NOT_PAY
    assert "µs in 16 bit with casts, " in str(reasons["small"])


@pytest.mark.parametrize(("read", "is_shared"), [("gradient", True), ("other", False)])
def test_a_bias_gradient_that_onednn_fuses_goes_with_its_convolution(read, is_shared):
    """Alone it is faster in float32; fused with the filter's gradient it costs nothing, if both
    have one type.
    """
    rules = _rules(f"""
        x = Placeholder() shape=[16, 64, 64, 32]
        dz = Placeholder() shape=[16, 64, 64, 32]
        other = Placeholder() shape=[16, 64, 64, 32]
        w = Placeholder() shape=[3, 3, 32, 32]
        sizes = Shape(w) out_type=int32
        gradient = Conv2D(dz, w) {SAME}
        filter = Conv2DBackpropFilter(x, sizes, {read}) {SAME}
        bias = BiasAddGrad(gradient)
    """)
    assert rules["filter"] is Rule.ALLOW_LIST
    assert (rules["bias"] is not Rule.DOES_NOT_PAY) == is_shared


def test_an_island_without_a_product_stays_in_float32():
    """A Tile is faster in 16 bit, and its small input costs little to cast; but that alone is no
    reason to round.
    """
    rules = _rules(f"""
        {MATRICES}
        many = Const() dtype=int32 value=int32[]*32
        one = Const() dtype=int32 value=int32[]*1
        multiples = Pack(many, one) T=int32
        product = MatMul(x, w)
        t1 = Tanh(product)
        t2 = Tanh(t1)
        t3 = Tanh(t2)
        tile = Tile(t3, multiples)
        s1 = Sigmoid(tile)
        s2 = Sigmoid(s1)
        last = MatMul(s2, w)
    """)
    assert rules["tile"] is Rule.DOES_NOT_PAY


def test_a_large_table_is_not_cast_for_the_rows_that_are_read():
    """A gather takes what its rows take, and a cast in front of it what the whole table takes."""
    rules = _rules("""
        table = Placeholder() shape=[200000, 64]
        numbers = Placeholder() dtype=int32 shape=[60000]
        axis = Const() dtype=int32 value=int32[]*0
        w = Placeholder() shape=[64, 64]
        rows = GatherV2(table, numbers, axis) Tindices=int32 Taxis=int32
        product = MatMul(rows, w)
        square = MatMul(rows, product) transpose_a=true
    """)
    assert rules["rows"] is Rule.DOES_NOT_PAY
    assert rules["product"] is rules["square"] is Rule.ALLOW_LIST


def test_a_small_attention_is_weighed_by_what_it_multiplies():
    """Its batch is no factor of a larger product."""
    text = """
        q = Placeholder() shape=[32, 16, 12, 8]
        k = Placeholder() shape=[32, 16, 12, 8]
        scores = Einsum(q, k) N=2 equation='aecd,abcd->acbe'
    """
    in_float32, _ = SHIPPED.products["Einsum"]
    # It gains nothing in 16 bit, so that it has a balance.
    no_gain = _costing(products={**SHIPPED.products, "Einsum": (in_float32, in_float32)})
    balance = _reasons(text, hardware=no_gain)["scores"].balance
    operations = 2 * 32 * 16 * 16 * 12 * 8
    elements = 2 * 32 * 16 * 12 * 8 + 32 * 12 * 16 * 16
    expected, _ = SHIPPED.of_product("Einsum", operations, elements)
    assert balance.in_float32 == pytest.approx(expected)


def _placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


def _served(*shape):
    """A graph that multiplies rows by a matrix, whose cast takes longer than 16 bit saves on a few
    rows.
    """
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return shaped(f"""
        w_of = VarHandleOp() dtype=float32 shape=[1024, 1024]
        w = ReadVariableOp(w_of) dtype=float32
        x = Placeholder() shape=[{sizes}]
        any = Const() dtype=int32 value=int32[]*-1
        columns = Const() dtype=int32 value=int32[]*1024
        flat = Pack(any, columns) T=int32
        rows = Reshape(x, flat)
        product = MatMul(rows, w)
    """)


MANY = 8192


def _converts(graph_def, batch):
    return amp_tf.rewrite(graph_def, AUTO, hardware=BF16_CPU, batch=batch).changed


@pytest.mark.parametrize(
    ("batch", "converts"),
    [(1, False), (MANY, True), ((MANY, MANY + 1), True), ((1, MANY), False), (None, False)],
)
def test_where_a_batch_is_open_what_is_faster_at_all_sizes_asked_for_is_converted(batch, converts):
    assert _converts(_served(None, 1024), batch) == converts
    assert _converts(_served(MANY, 1024), batch)  # the batch is known


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "8", (8, 1), (1, 2, 3), ()])
def test_what_is_no_batch_size_is_refused(wrong):
    told = r"^rewrite\(batch=…\): .* is not a valid value\. Valid values: a batch size"
    with pytest.raises(ConfigError, match=told):
        _converts(_served(None, 1024), wrong)


def test_rows_behind_a_reshape_are_as_many_as_a_batch_makes():
    assert _converts(_served(None, MANY, 1024), 1)
    assert _converts(_served(None, MANY, 1024), None)
    assert not _converts(_served(None, 2, 1024), 1)


@pytest.mark.parametrize(("batch", "converts"), [(1, False), (MANY // 16, True), (None, False)])
def test_so_it_is_in_the_functions_of_a_graph(batch, converts):
    @tf.function(input_signature=[tf.TensorSpec((None, 16, 1024)), tf.TensorSpec((1024, 1024))])
    def inner(x, w):
        return tf.matmul(tf.reshape(x, (-1, 1024)), w)

    outer = tf.function(lambda x, w: tf.exp(inner(x, w)), inner.input_signature)
    graph_def = outer.get_concrete_function().graph.as_graph_def(add_shapes=True)
    (body,) = graph_def.library.function
    assert _converts(graph_def, batch) == converts
    assert _converts(body, batch) == converts


def test_a_small_product_behind_a_large_one_stays_in_float32_alone_and_the_reason_names_the_batch():
    reasons = _reasons(f"""
        v_of = VarHandleOp() dtype=float32 shape=[1024, 1024]
        v = ReadVariableOp(v_of) dtype=float32
        x = Placeholder() shape=[?, {MANY}, 1024]
        columns = Const() dtype=int32 value=int32[]*1024
        rows = Const() dtype=int32 value=int32[]*{MANY}
        any = Const() dtype=int32 value=int32[]*-1
        axis = Const() dtype=int32 value=int32[]*1
        shape = Pack(any, columns) T=int32
        deep = Pack(any, rows, columns) T=int32
        flat = Reshape(x, shape)
        large = MatMul(flat, v)
        examples = Reshape(large, deep)
        mean = Mean(examples, axis)
        small = MatMul(mean, v)
    """)
    assert reasons["large"].rule.converts
    assert reasons["small"].rule is Rule.DOES_NOT_PAY
    assert " in float32 at batch size 1)" in str(reasons["small"])


def test_a_reason_gives_the_two_figures_that_were_weighed():
    """Four times 512 × 512 elements of a Sigmoid, by hand from the table, and a cast at each end in
    16 bit only.
    """
    reason = _reasons(CHAIN)["infer0"]
    elements = 512 * 512
    in_float32, in_f16 = (4 * ns for ns in SHIPPED.of_op("Sigmoid", elements))
    with_casts = in_float32 + sum(SHIPPED.of_casts(elements))
    assert reason.balance == Balance(pytest.approx(in_f16), pytest.approx(with_casts))
    figures = f"{in_f16 / 1e3:.1f} µs in 16 bit with casts, {with_casts / 1e3:.1f} µs in float32"
    told = f" in 16 bit (it and the nodes to convert with it would take {figures})"
    assert str(reason).endswith(told)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AUTO, Rule.CAST_REPEATS),
        # TensorFlow's pass leaves the pair of casts.
        (amp_tf.AmpConfig(precision="bfloat16"), Rule.NOT_LISTED),
        (amp_tf.AmpConfig(keep_float32=["down"]), Rule.KEPT_BY_NAME),
    ],
)
def test_an_existing_cast_to_16_bit_takes_a_converted_value_as_it_is(config, expected):
    text = f"""
        {MATRICES}
        product = MatMul(x, x)
        exact = Exp(x)
        down = Cast(product) SrcT=float32 DstT=bfloat16
        of_float32 = Cast(exact) SrcT=float32 DstT=bfloat16
    """
    rules = _rules(text, config)
    assert rules["down"] is expected
    assert rules["of_float32"] is Rule.NOT_LISTED


def test_a_bias_and_its_activation_go_with_the_product_that_tensorflow_computes_them_with():
    """Alone, a Sigmoid loses in 16 bit; so it does where something else reads the bias."""
    rules = _rules(f"""
        {MATRICES}
        b = Const() value=float32[512]
        product = MatMul(x, w)
        bias = BiasAdd(product, b)
        activation = Sigmoid(bias)
        h = MatMul(activation, w)
        read_twice = BiasAdd(h, b)
        alone = Sigmoid(read_twice)
        last = MatMul(alone, read_twice)
    """)
    for name in ("product", "bias", "activation"):
        assert rules[name].converts
    assert rules["alone"] is Rule.DOES_NOT_PAY


RELUS = "\n".join(f"relu{number + 1} = Relu(relu{number})" for number in range(11))
#: A Sigmoid whose result is held while much else is computed, and three that are not.
HELD = f"""
    {MATRICES}
    first = MatMul(x, w)
    held = Sigmoid(first)
    h = MatMul(held, w)
    relu0 = Relu(h)
    {RELUS}
    late = MatMul(relu11, held)
    passing0 = Sigmoid(late)
    passing1 = Sigmoid(passing0)
    passing2 = Sigmoid(passing1)
    last = MatMul(passing2, w)
"""


@pytest.mark.parametrize(("goal", "is_f16"), [("speed", False), ("memory", True)])
def test_for_memory_what_is_held_becomes_16_bit_although_it_is_slower(goal, is_f16):
    rules = _rules(HELD, amp_tf.AmpConfig(goal=goal))
    assert (rules["held"] is not Rule.DOES_NOT_PAY) is is_f16


@pytest.mark.parametrize(
    ("goal", "rule"), [("speed", Rule.DOES_NOT_PAY), ("memory", Rule.ALLOW_LIST)]
)
def test_for_memory_products_are_16_bit_on_a_cpu_that_does_not_gain(goal, rule):
    """They stay in float32 there for speed, and so would all between them."""
    reasons = _reasons(HELD, amp_tf.AmpConfig(goal=goal), _faked(200))
    assert reasons["late"].rule is rule


def test_for_memory_what_is_small_beside_the_peak_is_decided_by_time():
    text = f"""
        {MATRICES}
        a = Placeholder() shape=[8, 8]
        small = MatMul(a, a)
        big = MatMul(x, w)
        relu0 = Relu(big)
        relu1 = Relu(relu0)
        last = MatMul(relu1, w)
        end = Identity(small)
    """
    rules = _rules(text, amp_tf.AmpConfig(goal="memory"))
    assert rules["small"] is Rule.DOES_NOT_PAY
    assert rules["big"] is Rule.ALLOW_LIST


def test_an_op_that_the_user_forces_is_converted_where_no_product_is_near():
    text = f"""
        {MATRICES}
        scoped = Sigmoid(x) _amp_tf_scope='f16'
        named = Sigmoid(x)
        neither = Sigmoid(x)
    """
    rules = _rules(text, amp_tf.AmpConfig(force_f16=("^named$",)))
    assert rules["scoped"] is Rule.FORCED_BY_SCOPE
    assert rules["named"] is Rule.FORCED_BY_NAME
    assert not rules["neither"].converts
