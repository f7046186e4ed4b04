"""Named limits of random programs: causes that can be shown, each by a run of its own.

A cause is tried: if the values that it names are rounded to 16 bit in the ideal program, once each,
and that program is then nearly as far off, the cause explains the error. It is a limit of 16 bit
and not a wrong choice, because the contract lets a value be rounded once.

Float16's range is shown by bfloat16, which reaches further and rounds eight times as coarsely: if
the same graph is right there, or much nearer, roundings are not the cause. How large a value is, a
run knows: the gradient of erf is exp(-x²) times another, and where |x| is above 4.2 it is zero in
float16. To keep it, all gradients on the way back to the next product would have to be float32,
wherever somebody writes gelu.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

from amp_tf.oplists.table import ALLOW, LOGARITHMS, MAGNIFYING, Trait
from amp_tf.oplists.table import ROWS as OPS
from tests.truth.fuzzing.graphs import GraphDef, ProgramGraph
from tests.truth.fuzzing.programs import steps_of
from tests.truth.fuzzing.steps import Loop
from tests.truth.modes import MODES, default_config, ideal_config
from tests.truth.yardstick import LIMIT, distance, judge

PRODUCTS = frozenset(row.op for row in OPS if row.op_list == ALLOW)


class Rounding(NamedTuple):
    """A cause: some values are rounded, once.

    Attributes:
        name: what the cause is called.
        ops: of these nodes,
        inputs: the inputs are rounded, rather than the outputs.
        spares: not where the contract asks for float32: where what the node gives is magnified
            before the next product, and where a loop carries it to its next turn with no product in
            between, so that it may be a running sum.
        offsets: also of these nodes, where one input is a constant.
    """

    name: str
    ops: frozenset[str]
    inputs: bool
    spares: bool = False
    offsets: frozenset[str] = frozenset()


ALL_LOST = 0.5  # a relative error
TAKES = 4  # of changed inputs: a condition next to its bound turns over in about each second one
RANGE = "float16's range"  # bfloat16 rounds more coarsely, and yet is right or much nearer
LOST = "lost"  # already in the ideal program: products in 16 bit leave no digit of the result
# changed by half a unit of 16 bit, inputs and variables move the result as far in float32
INPUTS = "inputs"
# Which of two nearly equal values is the larger decides where a value or a gradient goes, or a step
# lies.
SWITCHED = Rounding(
    "switched",
    Trait(
        "Maximum Minimum Max Min MaxPool MaxPoolGrad Relu Relu6 LeakyRelu ReluGrad Relu6Grad "
        "LeakyReluGrad Greater GreaterEqual Less LessEqual Equal SelectV2 Sign Round Abs "
        "ClipByValue"
    ),
    True,
)
# The gradient of a saturated activation is made of 1 - y, and y is rounded to 16 bit, once.
SATURATED = Rounding(
    "saturated",
    Trait("Tanh Sigmoid Softmax LogSoftmax Softplus Softsign Erf Elu Selu"),
    False,
)
CAUSES = (
    # A bias is added in the kernel of its product, so that their sum is rounded, once.
    Rounding("bias", Trait("BiasAdd BiasAddV1"), False),
    SATURATED,
    # The gradient of a saturated x / (1 + |x|) is made of two quotients that cancel.
    Rounding("quotient", Trait("RealDiv"), False, spares=True),
    SWITCHED,
    # A value of 100 is rounded, once, before its sine or exponential is taken.
    Rounding("steep", Trait("Exp Expm1 Sin Cos Softmax LogSoftmax"), True),
    # Values that nearly cancel leave their roundings, and the contract asks for more where it is
    # magnified. The offset: x + 0.5 and later - 0.5.
    Rounding(
        "cancelled",
        Trait("Sub SquaredDifference AddN Sum Mean BiasAddGrad"),
        True,
        spares=True,
        offsets=Trait("AddV2"),
    ),
    # A normalization takes the mean from values that are alike; how alike, a run knows.
    Rounding("centred", Trait("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"), True),
    # The kernel of a sum of three or more gradients rounds it after each term, and a large one may
    # cancel.
    Rounding("partial sums", Trait("AddN"), True, spares=True),
)


def cause_of(program, seed, row):
    """The name of the first cause that explains a row; empty if none does."""
    if row.ideal > ALL_LOST and np.isfinite(row.error):
        return LOST
    graph = ProgramGraph([program], [seed], is_lowered=True)
    mode = MODES[row.mode]
    result = graph.fetches[0, row.tensor]
    given = graph if row.way == "nodes" else ProgramGraph([program], [seed], is_lowered=False)
    if row.mode == "float16" and is_nearer_in_bfloat16(given, row):
        return RANGE
    (truth,) = graph.values(graph.graph_def, [result])

    def explains(graph_def, noise=0.0, take=0):
        return row.error <= LIMIT * distance(
            graph.values(graph_def, [result], noise, take)[0], truth
        )

    if any(explains(graph.graph_def, mode.unit / 2 / 2.0**-23, take) for take in range(TAKES)):
        return INPUTS
    ideal = graph.rewritten(ideal_config(mode.ideal))
    spares_loops = any(
        isinstance(step, Loop) and _accumulates(step) for step in steps_of(program.steps)
    )
    ops = {node.op for node in ideal.node}
    possible = [cause for cause in CAUSES if ops & (cause.ops | cause.offsets)]
    for cause in possible:
        if explains(with_roundings(ideal, [cause], tf.as_dtype(mode.ideal), spares_loops)):
            return cause.name
    rounded = with_roundings(ideal, possible, tf.as_dtype(mode.ideal), spares_loops)
    if len(possible) > 1 and explains(rounded):
        return " and ".join(cause.name for cause in possible)
    # A few switches in a few draws need not be the same ones by other roundings. Of an activation
    # that is saturated everywhere, one number that is not has all the gradient.
    if ops & (SWITCHED.ops | SATURATED.ops):
        (values,) = given.values(given.rewritten(default_config(mode)), [result])
        # All other draws are as far off as products alone are, or as all roundings together.
        for other in (ideal, rounded):
            (least,) = graph.values(other, [result])
            ratios = [
                judge(row.tensor, *parts, mode.unit).ratio
                for parts in zip(values, least, truth, strict=True)
            ]
            if np.median(ratios) <= LIMIT and np.isfinite(values).all():
                return SWITCHED.name
    return ""


def is_nearer_in_bfloat16(graph, row):
    """Tells whether the rewritten graph is much nearer with bfloat16 for each float16."""
    mode = MODES["bfloat16"]
    rewritten = graph.rewritten(default_config(MODES["float16"]))
    nodes = [*rewritten.node]
    for function in rewritten.library.function:
        nodes += function.node_def
    for node in nodes:
        tensor = node.attr["value"].tensor if node.op == "Const" else None
        if tensor is not None and tensor.dtype == tf.float16:
            tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(tensor), tf.bfloat16))
    other = text_format.Parse(str(rewritten).replace("DT_HALF", "DT_BFLOAT16"), GraphDef())

    def computed(graph_def):
        (values,) = graph.values(graph_def, [graph.fetches[0, row.tensor]])
        return values

    ideal = computed(graph.rewritten(ideal_config(mode.ideal)))
    truth = computed(graph.graph_def)
    verdict = judge(row.tensor, computed(other), ideal, truth, mode.unit)
    # An error of roundings would be eight times as large. Infinite is no more than all lost, which
    # is 1.
    return verdict.is_good or verdict.error * LIMIT < min(row.error, 1.0)


def with_roundings(graph_def, causes, data_type, spares_loops=True):
    """The graph, where what float32 nodes of some ops read or give goes through a 16-bit type and
    back.

    Args:
        graph_def: a graph in which loops are nodes.
        causes: say of which nodes.
        data_type: the 16-bit type.
        spares_loops: whether causes that spare running sums spare what loops carry.
    """
    result = GraphDef()
    result.CopyFrom(graph_def)
    rounded = {}

    def cast(name, source, given, target):
        made = result.node.add(name=name, op="Cast", input=[source])
        made.attr["SrcT"].type = given.as_datatype_enum
        made.attr["DstT"].type = target.as_datatype_enum

    def rounding_of(tensor):
        if tensor not in rounded:
            name = rounded[tensor] = f"{tensor.replace(':', '_')}/rounded"
            cast(f"{name}/there", tensor, tf.float32, data_type)
            cast(name, f"{name}/there", data_type, tf.float32)
        return rounded[tensor]

    nodes = {node.name: node for node in graph_def.node}
    float32 = {name for name, node in nodes.items() if _type_of(node) == tf.float32}
    spared = _magnified(nodes)
    if spares_loops:
        spared |= _carried(nodes)
    giving = set()
    reading = set()
    for cause in causes:
        if cause.name == "partial sums":
            _add_one_by_one(result, float32 - spared, rounding_of)
        found = reading if cause.inputs else giving
        for name in float32 - spared if cause.spares else float32:
            if _is_of(cause, nodes[name], nodes):
                found.add(name)
    for node in list(result.node):
        for index, tensor in enumerate(node.input):
            reads = node.name in reading and not tensor.startswith("^") and _is_value(node, index)
            if tensor in giving or reads:
                node.input[index] = rounding_of(tensor)
    return result


def _is_of(cause, node, nodes):
    """Tells whether a cause rounds what a node reads or gives."""
    if node.op in cause.offsets:
        return any(nodes[tensor].op == "Const" for tensor in node.input if tensor in nodes)
    return node.op in cause.ops


def _add_one_by_one(graph_def, names, rounding_of):
    """Rounds what AddN gives after each term."""
    for node in list(graph_def.node):
        if node.op != "AddN" or node.name not in names or len(node.input) < 3:
            continue
        controls = [tensor for tensor in node.input if tensor.startswith("^")]
        total, *terms, last = [tensor for tensor in node.input if tensor not in controls]
        for index, term in enumerate(terms):
            name = f"{node.name}/partial_{index}"
            partial = graph_def.node.add(name=name, op="AddV2", input=[total, term])
            partial.attr["T"].type = tf.float32.as_datatype_enum
            total = rounding_of(name)
        node.input[:] = [total, last, *controls]
        node.attr["N"].i = 2


def _type_of(node):
    if (
        "T" not in node.attr or not node.attr["T"].type
    ):  # a list of types; to read what is not there would write it
        return None
    return tf.as_dtype(node.attr["T"].type)


def _is_value(node, index):
    """Tells whether an input has the type of the node, as conditions of selections and axes have
    not.
    """
    if node.op in ("SelectV2", "Select"):
        return index > 0
    return not (node.op in ("Max", "Min", "Mean", "Sum") and index == 1)


def _accumulates(loop):
    """Tells whether the result of a turn depends on the turn before."""
    return loop.turns > 1 and (bool(loop.rate) or any(0 in step.of for step in loop.body))


def _magnified(nodes):
    """Nodes that magnify, and all upstream of one, with no product in between.

    Gradients are divided by counts.
    """
    ends = set()
    for name, node in nodes.items():
        is_quotient = node.op == "RealDiv" and "gradients/" not in name
        if is_quotient or (node.op != "RealDiv" and node.op in MAGNIFYING | LOGARITHMS):
            ends.add(name)
    return _upstream(nodes, ends, PRODUCTS)


def _upstream(nodes, ends, barrier):
    """The ends, and all nodes from which a way leads to one that goes through no op of the
    barrier.
    """
    found = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name in found or name not in nodes:
            continue
        if name in ends or nodes[name].op not in barrier:
            found.add(name)
            inputs = [tensor for tensor in nodes[name].input if not tensor.startswith("^")]
            waiting += [tensor.partition(":")[0] for tensor in inputs]
    return found


def _carried(nodes):
    """The nodes on a way from one turn of a loop to the next that goes through no product.

    They may be running sums.
    """
    ends = [name for name, node in nodes.items() if node.op == "NextIteration"]
    readers = collections.defaultdict(list)
    for node in nodes.values():
        for tensor in node.input:
            readers[tensor.lstrip("^").partition(":")[0]].append(node.name)
    found = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name not in found and nodes[name].op not in PRODUCTS:
            found.add(name)
            waiting += readers[name]
    return found & _upstream(nodes, ends, PRODUCTS)
