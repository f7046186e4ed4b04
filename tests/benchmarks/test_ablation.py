"""Each part of the rewrite that the ablation takes out changes what is converted, or how many casts there are."""

from __future__ import annotations

import dataclasses
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import amp_tf
from amp_tf.hooks.process import devices
from amp_tf.hooks.xla import functions as xla
from amp_tf.oplists import costs, fusions
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting import economy, paint
from amp_tf.reporting import process
from amp_tf.rewriting import folding, lifting, loop_reads, planning
from benchmarks.models import BENCHMARKS
from benchmarks.step_time import ablation, parts
from benchmarks.step_time.modes import WAYS
from benchmarks.step_time.parts import PARTS
from benchmarks.step_time.suite import Row
from tests.left_out import without

MODULES = (costs, economy, folding, fusions, lifting, loop_reads, paint, planning, xla)


def placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


def everyday():
    """A graph in which most parts have something to decide."""
    x, w, dz = placeholder(16, 64, 64, 32), placeholder(3, 3, 32, 32), placeholder(16, 64, 64, 32)
    h = tf.nn.conv2d(tf.transpose(tf.nn.conv2d(x, w, 1, "SAME"), [0, 2, 1, 3]), w, 1, "SAME")
    pooled = tf.nn.max_pool2d(tf.sigmoid(tf.sigmoid(h)), 2, 2, "SAME")
    tf.raw_ops.MaxPoolGrad(
        orig_input=tf.nn.conv2d(h, w, 1, "SAME"),
        orig_output=pooled,
        grad=pooled,
        ksize=[1, 2, 2, 1],
        strides=[1, 2, 2, 1],
        padding="SAME",
    )
    dz = tf.nn.conv2d(dz, w, 1, "SAME")
    tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=[3, 3, 32, 32], out_backprop=dz, strides=[1, 1, 1, 1], padding="SAME"
    )
    tf.raw_ops.BiasAddGrad(out_backprop=dz)
    deep = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
        input_sizes=[16, 64, 64, 32],
        filter=placeholder(3, 3, 32, 1),
        strides=[1, 2, 2, 1],
        out_backprop=tf.nn.conv2d(x, w, 2, "SAME"),
        padding="SAME",
    )
    tf.nn.conv2d(deep, w, 1, "SAME")
    tf.matmul(placeholder(4, 4), placeholder(4, 4))
    tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * placeholder(32) + placeholder(32))


def normalized():
    """A folded normalization between two convolutions, with an activation that is slow in bfloat16."""
    x, w = placeholder(16, 64, 64, 32), placeholder(3, 3, 32, 32)
    y = tf.nn.relu6(tf.nn.conv2d(x, w, 1, "SAME") * placeholder(32) + placeholder(32))
    tf.abs(tf.identity(y))


def with_casts_of_its_own():
    """A program that keeps a value in bfloat16 by hand, between two products in float32."""
    x, w = placeholder(512, 512), placeholder(512, 512)
    kept = tf.cast(tf.matmul(x, w), tf.bfloat16)
    tf.matmul(tf.cast(kept, tf.float32), w)


def with_a_sum_that_is_read():
    """A loss after the last product."""
    tf.reduce_mean(tf.matmul(placeholder(512, 512), placeholder(512, 512)))


def with_an_elu():
    x = placeholder(512, 512)
    tf.matmul(tf.nn.elu(tf.matmul(x, x)), x)


def with_a_deviation():
    """Values less others, divided, between two products."""
    x = placeholder(512, 512)
    y = tf.matmul(x, x)
    tf.matmul((y - tf.random.uniform((512, 512))) / x, x)


def with_a_reshape_that_is_read_twice():
    """By a product, and by what has no 16-bit kernel."""
    flat = tf.reshape(placeholder(2, 256, 512), (512, 512))
    tf.matmul(flat, flat)
    tf.math.digamma(flat)


def with_a_square():
    """A square between two products."""
    x = placeholder(512, 512)
    y = tf.matmul(x, x)
    tf.matmul(y * y, x)


def with_a_running_sum():
    """A loop whose state grows by small steps."""
    weight = placeholder(512, 512)
    tf.compat.v1.disable_control_flow_v2()
    try:
        tf.compat.v1.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y + 1e-3 * (y @ weight)), (0, placeholder(512, 512))
        )
    finally:
        tf.compat.v1.enable_control_flow_v2()


def with_a_loop():
    """A loop of graph nodes that multiplies with the same weight in each turn."""
    weight = tf.abs(placeholder(512, 512))
    start = (0, placeholder(512, 512))
    tf.compat.v1.disable_control_flow_v2()
    try:
        tf.compat.v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y @ weight)), start)
    finally:
        tf.compat.v1.enable_control_flow_v2()


def with_a_lone_tile():
    """An op between two products that is faster in 16 bit by itself."""
    x, w = placeholder(512, 512), placeholder(512, 512)
    row = tf.tanh(tf.tanh(tf.tanh(tf.matmul(x, w))))
    tf.matmul(tf.sigmoid(tf.sigmoid(tf.tile(row, [32, 1]))), w)


def with_a_variable_in_a_loop():
    """As before, with a variable that the loop reads in each turn."""
    tf.compat.v1.disable_control_flow_v2()
    try:
        weight = tf.compat.v1.get_variable("weight", (512, 512), use_resource=True)
        start = (0, placeholder(512, 512))
        tf.compat.v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y @ weight)), start)
    finally:
        tf.compat.v1.enable_control_flow_v2()


def with_a_dense_layer_over_sequences():
    """Its bias is added to what was shaped back."""
    product = tf.matmul(placeholder(16384, 512), placeholder(512, 128))
    tf.identity(tf.nn.bias_add(tf.reshape(product, (128, 128, 128)), placeholder(128)))


BF16_CPU = Hardware(cpu_has_bf16=True)
#: A CPU on which the casts around a Tile take less than it gains.
SLOW_TILES = dataclasses.replace(
    SHIPPED,
    elements={**SHIPPED.elements, "Tile": tuple((4 * in_float32, f16) for in_float32, f16 in SHIPPED.elements["Tile"])},
)


def converted(build, hardware=BF16_CPU, **settings):
    """What amp_tf makes of a graph: the number of casts, the nodes that are 16 bit and what each cast reads."""
    with tf.Graph().as_default() as graph:
        build()
    graph_def = graph.as_graph_def(add_shapes=True)
    left_out = () if settings else parts.CONTRACT  # small graphs end after a product or two
    with without(left_out):
        result = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(**settings), hardware=hardware)
    casts = sorted(f"{node.name}({node.input[0]})" for node in result.graph.node if node.op == "Cast")
    return casts, sorted(node.name for node in result.report.graphs[0].nodes if node.precision.value != "float32")


def compiled(config):
    """What amp_tf makes of a function for XLA whose loop calls another: the ops and types of all its functions."""
    weight, inner = tf.Variable(tf.ones((8, 8))), tf.Variable(tf.ones((8, 8)))
    layer = tf.function(lambda y: tf.tanh(y @ inner))

    def looped(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, layer(y) @ weight), (0, x))[1]

    hardware, devices.hardware = devices.hardware, lambda: Hardware(cpu_has_bf16=True)
    earlier = set(context.context().list_function_names())  # not all of them are collected yet
    xla.install(config)
    try:
        function = tf.function(looped, jit_compile=True).get_concrete_function(tf.ones((8, 8)))
        own = [name for name in {*context.context().list_function_names()} - earlier if "_amp_tf_" in name]
        definitions = [context.context().get_function_def(name) for name in (function.name, *map(str.encode, own))]
        return sorted(
            (node.op, node.attr["T"].type, node.attr["DstT"].type)
            for definition in definitions
            for node in definition.node_def
            if node.op in ("Cast", "MatMul")
        ), sorted(len(definition.signature.input_arg) for definition in definitions)
    finally:
        xla.uninstall()
        devices.hardware = hardware
        process.reset()


SHOWN = {
    "numerical contract": lambda: converted(with_a_sum_that_is_read, precision="bfloat16"),
    "inaccurate kernels": lambda: converted(with_an_elu, precision="bfloat16"),
    "results": lambda: converted(with_a_sum_that_is_read, precision="bfloat16"),
    "running sums": lambda: converted(with_a_running_sum, precision="bfloat16"),
    "needs": lambda: converted(with_a_deviation, precision="bfloat16"),
    "carried values": lambda: converted(with_a_reshape_that_is_read_twice, precision="bfloat16"),
    "squares and quotients": lambda: converted(with_a_square, precision="float16", target="cpu"),
    "fused followers": lambda: converted(normalized),
    "absorbed casts": lambda: converted(with_casts_of_its_own),
    "retargeted casts": lambda: converted(with_casts_of_its_own),
    "islands": lambda: converted(with_a_lone_tile, dataclasses.replace(BF16_CPU, costs=SLOW_TILES)),
    "lifting": lambda: converted(with_a_dense_layer_over_sequences),
    "loop entries": lambda: converted(with_a_loop),
    "hoisted reads": lambda: converted(with_a_variable_in_a_loop),
    "xla cost model": lambda: compiled(amp_tf.AmpConfig()),
}


@pytest.mark.parametrize("part", PARTS)
def test_without_a_part_the_same_graph_comes_out_differently(part):
    outcome = SHOWN.get(part, lambda: converted(everyday))
    whole = outcome()
    before = [dict(vars(module)) for module in MODULES]
    try:
        parts.remove(part)
        assert outcome() != whole
    finally:
        for module, attributes in zip(MODULES, before, strict=True):
            vars(module).update(attributes)
    assert outcome() == whole


def test_parts_are_shown_by_models_and_ways_that_exist_each_run_once():
    jobs = ablation.jobs(PARTS.values())
    assert {job.model for job in jobs} <= set(BENCHMARKS)
    assert {job.way for job in jobs} <= set(WAYS)
    assert len({(job.model, job.way) for job in jobs}) == len(jobs)
    xla = next(job for job in jobs if job.parts == (PARTS["xla cost model"],))
    assert xla.modes == ["float32", "amp_tf", "without xla cost model"]
    assert [job.model for job in ablation.jobs([PARTS["islands"]], ["bert"])] == ["bert"]


def test_table_compares_with_and_without_and_leaves_out_what_failed():
    rows = [
        Row("small_mlp", "fit", "float32", 64, (4.0, 4.0)),
        Row("small_mlp", "fit", "amp_tf", 64, (2.0, 2.0), converted=1200, casts=30),
        Row("small_mlp", "fit", "without islands", 64, (2.5, 2.5), converted=1300, casts=50),
        Row("bert", "fit", "without islands", error="it\nbroke"),
    ]
    lines = ablation.table([PARTS["islands"]], rows).splitlines()
    assert lines[2:] == [
        "| islands | MLP, 64 wide | fit | 2.00 ± 0.00 | 1.60 ± 0.00 | 1.25 ± 0.00 | 1,200 | 1,300 | 30 | 50 |",
        "",
        "bert fit without islands: broke",
    ]


def test_one_command_counts_nodes_and_casts_with_and_without(capsys, monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert ablation.main(["shared casts", "--models", "bert", "--size", "tiny", "--rounds", "0"]) == 0
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert cells[:6] == ["shared casts", "BERT encoder", "fit", "–", "–", "–"]
    nodes, same, casts, more = (int(cell.replace(",", "")) for cell in cells[6:])
    assert nodes == same > 0
    assert 0 < casts < more
