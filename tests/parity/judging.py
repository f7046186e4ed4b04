"""One random graph before the judge, and how this allows for what amp_tf does otherwise on purpose.

Differences are in test_deliberate_differences.py. The comparison never makes such graphs (fused
ops, lists of lists, equations that sum nothing, functional loops), gives the original a setting
that undoes the difference (:func:`knobs_for_original`), leaves out amp_tf's rule (:func:`undone`),
or the graph (:func:`reason_to_leave_out`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from unittest import mock

from tensorflow.core.framework import node_def_pb2

from amp_tf.config import LIST_NAMES
from amp_tf.oplists import kernels
from amp_tf.oplists.table import CPU, CUDA, ROWS
from amp_tf.rewriting import pipeline, planning
from tests.left_out import differing, without
from tests.oracle import (
    DT_FLOAT,
    Mode,
    OriginalFailedError,
    run_original,
    type_attributes,
)
from tests.parity.comparison import differences, run_ours
from tests.parity.op_pool import OWN, op_def, op_pool

EQUAL = "equal"
DIFFERS = "differs"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        kind: :data:`EQUAL`, :data:`DIFFERS`, or why nothing was compared.
        found: the differences.
    """

    kind: str
    found: tuple[str, ...] = ()


def judge(graph, mode):
    """Runs both passes and compares, as far as no deliberate difference shows."""
    try:
        original = run_original(
            graph.graph_def, mode, graph.preserve, knobs_for_original(graph, mode)
        )
    except OriginalFailedError as error:
        if graph.knobs.level != "UNSAFE_FORCE_ALL":
            raise
        return Verdict(f"left out: force-all-fixed ({str(error)[:40]})")
    # Grappler counts every Placeholder among the feeds, which are preserved.
    feeds = []
    for node in graph.graph_def.node:
        if node.op == "Placeholder":
            feeds.append(node.name)
    with undone():
        ours = run_ours(graph.graph_def, mode, (*graph.preserve, *feeds), graph.knobs)
    left_out = reason_to_leave_out(graph, mode, original)
    if left_out:
        return Verdict(f"left out: {left_out}")
    found = tuple(differences(ours, original))
    return Verdict(DIFFERS if found else EQUAL, found)


def knobs_for_original(graph, mode):
    """The graph's settings, with allow-list ops whose result has no 16-bit kernel removed, and our
    own rows added.
    """
    knobs = graph.knobs
    changes = {"allow_remove": {*knobs.allow_remove}}
    used = set()
    for node in graph.graph_def.node:
        used.add(node.op)
        if not _result_can_be_f16(node, mode):
            changes["allow_remove"].add(node.op)
    for name in LIST_NAMES:
        used -= {*getattr(knobs, f"{name}_add")}
    table = CPU if mode is Mode.BFLOAT16 else CUDA
    for row in ROWS:
        if row.op in OWN & used and row.table == table:
            field = f"{row.op_list}_add"
            changes.setdefault(field, {*getattr(knobs, field)}).add(row.op)
    fields = {}
    for field, ops in changes.items():
        fields[field] = tuple(sorted(ops))
    return dataclasses.replace(knobs, **fields)


@contextlib.contextmanager
def undone():
    """Leaves out what amp_tf does and the original does not."""
    undifferent = [row for row in pipeline.PREPARATIONS if row.name in ("split", "fold", "lift")]
    others = [row for row in pipeline.CORRECTIONS if row.name != "hoist"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(without(differing()))
        stack.enter_context(mock.patch.object(pipeline, "PREPARATIONS", undifferent))
        stack.enter_context(mock.patch.object(pipeline, "CORRECTIONS", others))
        # TensorFlow's cast of a reference waits for nothing, and all readers share it.
        stack.enter_context(mock.patch.object(planning, "awaited_by_cast", return_value=()))
        yield


def reason_to_leave_out(graph, mode, original):
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
    if graph.knobs.level == "UNSAFE_FORCE_ALL":
        for node in before.values():
            if node.op != "Cast":
                continue
            if mode.f16 in (node.attr["SrcT"].type, node.attr["DstT"].type):
                return "force-all-casts"
    return ""


def _is_removed_in_part(graph, mode):
    """Tells whether an allow-list op was removed for the sake of some of its nodes only."""
    allowed = {*op_pool().allow, *graph.knobs.allow_add}
    removed = set()
    kept = set()
    for node in graph.graph_def.node:
        if node.op in allowed and _has_float32(node):
            found = kept if _result_can_be_f16(node, mode) else removed
            found.add(node.op)
    return not removed.isdisjoint(kept)


def _has_float32(node):
    if any(DT_FLOAT in types for _, types in type_attributes(node)):
        return True
    definition = op_def(node.op)
    return definition is not None and DT_FLOAT in [arg.type for arg in definition.output_arg]


def has_kernel(node, mode):
    """Tells whether this TensorFlow runs the node with its types on the mode's device type."""
    device_type = "GPU" if mode is Mode.CUDA else "CPU"
    return kernels.has_kernel(node.op, device_type, dict(type_attributes(node)))


def _result_can_be_f16(node, mode):
    """Tells whether a float32 first output could be 16 bit once all of the node is that can be.

    If the output's type is fixed (ResizeBilinear, put on the allow list by a setting), any part
    counts.
    """
    definition = op_def(node.op)
    if not definition or not definition.output_arg:
        return True
    arg = definition.output_arg[0]
    if arg.type_list_attr:
        return True
    if arg.type_attr:
        data_type = node.attr[arg.type_attr].type
        return data_type != DT_FLOAT or _can_be_f16(node, arg.type_attr, mode)
    if arg.type != DT_FLOAT:
        return True
    return any(_can_be_f16(node, attr.name, mode) for attr in definition.attr)


def _can_be_f16(node, name, mode):
    """Tells whether a float32 type attribute can be 16 bit, alone or with all others."""
    convertible = []
    for attr in op_def(node.op).attr:
        if attr.type != "type" or node.attr[attr.name].type != DT_FLOAT:
            continue
        allowed = attr.allowed_values.list.type
        if not allowed or mode.f16 in allowed:
            convertible.append(attr.name)
    if name not in convertible:
        return False
    together = _with_f16(node, convertible, mode)
    alone = _with_f16(node, [name], mode)
    return has_kernel(together, mode) or has_kernel(alone, mode)


def _with_f16(node, names, mode):
    converted = node_def_pb2.NodeDef()
    converted.CopyFrom(node)
    for name in names:
        converted.attr[name].type = mode.f16
    return converted
