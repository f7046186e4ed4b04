"""amp_tf and the C++ pass on the same graph: which types, casts and wires differ, and which of
these on purpose.
"""

import dataclasses
from unittest import mock

import tensorflow as tf

import amp_tf
from amp_tf.oplists import targets
from amp_tf.rewriting.sharing import LIST_SUFFIX
from tests.oracle import DEFAULT, DT_FLOAT, Mode, outcome
from tests.parity.op_pool import op_def
from tests.small_graphs import arg_types

# A CPU on which oneDNN has bfloat16 kernels: the one for which the oracle decides, whatever this
# one is.
JUDGED = amp_tf.Hardware(cpu_has_bf16=True, cpu_has_avx512=True)
_SECOND_VERSION = {
    "FusedBatchNorm": "FusedBatchNormV2",
    "FusedBatchNormGrad": "FusedBatchNormGradV2",
}


def config_for(mode, knobs=DEFAULT):
    """The settings of amp_tf that correspond to a mode and its knobs."""
    return dataclasses.replace(
        knobs, precision=mode.precision, target=mode.target, ignore_performance=True
    )


def run_ours(graph_def, mode, preserve, knobs=DEFAULT):
    """The graph as amp_tf rewrites it, with the settings that correspond to the mode.

    Difference "rounded-products" is left out: products have the kernels of the type that is
    decided.

    Raises:
        amp_tf.AmpError: what :func:`amp_tf.rewrite` raises.
    """
    config = config_for(mode, knobs)
    with mock.patch.object(targets, "ROUNDED", frozenset()):
        result = amp_tf.rewrite(graph_def, config, hardware=JUDGED, preserve=tuple(preserve))
    return outcome(graph_def, result.graph)


def can_run(mode):
    """Tells whether this machine can run the mode: a graph painted for a GPU needs one."""
    return mode is not Mode.CUDA or bool(tf.config.list_physical_devices("GPU"))


def differences(ours, original):
    """The disagreements; the number of added nodes counts only where all types agree, since casts
    follow types.
    """
    found = []
    for place in sorted(ours.types.keys() | original.types.keys()):
        node, attr = place
        mine = ours.types.get(place)
        theirs = original.types.get(place)
        if mine != theirs and not _is_batch_norm_untouched(ours, original, node, attr):
            op = ours.ops.get(node, "gone")
            found.append(f"{node}.{attr} ({op}): amp_tf {mine}, TensorFlow {theirs}")
    for node, op in sorted(ours.ops.items()):
        theirs = original.ops.get(node)
        if theirs not in (op, _SECOND_VERSION.get(op)):
            found.append(f"{node}: amp_tf {op}, TensorFlow {theirs}")
    if not found and ours.added != original.added:
        found.append(f"added nodes: amp_tf {ours.added}, TensorFlow {original.added}")
    return found


def _is_batch_norm_untouched(ours, original, node, attr):
    """The deliberate difference "batch-norm-untouched": only the op's version differs, no type
    does.
    """
    second_version = _SECOND_VERSION.get(ours.ops.get(node, ""))
    if attr != "U" or second_version != original.ops.get(node):
        return False
    place = (node, "U")
    return place not in ours.types and original.types[place] == (DT_FLOAT,)


def rewired(before, after):
    """The inputs that no longer come from the port that they came from, seen through the casts that
    were added.

    The rewrite may put casts on wires, and give a list a maker of its own; it may not move a wire,
    drop a control input or change a device.
    """
    old = {node.name: node for node in before.node}
    added = {node.name: node for node in after.node if node.name not in old}
    twins = {}
    found = []
    for name, node in added.items():
        if name.endswith(LIST_SUFFIX):
            twin, _, _ = name.removesuffix(f"-{LIST_SUFFIX}").rpartition("-")
            twins[name] = twin
            maker = old[twin]
            is_alike = node.op == maker.op and node.input == maker.input
            if not is_alike or node.device != maker.device:
                found.append(f"{name} does not make the list of {maker.name}")
        elif node.op != "Cast":
            found.append(f"{name} is no Cast but a {node.op}")
    for node in after.node:
        if node.name in added:
            continue
        was = old[node.name]
        sources = [_original(source, added, twins) for source in node.input]
        wanted = list(map(_plain, was.input))
        if sources != wanted:
            found.append(f"{node.name} reads {sources}, was {list(was.input)}")
        if node.device != was.device:
            found.append(f"{node.name} is on {node.device!r}, was on {was.device!r}")
    return found


def _original(source, added, twins):
    """The tensor behind added casts, or the maker for which another one was added."""
    while (name := _plain(source)) in added and name not in twins:
        source = added[name].input[0]
    return twins.get(name, name)


def _plain(source):
    return source.removesuffix(":0")


# Types must agree on every wire, by the OpDefs alone, independent of amp_tf's own verification.


def type_errors(graph):
    """The wires whose ends have different DataTypes; calls of functions are taken as they are."""
    outputs = {node.name: output_types(node) for node in graph.node}
    errors = []
    for node in graph.node:
        wanted = input_types(node)
        if wanted is None:
            continue
        data = []
        for source in node.input:
            if not source.startswith("^"):
                data.append(source)
        if len(wanted) != len(data):
            errors.append(f"{node.name} takes {len(wanted)} inputs and has {len(data)}")
            continue
        for source, data_type in zip(data, wanted, strict=True):
            name, _, port = source.partition(":")
            types = outputs.get(name, [])
            number = int(port or 0)
            if types is None:
                continue
            if not 0 <= number < len(types) or types[number] != data_type:
                errors.append(f"{node.name} takes {data_type} and reads {source} of {types}")
    return errors


def input_types(node):
    """The DataTypes of the data inputs, or ``None`` for an op that is only known as a function."""
    definition = op_def(node.op)
    return None if definition is None else _types(node, definition.input_arg)


def output_types(node):
    """The DataTypes of the output ports, or ``None`` for an op that is only known as a function."""
    definition = op_def(node.op)
    return None if definition is None else _types(node, definition.output_arg)


def _types(node, args):
    types = []
    for arg in args:
        types += arg_types(node, arg)
    return types
