"""Each row of the table of deliberate differences on a small graph: what TensorFlow does, and amp_tf instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from amp_tf.painting.paint import RULES
from tests.oracle import Knobs, Mode, OriginalFailedError, run_original
from tests.parity.case import run
from tests.parity.comparison import run_ours
from tests.parity.cpp_cases import constant, matmul, relu, simple
from tests.parity.deliberate_differences import DELIBERATE_DIFFERENCES, has_kernel, knobs_for_original
from tests.parity.random_graphs import RandomGraph
from tests.small_graphs import graph

raw = tf.raw_ops
FP16, BF16 = Mode.CUDA_LISTS, Mode.BFLOAT16
FORCE = Knobs(level="UNSAFE_FORCE_ALL")


def graph_of(build) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def both(graph_def, mode: Mode, preserve=("fetch",), knobs: Knobs | None = None) -> tuple[set[str], set[str]]:
    """The nodes that are 16-bit afterwards: TensorFlow's and amp_tf's.

    TensorFlow refuses a graph in which a Placeholder has no shape ("Failed to import metagraph").
    """
    original, ours = run_original(graph_def, mode, preserve, knobs), run_ours(graph_def, mode, preserve, knobs)
    return original.nodes_in(mode.f16), ours.nodes_in(mode.f16)


def test_every_difference_has_a_test() -> None:
    tests = (name.removeprefix("test_").partition("__")[0] for name in globals() if name.startswith("test_"))
    shown = {name.replace("_", "-") for name in tests}
    assert {row.name for row in DELIBERATE_DIFFERENCES} == shown - {
        "every-difference-has-a-test",
        "the-differences-that-rules-name-are-in-the-table",
        "the-original-gets-the-ops-that-are-on-our-lists-alone",
    }


def test_the_differences_that_rules_name_are_in_the_table() -> None:
    names = {row.name for row in DELIBERATE_DIFFERENCES}
    assert {row.difference for row in RULES if row.difference} <= names


def test_the_original_gets_the_ops_that_are_on_our_lists_alone() -> None:
    made = graph("x = Placeholder()\nfused = _FusedMatMul(x, x)\nm = MatMul(x, x)")
    given = RandomGraph(made, preserve=(), knobs=Knobs(allow_remove=("MatMul",)))
    assert knobs_for_original(given, BF16).allow_add == ("_FusedMatMul",)
    moved = dataclasses.replace(given, knobs=Knobs(deny_add=("_FusedMatMul",)))
    assert knobs_for_original(moved, BF16).allow_add == ()


def test_kernel_missing() -> None:
    def infer_without_kernel() -> None:
        x = raw.Conv3D(
            input=constant("input", 1 / 32, (1, 4, 4, 4, 2)),
            filter=constant("filter", 1 / 32, (1, 1, 1, 2, 2)),
            strides=[1] * 5,
            padding="SAME",
            name="allow1",
        )
        x = raw.AvgPool3D(input=x, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="SAME", name="infer1")
        tf.identity(x, name="fetch")

    graph_def = graph_of(infer_without_kernel)
    assert both(graph_def, FP16) == ({"allow1", "infer1"}, {"allow1"})
    broken = run_original(graph_def, FP16, ("fetch",)).graph
    assert not all(has_kernel(node, FP16) for node in broken.node)
    with pytest.raises(tf.errors.InvalidArgumentError, match="No OpKernel was registered"):
        run(broken, ("fetch",), {})
    run(run_ours(graph_def, FP16, ("fetch",)).graph, ("fetch",), {})

    def allow_without_type() -> None:
        x, w = constant("input"), constant("weights", 1 / 32, (64, 64))
        w_c, b_ru, b_c = constant("w_c", 1.0, (64, 32)), constant("b_ru", 0.0, (64,)), constant("b_c", 0.0, (32,))
        cell = raw.GRUBlockCell(x=relu(x, "clr1"), h_prev=x, w_ru=w, w_c=w_c, b_ru=b_ru, b_c=b_c, name="allow1")
        tf.identity(matmul(cell.h, "allow2"), name="fetch")

    # TensorFlow converts the Relu for the sake of a GRUBlockCell that cannot be float16.
    assert both(graph_of(allow_without_type), FP16) == ({"clr1", "allow2"}, {"allow2"})


def test_batch_norm_untouched() -> None:
    def build() -> None:
        x, c = constant("input", 1 / 32, (1, 4, 4, 2)), constant("c", 1.0, (2,))
        empty = constant("empty", 1.0, (0,))
        x = raw.FusedBatchNorm(x=x, scale=c, offset=c, mean=empty, variance=empty, name="fbn").y
        tf.identity(x, name="fetch")

    graph_def = graph_of(build)
    assert run_original(graph_def, BF16, ("fetch",)).ops["fbn"] == "FusedBatchNormV2"
    assert run_ours(graph_def, BF16, ("fetch",)).graph == graph_def


def test_infer_follow_order() -> None:
    def build() -> None:
        x = matmul(constant("input"), "allow1")
        for i in range(3):
            x = raw.Tanh(x=x, name=f"infer{i}")
        tf.identity(matmul(tf.exp(x), "allow2"), name="fetch")

    graph_def = graph_of(build)
    backwards = graph_pb2.GraphDef(versions=graph_def.versions)
    backwards.node.extend(reversed(graph_def.node))
    chain = {"allow1", "infer0", "infer1", "infer2", "allow2"}
    assert both(graph_def, BF16) == (chain, chain)
    assert both(backwards, BF16) == ({"allow1", "infer0", "allow2"}, chain)


def test_fused_ops() -> None:
    def build() -> None:
        x, bias = constant("input"), constant("bias", 1.0, (32,))
        tf.identity(matmul(x, "allow1"), name="fetch0")
        raw.MatMul(a=x, b=x, name="fused")
        tf.identity(relu(bias, "other"), name="fetch")

    graph_def = graph_of(build)
    fused = next(node for node in graph_def.node if node.name == "fused")
    fused.op = "_FusedMatMul"
    fused.input.append("bias")
    fused.attr["num_args"].i = 1
    fused.attr["fused_ops"].list.s.append(b"BiasAdd")
    for name in set(fused.attr) - {"T", "num_args", "fused_ops", "transpose_a", "transpose_b"}:
        del fused.attr[name]
    original, ours = both(graph_def, BF16)
    assert "fused" not in original
    assert "fused" in ours


def test_force_all_fixed() -> None:
    graph_def = graph_of(simple)
    for mode in (FP16, BF16):
        with pytest.raises(OriginalFailedError):
            run_original(graph_def, mode, ("fetch",), FORCE)
        ours = run_ours(graph_def, mode, ("fetch",), FORCE)
        assert {"deny1", "infer1", "infer2", "allow1", "clr5"} <= ours.nodes_in(mode.f16)
        (value,), (float32,) = run(ours.graph, ("fetch",), {}), run(graph_def, ("fetch",), {})
        np.testing.assert_allclose(value, float32, rtol=2e-2 if mode is FP16 else 8e-2)


def test_force_all_casts() -> None:
    def build() -> None:
        x = raw.Cast(x=constant("input"), DstT=tf.float16, name="down")
        x = raw.Cast(x=matmul(x, "allow1"), DstT=tf.float32, name="up")
        tf.identity(x, name="fetch")

    graph_def = graph_of(build)
    original, ours = run_original(graph_def, FP16, ("fetch",), FORCE), run_ours(graph_def, FP16, ("fetch",), FORCE)
    assert (original.types["down", "SrcT"], original.types["up", "DstT"]) == ((19,), (19,))
    assert (ours.types["down", "SrcT"], ours.types["up", "DstT"]) == ((1,), (1,))
    assert run_ours(ours.graph, FP16, ("fetch",), FORCE).graph == ours.graph


def test_preserved_cast() -> None:
    def build() -> None:
        x = raw.Cast(x=tf.constant(True, shape=[32, 32], name="input"), DstT=tf.float32, name="cast")
        tf.identity(matmul(x, "allow1"), name="fetch")

    graph_def = graph_of(build)
    assert both(graph_def, BF16, ("fetch", "cast")) == ({"cast", "allow1"}, {"allow1"})
    assert run(run_original(graph_def, BF16, ("fetch", "cast")).graph, ("cast",), {})[0].dtype != np.float32
    assert run(run_ours(graph_def, BF16, ("fetch", "cast")).graph, ("cast",), {})[0].dtype == np.float32


def test_preserved_loop() -> None:
    def build() -> None:
        x = matmul(raw.Enter(data=constant("input"), frame_name="loop", name="enter"), "allow1")
        body = matmul(raw.Merge(inputs=[x, x], name="merge").output, "allow2")
        raw.NextIteration(data=body, name="next")
        tf.identity(body, name="fetch")

    graph_def = graph_of(build)
    next(node for node in graph_def.node if node.name == "merge").input[1] = "next"
    original, ours = both(graph_def, BF16, ("fetch", "next"))
    assert {"merge", "next"} <= original
    assert not {"merge", "next"} & ours
    assert {"allow1", "allow2"} <= ours


def test_tied_types__loop_entries() -> None:
    def build() -> None:
        enter = raw.Enter(data=matmul(constant("input"), "allow1"), frame_name="loop", name="enter")
        body = raw.Exp(x=raw.Merge(inputs=[enter, enter], name="merge").output, name="deny1")
        raw.NextIteration(data=body, name="next")
        tf.identity(body, name="fetch")

    graph_def = graph_of(build)
    next(node for node in graph_def.node if node.name == "merge").input[1] = "next"
    original, ours = both(graph_def, BF16)
    assert original == {"allow1", "enter"}
    assert ours == {"allow1"}


@pytest.mark.parametrize(("mode", "lowest"), [(FP16, -1e9), (BF16, tf.float32.min)])
def test_range__constants(mode: Mode, lowest: float) -> None:
    def build() -> None:
        scores = tf.where(np.tri(32, dtype=bool), matmul(constant("input"), "allow1"), lowest, name="masked")
        weights = tf.nn.softmax(scores, name="infer1")
        tf.identity(tf.matmul(weights, constant("values"), name="allow2"), name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"allow1", "masked", "infer1", "allow2"} <= original
    assert ours & {"allow1", "masked", "infer1", "allow2"} == {"allow1", "allow2"}

    def build_product() -> None:
        bias = matmul(constant("input") * lowest, "allow1")
        tf.identity(matmul(tf.tanh(bias), "allow2"), name="fetch")

    original, ours = both(graph_of(build_product), mode)
    assert {"allow1", "allow2"} <= original
    assert ours & {"allow1", "allow2"} == {"allow2"}


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_outer_product(mode: Mode) -> None:
    def build() -> None:
        angles = raw.Einsum(inputs=[tf.ones(32), tf.ones(32)], equation="i,j->ij", name="angles")
        tf.identity(matmul(tf.cos(angles), "allow1"), name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"angles", "allow1"} <= original
    assert ours & {"angles", "allow1"} == {"allow1"}


def test_inexact_kernel__sums() -> None:
    def build() -> None:
        x = matmul(constant("input"), "allow1")
        raw.BiasAddGrad(out_backprop=x, name="lost")
        sums = raw.ScatterNd(indices=np.zeros((32, 1), np.int32), updates=x, shape=[32, 32], name="scattered")
        tf.identity(matmul(sums, "allow2"), name="fetch")

    original, ours = both(graph_of(build), BF16)
    assert {"allow1", "lost", "scattered", "allow2"} <= original
    assert ours & {"allow1", "lost", "scattered", "allow2"} == {"allow1", "allow2"}


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_need__results(mode: Mode) -> None:
    def build() -> None:
        average = tf.compat.v1.get_variable("average", (32, 32), use_resource=True)
        x = matmul(constant("input"), "allow1")
        change = raw.Mul(x=x, y=constant("rate", 0.5), name="infer1")
        average.assign_add(change)
        loss = raw.Mul(x=matmul(x, "allow2"), y=constant("unit", 2.0), name="infer2")
        tf.identity(loss, name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"allow1", "infer1", "allow2", "infer2"} <= original
    assert ours & {"allow1", "infer1", "allow2", "infer2"} == {"allow1", "allow2"}


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_origin__running_sums(mode: Mode) -> None:
    def build() -> None:
        x = constant("input")
        for number in range(10):
            step = matmul(tf.tanh(matmul(x, f"allow{number}")), f"allow{number + 10}")
            x = raw.AddV2(x=x, y=step, name=f"infer{number}")
        tf.identity(matmul(x, "allow30"), name="fetch")

    original, ours = both(graph_of(build), mode)
    sums = {f"infer{number}" for number in range(10)}
    assert original >= sums
    assert not ours & sums
    assert "allow9" in ours


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_need__differences(mode: Mode) -> None:
    def build() -> None:
        product = matmul(constant("input"), "allow1")
        far = raw.Mul(x=product, y=constant("two", 2.0), name="infer1")
        distance = raw.Sqrt(x=raw.Sub(x=constant("other", 9.0), y=far, name="infer2"), name="infer3")
        tf.identity(matmul(distance, "allow2"), name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"allow1", "infer1", "infer2"} <= original
    assert ours & {"allow1", "allow2", "infer1", "infer2"} == {"allow1", "allow2"}


@pytest.mark.parametrize("op", [tf.nn.elu, tf.nn.log_softmax])
@pytest.mark.parametrize("mode", [FP16, BF16])
def test_inexact_kernel__activations(mode: Mode, op: Callable[..., tf.Tensor]) -> None:
    def build() -> None:
        x = op(matmul(constant("input"), "allow1"), name="infer1")
        tf.identity(matmul(x, "allow2"), name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"allow1", "infer1", "allow2"} <= original
    assert ours & {"allow1", "infer1", "allow2"} == {"allow1", "allow2"}


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_carried_value(mode: Mode) -> None:
    def build() -> None:
        x = tf.exp(constant("input"))
        flat = tf.reshape(raw.Digamma(x=x), (32, 32), name="flat")
        tf.identity(matmul(flat, "allow1"), name="fetch")
        tf.identity(raw.Digamma(x=flat), name="exact")

    original, ours = both(graph_of(build), mode, ("fetch", "exact"))
    assert {"flat", "allow1"} <= original
    assert ours & {"flat", "allow1"} == {"allow1"}


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_picked_value(mode: Mode) -> None:
    def build() -> None:
        table = tf.compat.v1.get_variable("table", (5000, 32), use_resource=True)
        found = tf.gather(table.value(), list(range(32)), name="found")
        tf.identity(matmul(found, "allow1"), name="fetch")

    original, ours = both(graph_of(build), mode)
    assert {"found", "allow1"} <= original
    assert ours & {"found", "allow1"} == {"allow1"}


def test_origin__joined_values() -> None:
    def build() -> None:
        place = tf.compat.v1.placeholder(tf.float32, (32, 32), name="place")
        moved = tf.add(place, matmul(place, "allow1"), name="moved")
        gaps = tf.subtract(moved, tf.roll(moved, 1, 0), name="gaps")
        tf.identity(matmul(gaps, "allow2"), name="fetch")

    original, ours = both(graph_of(build), BF16)
    assert {"allow1", "moved", "gaps", "allow2"} <= original
    assert ours & {"allow1", "moved", "gaps", "allow2"} == {"allow1", "allow2"}


def test_range__squares_and_quotients() -> None:
    def build() -> None:
        x = matmul(constant("input"), "allow1")
        square, tame = raw.Mul(x=x, y=x, name="square"), raw.RealDiv(x=x, y=constant("eight", 8.0), name="tame")
        quotient = raw.RealDiv(x=x, y=square, name="quotient")
        tf.identity(matmul(tame, "allow2") + matmul(quotient, "allow3"), name="fetch")

    names = {"square", "tame", "quotient"}
    original, ours = both(graph_of(build), FP16)
    assert original >= names
    assert ours & names == {"tame"}
    assert run_ours(graph_of(build), BF16, ("fetch",)).nodes_in(BF16.f16) >= names


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_need__whole_numbers(mode: Mode) -> None:
    def build() -> None:
        ids = tf.slice(constant("input"), [0, 0], [32, 32], name="clr1")
        tf.cast(ids, tf.int32, name="cast")
        tf.identity(matmul(ids, "allow1"), name="fetch")

    original, ours = both(graph_of(build), mode, ("fetch", "cast"))
    assert {"clr1", "allow1"} <= original
    assert ours & {"clr1", "allow1"} == {"allow1"}


def test_tied_types__maxima() -> None:
    window = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
    values = np.random.default_rng(0).normal(size=(1, 8, 8, 8, 4)).astype("float32")

    def build() -> None:
        x = tf.exp(tf.constant(values), name="deny1")
        pooled = raw.MaxPool3D(input=x, name="pool", **window)
        flat = tf.reshape(pooled, (8, 32), name="clr1")
        tf.identity(raw.MatMul(a=flat, b=constant("weights", 1.0, (32, 32)), name="allow1"), name="result")
        grad = tf.ones_like(pooled)
        raw.MaxPool3DGrad(orig_input=x, orig_output=pooled, grad=grad, name="fetch", **window)

    graph_def = graph_of(build)
    original, ours = both(graph_def, BF16, ("fetch", "result"))
    assert {"pool", "clr1", "allow1"} <= original
    assert ours & {"pool", "clr1", "allow1"} == {"clr1", "allow1"}
    (lost,), (float32,) = (
        run(graph, ("fetch",), {}) for graph in (run_original(graph_def, BF16, ("fetch", "result")).graph, graph_def)
    )
    assert lost.sum() < 0.1 * float32.sum()
    (kept,) = run(run_ours(graph_def, BF16, ("fetch", "result")).graph, ("fetch",), {})
    np.testing.assert_array_equal(kept, float32)


def test_list_of_lists() -> None:
    def build() -> None:
        shape = tf.constant([32, 32])
        inner = raw.EmptyTensorList(element_shape=shape, max_num_elements=4, element_dtype=tf.float32, name="inner")
        inner = raw.TensorListPushBack(input_handle=inner, tensor=matmul(constant("input"), "allow1"), name="write")
        outer = raw.EmptyTensorList(element_shape=-1, max_num_elements=4, element_dtype=tf.variant, name="outer")
        outer = raw.TensorListPushBack(input_handle=outer, tensor=inner, name="write_list")
        _, found = raw.TensorListPopBack(
            input_handle=outer, element_shape=-1, element_dtype=tf.variant, name="read_list"
        )
        _, x = raw.TensorListPopBack(input_handle=found, element_shape=shape, element_dtype=tf.float32, name="read")
        tf.identity(raw.Mul(x=x, y=constant("unit", 2.0), name="infer1"), name="fetch")

    graph_def = graph_of(build)
    original, ours = both(graph_def, BF16)
    assert "write" in original
    assert "read" not in original
    assert not {"write", "read"} & ours
    broken = run_original(graph_def, BF16, ("fetch",)).graph
    with pytest.raises(tf.errors.InvalidArgumentError, match="list elements"):
        run(broken, ("fetch",), {})
    run(run_ours(graph_def, BF16, ("fetch",)).graph, ("fetch",), {})


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_inexact_kernel__bounded_exponentials(mode: Mode) -> None:
    def build() -> None:
        x = constant("input")
        bounded = tf.exp(-tf.square(x), name="deny1")
        gradient = raw.AddV2(x=raw.Mul(x=matmul(x, "allow1"), y=bounded, name="infer1"), y=x, name="infer2")
        tf.identity(matmul(gradient, "allow2"), name="fetch")

    names = {"deny1", "infer1", "infer2"}
    original, ours = both(graph_of(build), mode)
    assert not names & original - {"infer2"}
    assert ours & names == {"infer1", "infer2"}


def test_shared_maker() -> None:
    def build() -> None:
        shape = tf.constant([32, 32])
        empty = raw.EmptyTensorList(element_shape=shape, max_num_elements=4, element_dtype=tf.float32, name="maker")
        for number, value in ((1, matmul(constant("input"), "allow1")), (2, tf.exp(constant("other"), name="deny1"))):
            pushed = raw.TensorListPushBack(input_handle=empty, tensor=value, name=f"write{number}")
            _, x = raw.TensorListPopBack(
                input_handle=pushed, element_shape=shape, element_dtype=tf.float32, name=f"read{number}"
            )
            used = matmul(x, "allow2") if number == 1 else tf.exp(x, name="deny2")
            tf.identity(used, name=f"fetch{number}")

    graph_def, fetches = graph_of(build), ("fetch1", "fetch2")
    original, ours = both(graph_def, BF16, fetches)
    assert not {"write1", "read1", "write2", "read2", "maker"} & original
    assert ours >= {"write1", "read1"}
    assert not {"write2", "read2", "maker"} & ours
    run(run_ours(graph_def, BF16, fetches).graph, fetches, {})


def test_shared_reads() -> None:
    def build() -> None:
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[32, 32], shared_name="weight", name="handle")
        x = constant("input")
        for number in (1, 2):
            weight = raw.ReadVariableOp(resource=handle, dtype=tf.float32, name=f"read{number}")
            x = tf.matmul(x, weight, name=f"allow{number}")
        tf.identity(x, name="fetch")

    graph_def = graph_of(build)
    for rewritten, expected in ((run_original, 2), (run_ours, 1)):
        nodes = rewritten(graph_def, BF16, ("fetch",)).graph.node
        assert sum(node.op == "Cast" and node.input[0] in ("read1", "read2") for node in nodes) == expected


def test_call_boundary() -> None:
    def build() -> None:
        @tf.function
        def repeat(x):
            i, states = tf.constant(0), tf.TensorArray(tf.float32, 3, element_shape=[32, 32])
            while i < 3:
                states, i = states.write(i, x), i + 1
            return tf.matmul(states.stack()[0], x, name="allow1")

        concrete = repeat.get_concrete_function(tf.TensorSpec([32, 32]))
        tf.import_graph_def(concrete.graph.as_graph_def(), name="")
        tf.identity(tf.compat.v1.get_default_graph().get_tensor_by_name("allow1:0"), name="fetch")

    graph_def = graph_of(build)
    (loop,) = (node.name for node in graph_def.node if node.op in ("While", "StatelessWhile"))
    lists = {node.name for node in graph_def.node if "TensorList" in node.op}
    original, ours = both(graph_def, BF16)
    # The body still reads and writes float32: TensorFlow's graph cannot run.
    assert len(lists) == 2
    assert lists <= original
    assert not {loop, *lists} & ours
    assert "allow1" in ours


def test_device_without_part() -> None:
    def build() -> None:
        with tf.device("/job:localhost/replica:0/task:0"):
            tf.identity(matmul(constant("input"), "allow1"), name="fetch")

    assert both(graph_of(build), BF16) == (set(), {"allow1"})
