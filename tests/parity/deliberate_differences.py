"""Where amp_tf differs from TensorFlow's pass on purpose, as a table: a name and the reason.

A difference that is not in this table is a bug. Each row has a test in test_deliberate_differences.py that shows both
behaviours. The differential tests allow for a row in one of four ways: they never make such a graph, they give the
original a setting that undoes the difference (:func:`knobs_for_original`), they leave out amp_tf's rule where the
original's result shows the difference (:func:`undone`), or they leave such a graph out (:func:`reason_to_leave_out`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from unittest import mock

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import kernels

from amp_tf.config import LIST_NAMES
from amp_tf.oplists.table import AMP_TF, CPU, CUDA, ROWS
from amp_tf.rewriting import pipeline
from tests.left_out import differing, without
from tests.oracle import DT_FLOAT, Knobs, Mode, Outcome, type_attributes
from tests.parity.op_pool import op_def, op_pool
from tests.parity.random_graphs import RandomGraph


@dataclasses.dataclass(frozen=True)
class DeliberateDifference:
    """One difference: its name, why amp_tf does better so, and how the differential tests allow for it."""

    name: str
    reason: str
    allowance: str


DELIBERATE_DIFFERENCES = (
    DeliberateDifference(
        "kernel-missing",
        "TensorFlow paints allow-list nodes, and infer nodes that directly follow one, without asking whether the op "
        "has a 16-bit kernel on the node's device; the graph then fails at run time. amp_tf leaves them in float32, "
        "and an allow-list op whose result cannot be 16-bit does not attract its neighbours either.",
        "the original gets such an allow-list op removed by ALLOWLIST_REMOVE; a graph in which only some nodes of the "
        "op are such, or with another node without kernel in the original's result, is left out",
    ),
    DeliberateDifference(
        "batch-norm-untouched",
        "TensorFlow turns every FusedBatchNorm into FusedBatchNormV2 before it looks at anything else, even where "
        "nothing is converted. amp_tf does so only to nodes that it converts: an unpainted graph stays as it is.",
        "an op FusedBatchNorm of amp_tf's is equal to a FusedBatchNormV2 in float32 of the original's",
    ),
    DeliberateDifference(
        "infer-follow-order",
        "TensorFlow paints infer nodes that follow an allow node in one sweep in the order of the node list, so the "
        "result depends on that order. amp_tf repeats the sweep until nothing changes, so it does not. On graphs in "
        "topological order, as Grappler delivers them, the two agree.",
        "random graphs are in topological order",
    ),
    DeliberateDifference(
        "fused-ops",
        "The plugin hook runs after Grappler's remapper, TensorFlow's pass before it: amp_tf's lists also hold the "
        "fused ops (_FusedMatMul, _FusedConv2D, …), which TensorFlow's pass never meets. Where these have no 16-bit "
        "kernel, amp_tf splits them again.",
        "random graphs have no fused ops",
    ),
    DeliberateDifference(
        "force-all-fixed",
        "TensorFlow's UNSAFE_FORCE_ALL gives up on the whole graph when one node has an argument of fixed type "
        "float32, and in bfloat16 mode always. amp_tf forces what can be forced.",
        "where the original gives up, nothing is compared",
    ),
    DeliberateDifference(
        "force-all-casts",
        "Under UNSAFE_FORCE_ALL TensorFlow converts the float32 side of casts from and to 16 bits, its own among them, "
        "so that each further rewrite changes the graph again. amp_tf leaves these casts alone.",
        "under UNSAFE_FORCE_ALL a graph with such a cast is left out",
    ),
    DeliberateDifference(
        "preserved-cast",
        "TensorFlow changes the type of a fetched Cast to float32 when all its readers are 16-bit, so the caller gets "
        "another type than asked for. amp_tf preserves it.",
        "a graph whose preserved Cast the original converts is left out",
    ),
    DeliberateDifference(
        "preserved-loop",
        "TensorFlow makes NextIteration agree with its Merge without asking whether it is preserved. amp_tf makes them "
        "agree by leaving both in float32.",
        "random graphs preserve no NextIteration, which cannot be fetched",
    ),
    DeliberateDifference(
        "inexact-kernel",
        "TensorFlow converts sums whose kernels on CPUs keep the sum in 16 bit, which stops growing at 256 times what "
        "is added in bfloat16: the gradient of a gather (ScatterNd), AvgPool in float16. It has Elu, Selu and "
        "LogSoftmax on its infer list, whose kernels compute exp(x) - 1 and the logarithm of 1 + exp(-x) as they stand "
        "there, which are 0 for small x and for large x. In amp_tf all these are on no list. And it has all "
        "exponentials on its deny list; exp(-x²), of which the gradient of an exact Gelu is made, lies between zero "
        "and one: in amp_tf it is computed in float32, and what uses it may be 16 bit.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "range",
        "TensorFlow looks at no values. A constant that 16 bit cannot hold, such as the -1e9 of a mask in float16, "
        "becomes infinite there, and a softmax over a row that allows nothing NaN; 1e-8 becomes zero. In amp_tf what "
        "uses such a constant, or an op that makes such values, stays in float32, up to the next product, and so "
        "does a product that reads the constant as it is, or multiplied. And TensorFlow keeps powers and exponentials "
        "from float16, whose range they leave, but not x * x, 1 / x and x / y, which leave it as easily. In amp_tf "
        "these stay in float32, too, but for a constant divisor.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "need",
        "TensorFlow converts what is subtracted, and what a root or a logarithm is taken of, and what is left of "
        "values that are nearly alike is made of roundings: a variance below zero, a logarithm of zero. It rounds ids "
        "that come as floats beside other columns before they are cast to integers. And it converts what follows a "
        "product, whoever reads it: gradients are divided by their loss scale in float16, which makes them infinite "
        "above 65,504 and zero below 6e-8 whatever the scale; moving averages stand still; losses have the three "
        "digits of bfloat16. In amp_tf all these stay in float32, back to the product.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "origin",
        "TensorFlow casts the float32 side of an addition down: positions of 5,000 m and a network's step of 0.1 m are "
        "multiples of 32 m; and x = x + step in 16 bit stands still once a step is less than a 500th of x. In amp_tf "
        "what adds exact data to what a product gave stays in float32, up to the next product, and so does what a loop "
        "adds to its own state, and a long chain of additions.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "tied-types",
        "The gradient of a maximum looks for its value among those that it was taken from. TensorFlow converts "
        "MaxPool3D and leaves its gradient in float32: the rounded value is none of them, and the gradient is zero. "
        "It casts between a loop's Enter and its Merge where their colors differ; by that edge its executor knows that "
        "a loop in a branch that is not taken does not run, and with a cast in between, what waits for the loop's end "
        "gets no value. It sums the bias gradient of a dense layer (BiasAddGrad) in bfloat16. In amp_tf types that are "
        "tied change together or not at all, and of bias gradients those that oneDNN computes with a filter's.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "carried-value",
        "TensorFlow converts what only hands a value on to a product, and a sum of gradients that reads the same "
        "Reshape gets them rounded, through a cast back. In amp_tf the cast stands behind it, for the product alone.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "picked-value",
        "TensorFlow converts a gather before a product, and casts the whole table of embeddings in each step. In "
        "amp_tf the rows that were looked up are cast, if there are fewer and no product reads the table itself.",
        "amp_tf runs without this rule",
    ),
    DeliberateDifference(
        "outer-product",
        "TensorFlow looks at no equations. An Einsum that sums nothing, by which rotary embeddings multiply positions "
        "by frequencies, is a product there, and angles beyond position 256 (bfloat16) or 2,048 (float16) are noise. "
        "In amp_tf it is judged as the multiplication that it is.",
        "the equations of random graphs sum",
    ),
    DeliberateDifference(
        "list-of-lists",
        "A loop in a loop stores the lists that its gradient needs in lists. TensorFlow does not follow a list into "
        "another and out again, so that readers may get another type than writers, and the graph fails when it runs. "
        "In amp_tf such lists stay in float32.",
        "random graphs have no lists of lists",
    ),
    DeliberateDifference(
        "shared-maker",
        "TensorFlow's optimizers make one op of all that make empty lists alike, and TensorFlow gives all these lists "
        "one type: float32 as soon as one of them must have it. amp_tf makes those that can be 16 bit by an op of "
        "their own.",
        "amp_tf parts no lists",
    ),
    DeliberateDifference(
        "shared-reads",
        "A layer that is shared, or a cell that is unrolled, reads its weights in each call. TensorFlow casts each "
        "read; in amp_tf those that wait for nothing are one, and cast once.",
        "amp_tf shares no reads",
    ),
    DeliberateDifference(
        "call-boundary",
        "A TensorList that enters a functional While, If or Case belongs to the function as well; TensorFlow knows "
        "only calls as such boundaries, and for bfloat16 has While on its clear list. amp_tf keeps all their types.",
        "random graphs have no functional control flow: Grappler lowers it first",
    ),
    DeliberateDifference(
        "device-without-part",
        "A device that names a job but no device type (/job:worker) is the default device of that job; TensorFlow "
        "takes it for no device at all and skips the node.",
        "random graphs have no such devices",
    ),
)


def knobs_for_original(graph: RandomGraph, mode: Mode) -> Knobs:
    """The graph's settings, with allow-list ops whose result has no 16-bit kernel removed, and our own rows added."""
    removed = {node.op for node in graph.graph_def.node if not _result_can_be_f16(node, mode)}
    knobs = dataclasses.replace(graph.knobs, allow_remove=tuple(sorted({*graph.knobs.allow_remove, *removed})))
    used = {node.op for node in graph.graph_def.node}
    moved = {op for name in LIST_NAMES for op in getattr(knobs, f"{name}_add")}
    table = CPU if mode is Mode.BFLOAT16 else CUDA
    for row in ROWS:
        if row.origin == AMP_TF and row.table == table and row.op in used - moved:
            field = f"{row.op_list}_add"
            knobs = dataclasses.replace(knobs, **{field: (*getattr(knobs, field), row.op)})
    return knobs


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Leaves out what amp_tf does and the original does not."""
    undifferent = [row for row in pipeline.PREPARATIONS if row.name in ("split", "fold", "lift")]
    with without(differing()), mock.patch.object(pipeline, "PREPARATIONS", undifferent):
        yield


def reason_to_leave_out(graph: RandomGraph, mode: Mode, original: Outcome) -> str:
    """The name of the difference that shows in the original's result, or nothing."""
    if _is_removed_in_part(graph, mode):
        return "kernel-missing"
    before = {node.name: node for node in graph.graph_def.node}
    for node in original.graph.node:
        old = before.get(node.name)
        if old is None or dict(type_attributes(node)) == dict(type_attributes(old)):
            continue
        if not has_kernel(node, mode):
            return "kernel-missing"
        if node.op == "Cast" and node.name in graph.preserve:
            return "preserved-cast"
    if graph.knobs.level == "UNSAFE_FORCE_ALL" and any(
        node.op == "Cast" and mode.f16 in (node.attr["SrcT"].type, node.attr["DstT"].type) for node in before.values()
    ):
        return "force-all-casts"
    return ""


def _is_removed_in_part(graph: RandomGraph, mode: Mode) -> bool:
    """Whether an allow-list op was removed for the sake of some of its nodes only."""
    allowed = {*op_pool().allow, *graph.knobs.allow_add}
    nodes = [node for node in graph.graph_def.node if node.op in allowed and _has_float32(node)]
    removed, kept = (
        {node.op for node in nodes if _result_can_be_f16(node, mode) is can_be} for can_be in (False, True)
    )
    return not removed.isdisjoint(kept)


def _has_float32(node: node_def_pb2.NodeDef) -> bool:
    definition = op_def(node.op)
    results = definition.output_arg if definition else ()
    return any(DT_FLOAT in types for _, types in type_attributes(node)) or any(r.type == DT_FLOAT for r in results)


def has_kernel(node: node_def_pb2.NodeDef, mode: Mode) -> bool:
    """Whether this TensorFlow can run the node with its types on the device type that the mode works on."""
    types = dict(type_attributes(node))
    return any(
        all(attr in types and set(types[attr]) <= allowed for attr, allowed in kernel)
        for kernel in _kernels(node.op, "GPU" if mode is Mode.CUDA else "CPU")
    )


@functools.cache
def _kernels(op: str, device_type: str) -> tuple[tuple[tuple[str, frozenset[int]], ...], ...]:
    """The constraints of the op's kernels: an attribute and the types that it may have."""
    return tuple(
        tuple((c.name, frozenset(c.allowed_values.list.type)) for c in kernel.constraint if c.allowed_values.list.type)
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in (device_type, "DEFAULT") and not kernel.label
    )


def _result_can_be_f16(node: node_def_pb2.NodeDef, mode: Mode) -> bool:
    """Whether the node's first output, where it is float32, could be 16-bit once all of the node is that can be.

    Where the output's type is fixed (ResizeBilinear, put on the allow list by a setting), whether anything could.
    """
    definition = op_def(node.op)
    arg = definition.output_arg[0] if definition and definition.output_arg else None
    if arg is None or arg.type_list_attr:
        return True
    if not arg.type_attr:
        return arg.type != DT_FLOAT or any(_can_be_f16(node, attr.name, mode) for attr in definition.attr)
    return node.attr[arg.type_attr].type != DT_FLOAT or _can_be_f16(node, arg.type_attr, mode)


def _can_be_f16(node: node_def_pb2.NodeDef, name: str, mode: Mode) -> bool:
    """Whether a float32 type attribute can be 16-bit, with all others that may be as well, or else alone."""
    convertible = [
        attr.name
        for attr in op_def(node.op).attr
        if attr.type == "type"
        and node.attr[attr.name].type == DT_FLOAT
        and (not attr.allowed_values.list.type or mode.f16 in attr.allowed_values.list.type)
    ]
    return name in convertible and any(
        has_kernel(_with_f16(node, names, mode), mode) for names in (convertible, [name])
    )


def _with_f16(node: node_def_pb2.NodeDef, names: Sequence[str], mode: Mode) -> node_def_pb2.NodeDef:
    converted = node_def_pb2.NodeDef()
    converted.CopyFrom(node)
    for name in names:
        converted.attr[name].type = mode.f16
    return converted
