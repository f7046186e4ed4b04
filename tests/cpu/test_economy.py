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
from tests.strategies import lowered_control_flow

BF16_CPU = Hardware(cpu_has_bf16=True)


def _reasons(build, config=None, *, shapes=True):
    return {
        name: reason.rule for name, reason in _full_reasons(build, config, shapes=shapes).items()
    }


def _full_reasons(build, config=None, *, shapes=True, hardware=BF16_CPU):
    with tf.Graph().as_default() as graph:
        build()
    graph_def = graph.as_graph_def(add_shapes=shapes)
    report = amp_tf.rewrite(graph_def, config or amp_tf.AmpConfig(), hardware=hardware).report
    return {node.name: node.reason for node in report.nodes}


def _placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


def _chain():
    x = _placeholder(512, 512)
    w = _placeholder(512, 512)
    h = tf.matmul(x, w, name="allow1")
    for number in range(4):
        h = tf.sigmoid(h, name=f"infer{number}")
    tf.matmul(h, w, name="allow2")


def test_a_chain_that_is_slow_in_16_bit_stays_between_two_casts():
    rules = _reasons(_chain)
    assert rules["allow1"] is rules["allow2"] is Rule.ALLOW_LIST
    assert {rules[f"infer{number}"] for number in range(4)} == {Rule.DOES_NOT_PAY}


@pytest.mark.parametrize(("gain", "is_f16"), [(1.0, True), (0.1, False)])
def test_a_sigmoid_times_its_input_goes_as_the_one_op_that_tensorflow_makes_of_both(gain, is_f16):
    """Alone a Sigmoid loses in 16 bit.

    Neither goes without the other, or TensorFlow could not join them.
    """

    def build():
        x = _placeholder(512, 512)
        w = _placeholder(512, 512)
        h = tf.matmul(x, w)
        tf.matmul(tf.multiply(h, tf.sigmoid(h, name="inner"), name="outer"), w)

    row = tuple((0.5, 0.5 / gain) for _ in SHIPPED.sizes)
    costs = dataclasses.replace(SHIPPED, elements={**SHIPPED.elements, SWISH: row})
    reasons = _full_reasons(build, hardware=Hardware(cpu_has_bf16=True, costs=costs))
    rules = {reasons[name].rule for name in ("inner", "outer")}
    assert (rules == {Rule.DOES_NOT_PAY}) == (not is_f16)
    assert (Rule.DOES_NOT_PAY in rules) == (not is_f16)


def _faked(rate):
    """A CPU that multiplies bfloat16 at some rate, in operations a ns, and is as the shipped table
    has it otherwise.
    """
    in_float32, in_f16 = SHIPPED.products["MatMul"]
    products = {**SHIPPED.products, "MatMul": (in_float32, dataclasses.replace(in_f16, rate=rate))}
    return Hardware(cpu_has_bf16=True, costs=dataclasses.replace(SHIPPED, products=products))


@pytest.mark.parametrize(
    ("rate", "size", "is_f16"), [(1700, 112, True), (450, 112, False), (220, 512, False)]
)
def test_decisions_follow_the_figures_of_the_cpu(rate, size, is_f16):
    """As with AMX a small product pays, as with avx512_bf16 it does not, and hardly faster no large
    one does.
    """
    with tf.Graph().as_default() as graph:
        x = _placeholder(size, size)
        tf.matmul(x, x, name="product")
    report = amp_tf.rewrite(graph.as_graph_def(add_shapes=True), hardware=_faked(rate)).report
    assert [
        node.reason.rule is Rule.ALLOW_LIST for node in report.nodes if node.name == "product"
    ] == [is_f16]


def test_a_product_too_small_for_its_casts_stays():
    def build():
        tf.matmul(_placeholder(8, 8), _placeholder(8, 8), name="small")

    assert _reasons(build)["small"] is Rule.DOES_NOT_PAY
    assert (
        _reasons(build, shapes=False)["small"] is Rule.ALLOW_LIST
    )  # nobody can tell how small it is


def test_a_product_that_the_user_forces_is_converted_however_small():
    def build():
        small = tf.matmul(_placeholder(8, 8), _placeholder(8, 8), name="small")
        tf.matmul(tf.nn.relu(small), _placeholder(8, 8), name="other")

    rules = _reasons(build, amp_tf.AmpConfig(force_f16=("^small$",)))
    assert rules["small"] is Rule.FORCED_BY_NAME
    assert rules["other"] is Rule.DOES_NOT_PAY  # its neighbours are weighed as ever


def test_a_kernel_that_is_slow_in_16_bit_is_not_used():
    def build():
        x = _placeholder(8, 48, 48, 96)
        w = _placeholder(3, 3, 96, 1)
        for stride in (1, 2):
            y = _placeholder(8, 48 // stride, 48 // stride, 96)
            tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(x),
                filter=w,
                out_backprop=y,
                strides=[1, stride, stride, 1],
                padding="SAME",
                name=f"stride{stride}",
            )

    rules = _reasons(build)
    assert rules["stride2"] is Rule.DOES_NOT_PAY
    forced = _reasons(build, amp_tf.AmpConfig(force_f16=("^stride2$",)))
    assert forced["stride2"] is Rule.FORCED_BY_NAME


def _loop_of_products(turns):
    """Some turns of a product with a tensor that the loop never changes."""
    with tf.Graph().as_default() as graph, lowered_control_flow():
        w = tf.abs(_placeholder(1024, 1024))
        tf.while_loop(
            lambda i, _: i < turns,
            lambda i, y: (i + 1, tf.matmul(y, w)),
            (0, _placeholder(16, 1024)),
        )
    return amp_tf.rewrite(
        graph.as_graph_def(add_shapes=True), amp_tf.AmpConfig(), hardware=BF16_CPU
    )


def test_a_cast_before_a_loop_is_weighed_against_all_of_its_turns():
    """The cast of the weight alone takes longer than 16 bit saves in a few turns."""
    operations = 2 * 16 * 1024 * 1024
    in_float32, in_f16 = SHIPPED.of_product("MatMul", operations, 1024 * (1024 + 2 * 16))
    casts = sum(SHIPPED.of_casts(16 * 1024))
    enough = math.ceil(SHIPPED.of_casts(1024 * 1024)[1] / (in_float32 - in_f16 - casts))
    assert 2 < enough < 100
    assert _loop_of_products(2 * enough).changed
    assert not _loop_of_products(enough // 2).changed


@pytest.mark.parametrize("is_read_in_float32", [False, True])
def test_casts_of_weights_that_will_be_stored_in_16_bit_are_not_paid(is_read_in_float32):
    """The cast of the weight takes longer than 16 bit saves; a weight that a float32 node reads too
    is not stored.
    """
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(1024, 1024))
        w = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        tf.matmul(_placeholder(16, 1024), w)
        if is_read_in_float32:
            tf.exp(w)
    graph_def = graph.as_graph_def(add_shapes=True)
    assert not amp_tf.rewrite(graph_def, amp_tf.AmpConfig(), hardware=BF16_CPU).changed
    stored = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(), hardware=BF16_CPU, stores_weights=True)
    assert stored.changed != is_read_in_float32


def _fused_convolution(size, channels):
    graph = tf.compat.v1.GraphDef()
    result = (8, size, size, channels)
    tensors = {"x": (8, size, size, 3), "w": (3, 3, 3, channels), "b": (channels,)}
    for name, shape in {**tensors, "y": result}.items():
        node = graph.node.add(name=name, op="_FusedConv2D" if name == "y" else "Placeholder")
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())
        if name != "y":
            node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.input.extend(["x", "w", "b"])
    node.attr["T"].type = tf.float32.as_datatype_enum
    node.attr["num_args"].i = 1
    node.attr["TArgs"].list.type.append(tf.float32.as_datatype_enum)
    return graph


@pytest.mark.parametrize(
    ("size", "channels", "converts"), [(4, 4, False), (8, 8, False), (64, 64, True)]
)
def test_the_types_of_a_fused_product_change_together(size, channels, converts):
    """oneDNN's kernels abort the process where T and TArgs differ."""
    result = amp_tf.rewrite(
        _fused_convolution(size, channels), amp_tf.AmpConfig(), hardware=BF16_CPU
    )
    node = next(node for node in result.graph.node if node.op == "_FusedConv2D")
    expected = tf.bfloat16 if converts else tf.float32
    assert [node.attr["T"].type, *node.attr["TArgs"].list.type] == [expected.as_datatype_enum] * 2


def test_a_pooling_whose_gradient_has_no_16_bit_kernel_stays_in_float32_with_it():
    """MaxPool3DGrad has two types and no kernel for two that differ; beside it a 16-bit MaxPool3D
    would be slow.
    """

    def build():
        x = _placeholder(4, 16, 32, 32, 32)
        w = _placeholder(3, 3, 3, 32, 32)
        window = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
        h = tf.nn.conv3d(x, w, [1] * 5, "SAME", name="before")
        y = tf.raw_ops.MaxPool3D(input=h, name="pool", **window)
        g = tf.nn.conv3d(y, w, [1] * 5, "SAME")
        raw = tf.raw_ops.MaxPool3DGrad(orig_input=h, orig_output=y, grad=g, name="grad", **window)
        tf.nn.conv3d(raw, w, [1] * 5, "SAME")

    reasons = _full_reasons(build)
    assert reasons["before"].rule is Rule.ALLOW_LIST
    assert reasons["grad"].rule is Rule.NO_KERNEL
    assert reasons["pool"].rule is Rule.DOES_NOT_PAY
    assert "slow in two types" in str(reasons["pool"])


def test_a_product_that_loses_in_16_bit_stays_in_float32_inside_an_island_that_gains():
    """A small depthwise convolution gains less than the cast of an Exp takes beside one of its own,
    smaller result.
    """

    def build():
        z = tf.exp(_placeholder(2, 30, 30, 30))
        y = tf.nn.depthwise_conv2d(z, _placeholder(3, 3, 30, 1), [1, 2, 2, 1], "SAME", name="small")
        tf.nn.conv2d(y, _placeholder(3, 3, 30, 2048), 1, "SAME", name="after")

    reasons = _full_reasons(build)
    assert reasons["after"].rule is Rule.ALLOW_LIST
    assert reasons["small"].rule is Rule.DOES_NOT_PAY
    assert "µs in 16 bit with casts, " in str(reasons["small"])


@pytest.mark.parametrize("shared", [True, False])
def test_a_bias_gradient_that_onednn_fuses_goes_with_its_convolution(shared):
    """Alone it is faster in float32; fused with the filter's gradient it costs nothing, if both
    have one type.
    """

    def build():
        x, dz, other = (_placeholder(16, 64, 64, 32) for _ in range(3))
        w = _placeholder(3, 3, 32, 32)
        gradient = tf.nn.conv2d(dz, w, 1, "SAME")
        read = gradient if shared else other
        tf.raw_ops.Conv2DBackpropFilter(
            input=x,
            filter_sizes=[3, 3, 32, 32],
            out_backprop=read,
            strides=[1, 1, 1, 1],
            padding="SAME",
            name="filter",
        )
        tf.raw_ops.BiasAddGrad(out_backprop=gradient, name="bias")

    rules = _reasons(build)
    assert rules["filter"] is Rule.ALLOW_LIST
    assert (rules["bias"] is Rule.DOES_NOT_PAY) == (not shared)


def test_an_island_without_a_product_stays_in_float32():
    """A Tile is faster in 16 bit, and its small input costs little to cast; but that alone is no
    reason to round.
    """

    def build():
        x = _placeholder(512, 512)
        w = _placeholder(512, 512)
        row = tf.tanh(tf.tanh(tf.tanh(tf.matmul(x, w))))
        tf.matmul(tf.sigmoid(tf.sigmoid(tf.tile(row, [32, 1], name="tile"))), w)

    assert _reasons(build)["tile"] is Rule.DOES_NOT_PAY


def test_a_large_table_is_not_cast_for_the_rows_that_are_read():
    """A gather takes what its rows take, and a cast in front of it what the whole table takes."""

    def build():
        rows = tf.gather(_placeholder(200_000, 64), tf.zeros(60_000, tf.int32), name="rows")
        tf.matmul(
            tf.transpose(rows), tf.matmul(rows, _placeholder(64, 64), name="product"), name="square"
        )

    rules = _reasons(build)
    assert rules["rows"] is Rule.DOES_NOT_PAY
    assert rules["product"] is rules["square"] is Rule.ALLOW_LIST


def test_a_small_attention_is_weighed_by_what_it_multiplies():
    """Its batch is no factor of a larger product."""

    def build():
        q = _placeholder(32, 16, 12, 8)
        k = _placeholder(32, 16, 12, 8)
        tf.raw_ops.Einsum(inputs=[q, k], equation="aecd,abcd->acbe", name="scores")

    in_float32, _ = SHIPPED.products[
        "Einsum"
    ]  # that gains nothing in 16 bit, so that it has a balance
    costs = dataclasses.replace(
        SHIPPED, products={**SHIPPED.products, "Einsum": (in_float32, in_float32)}
    )
    balance = _full_reasons(build, hardware=Hardware(cpu_has_bf16=True, costs=costs))[
        "scores"
    ].balance
    operations = 2 * 32 * 16 * 16 * 12 * 8
    elements = 2 * 32 * 16 * 12 * 8 + 32 * 12 * 16 * 16
    assert balance.in_float32 == pytest.approx(
        SHIPPED.of_product("Einsum", operations, elements)[0]
    )


def _stored(name, *shape):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


def _served(*shape):
    """A graph that multiplies rows by a matrix, whose cast takes longer than 16 bit saves on a few
    rows.
    """
    with tf.Graph().as_default() as graph:
        rows = tf.reshape(_placeholder(*shape), (-1, 1024))
        tf.matmul(rows, _stored("w", 1024, 1024), name="product")
    return graph.as_graph_def(add_shapes=True)


MANY = 8192


def _converts(graph_def, batch):
    return amp_tf.rewrite(graph_def, amp_tf.AmpConfig(), hardware=BF16_CPU, batch=batch).changed


@pytest.mark.parametrize(
    ("batch", "converts"),
    [(1, False), (MANY, True), ((MANY, MANY + 1), True), ((1, MANY), False), (None, False)],
)
def test_where_a_batch_is_open_what_is_faster_at_all_sizes_asked_for_is_converted(batch, converts):
    assert _converts(_served(None, 1024), batch) == converts
    assert _converts(_served(MANY, 1024), batch)  # the batch is known


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "8", (8, 1), (1, 2, 3), ()])
def test_what_is_no_batch_size_is_refused(wrong):
    with pytest.raises(
        ConfigError,
        match=r"^rewrite\(batch=…\): .* is not a valid value\. Valid values: a batch size",
    ):
        _converts(_served(None, 1024), wrong)


def test_rows_behind_a_reshape_are_as_many_as_a_batch_makes():
    assert _converts(_served(None, MANY, 1024), 1)
    assert _converts(_served(None, MANY, 1024), None)
    assert not _converts(_served(None, 2, 1024), 1)


def test_so_it_is_in_the_functions_of_a_graph():
    @tf.function(input_signature=[tf.TensorSpec((None, 16, 1024)), tf.TensorSpec((1024, 1024))])
    def inner(x, w):
        return tf.matmul(tf.reshape(x, (-1, 1024)), w)

    outer = tf.function(
        lambda x, w: tf.exp(inner(x, w)), inner.input_signature
    ).get_concrete_function()
    graph_def = outer.graph.as_graph_def(add_shapes=True)
    (body,) = graph_def.library.function
    for batch, converts in ((1, False), (MANY // 16, True), (None, False)):
        assert _converts(graph_def, batch) == converts
        assert _converts(body, batch) == converts


def test_a_small_product_behind_a_large_one_stays_in_float32_alone_and_the_reason_names_the_batch():
    with tf.Graph().as_default() as graph:
        x = _placeholder(None, MANY, 1024)
        large = tf.matmul(tf.reshape(x, (-1, 1024)), _stored("v", 1024, 1024), name="large")
        mean = tf.reduce_mean(tf.reshape(large, (-1, MANY, 1024)), axis=1)
        tf.matmul(mean, _stored("w", 1024, 1024), name="small")
    report = amp_tf.rewrite(
        graph.as_graph_def(add_shapes=True), amp_tf.AmpConfig(), hardware=BF16_CPU
    ).report
    nodes = {node.name: node for node in report.nodes}
    assert nodes["large"].precision.is_f16
    assert nodes["small"].reason.rule is Rule.DOES_NOT_PAY
    assert " in float32 at batch size 1)" in str(nodes["small"].reason)


def test_a_reason_gives_the_two_figures_that_were_weighed():
    """Four times 512 × 512 elements of a Sigmoid, by hand from the table, and a cast at each end in
    16 bit only.
    """
    reason = _full_reasons(_chain)["infer0"]
    elements = 512 * 512
    in_float32, in_f16 = (4 * ns for ns in SHIPPED.of_op("Sigmoid", elements))
    around = sum(SHIPPED.of_casts(elements))
    assert reason.balance == Balance(pytest.approx(in_f16), pytest.approx(in_float32 + around))
    figures = (
        f"{in_f16 / 1e3:.1f} µs in 16 bit with casts, {(in_float32 + around) / 1e3:.1f} µs in "
        "float32"
    )
    assert str(reason).endswith(
        f" in 16 bit (it and the nodes to convert with it would take {figures})"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (amp_tf.AmpConfig(), Rule.CAST_REPEATS),
        (
            amp_tf.AmpConfig(precision="bfloat16"),
            Rule.NOT_LISTED,
        ),  # TensorFlow's pass leaves the pair of casts
        (amp_tf.AmpConfig(keep_float32=["down"]), Rule.KEPT_BY_NAME),
    ],
)
def test_an_existing_cast_to_16_bit_takes_a_converted_value_as_it_is(config, expected):
    def build():
        x = _placeholder(512, 512)
        tf.cast(tf.matmul(x, x), tf.bfloat16, name="down")
        tf.cast(tf.exp(x), tf.bfloat16, name="of_float32")

    rules = _reasons(build, config)
    assert rules["down"] is expected
    assert rules["of_float32"] is Rule.NOT_LISTED


def test_a_bias_and_its_activation_go_with_the_product_that_tensorflow_computes_them_with():
    """Alone, a Sigmoid loses in 16 bit; so it does where something else reads the bias."""

    def build():
        x = _placeholder(512, 512)
        w = _placeholder(512, 512)
        b = tf.zeros(512)
        biased = tf.nn.bias_add(tf.matmul(x, w, name="product"), b, name="bias")
        h = tf.matmul(tf.sigmoid(biased, name="activation"), w)
        read_twice = tf.nn.bias_add(h, b)
        tf.matmul(tf.sigmoid(read_twice, name="alone"), read_twice)

    rules = _reasons(build)
    assert all(rules[name].converts for name in ("product", "bias", "activation"))
    assert rules["alone"] is Rule.DOES_NOT_PAY


def _held_sigmoid():
    """A Sigmoid whose result is held while much else is computed, and three that are not."""
    x = _placeholder(512, 512)
    w = _placeholder(512, 512)
    held = tf.sigmoid(tf.matmul(x, w), name="held")
    h = tf.matmul(held, w)
    for number in range(12):
        h = tf.nn.relu(h, name=f"relu{number}")
    h = tf.matmul(h, held, name="late")
    for number in range(3):
        h = tf.sigmoid(h, name=f"passing{number}")
    tf.matmul(h, w)


@pytest.mark.parametrize(("goal", "is_f16"), [("speed", False), ("memory", True)])
def test_for_memory_what_is_held_becomes_16_bit_although_it_is_slower(goal, is_f16):
    rules = _reasons(_held_sigmoid, amp_tf.AmpConfig(goal=goal))
    assert (rules["held"] is not Rule.DOES_NOT_PAY) is is_f16


def test_for_memory_products_are_16_bit_on_a_cpu_that_does_not_gain():
    """They stay in float32 there for speed, and so would all between them."""

    def reasons(goal):
        config = amp_tf.AmpConfig(goal=goal)
        return _full_reasons(_held_sigmoid, config, hardware=dataclasses.replace(_faked(200)))

    assert reasons("speed")["late"].rule is Rule.DOES_NOT_PAY
    assert reasons("memory")["late"].rule is Rule.ALLOW_LIST


def test_for_memory_what_is_small_beside_the_peak_is_decided_by_time():
    def build():
        small = tf.matmul(_placeholder(8, 8), _placeholder(8, 8), name="small")
        big = tf.matmul(_placeholder(512, 512), _placeholder(512, 512), name="big")
        for _ in range(2):
            big = tf.nn.relu(big)
        tf.matmul(big, _placeholder(512, 512)), tf.identity(small)

    rules = _reasons(build, amp_tf.AmpConfig(goal="memory"))
    assert rules["small"] is Rule.DOES_NOT_PAY
    assert rules["big"] is Rule.ALLOW_LIST


def test_an_op_that_the_user_forces_is_converted_where_no_product_is_near():
    def build():
        with amp_tf.scope("f16"):
            tf.sigmoid(_placeholder(512, 512), name="scoped")
        tf.sigmoid(_placeholder(512, 512), name="named")
        tf.sigmoid(_placeholder(512, 512), name="neither")

    rules = _reasons(build, amp_tf.AmpConfig(force_f16=("^named$",)))
    assert rules["scoped"] is Rule.FORCED_BY_SCOPE
    assert rules["named"] is Rule.FORCED_BY_NAME
    assert not rules["neither"].converts
