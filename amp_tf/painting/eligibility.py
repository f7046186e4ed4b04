"""Finds the nodes that may be touched at all, and the units that can be 16 bit.

Nodes on the allow list and forced nodes convert all their float32 types at once. Some kernels exist
only for types that change together (MaxPool3DGrad), so the largest set of types that a kernel
accepts is converted. Infer and clear nodes convert type by type, as in TensorFlow, because paint
reaches one type at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP, ROUNDED_ATTR
from amp_tf.graph.datatypes import Node, NodeMask, UnitMask
from amp_tf.graph.names import SPLIT_SUFFIX, Matcher, matcher, whole_of
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.templates import Signature
from amp_tf.graph.view import GraphView
from amp_tf.oplists import kernels
from amp_tf.oplists.table import CONSTANTS, FUSED_PRODUCTS, KERNELS_DECIDE, NEVER_FORCED
from amp_tf.oplists.targets import CPU_DEVICE, Resolution, Target
from amp_tf.painting.reasons import Code
from amp_tf.values import is_layer_pattern

#: The attribute of ops made inside ``amp_tf.scope``. Each line is a scope, the innermost first: its
#: precision, then the patterns of its nodes if it is not for all, separated by tabs.
SCOPE_ATTR = "_amp_tf_scope"
SCOPE_FLOAT32 = b"float32"
SCOPE_F16 = b"f16"  #: whatever 16-bit type is in use


@dataclasses.dataclass(frozen=True)
class Obstacles:
    """The nodes that must not be touched, and the nodes that are forced.

    Attributes:
        code_of: node to the reason that keeps it in float32; nodes that may be touched are absent.
        forced: node to the reason that converts it if its op can be 16 bit.
        patterns: the patterns of the settings and of the scopes, each with whether it matched a
            node.
        refused: node to the property that no 16-bit kernel of its device supports
            (:data:`kernels.REFUSALS`).
    """

    code_of: Mapping[int, Code] = dataclasses.field(default_factory=dict)
    forced: Mapping[int, Code] = dataclasses.field(default_factory=dict)
    patterns: Mapping[str, bool] = dataclasses.field(default_factory=dict, hash=False)
    refused: Mapping[Node, str] = dataclasses.field(default_factory=dict, hash=False)


NO_OBSTACLES = Obstacles()


@dataclasses.dataclass(frozen=True)
class Folded:
    """Nodes that have another meaning or place since :mod:`amp_tf.rewriting.folding` prepared the
    graph.

    Attributes:
        scales: multiplications that now scale a filter; they stay in float32, so that the filter is
            rounded once.
        lifted: biases and activations that now stand between a matrix product and its reshaping,
            and are computed with it if they have its type.
    """

    scales: frozenset[Node] = frozenset()
    lifted: frozenset[Node] = frozenset()


NOTHING_FOLDED = Folded()


def find_obstacles(
    view: GraphView,
    resolution: Resolution,
    config: AmpConfig,
    preserve: Container[str],
) -> Obstacles:
    """Finds the obstacles: preserved names, devices, scopes, name rules, and refusing kernels.

    Without a target there are none.
    """
    if resolution.target is None:
        return NO_OBSTACLES
    fused = _find_fused(view)
    matched: dict[str, bool] = {}
    foreign = _on_other_devices(view, resolution, resolution.target.device_type)
    code_of = dict.fromkeys(foreign, Code.OTHER_DEVICE)
    forced: dict[Node, Code] = {}
    precision = resolution.target.precision.value.encode()
    for node, value in _precisions_by_scopes(view, fused, matched):
        if value == SCOPE_FLOAT32:
            code_of[node] = Code.KEPT_BY_SCOPE
        elif value in (SCOPE_F16, precision):
            forced[node] = Code.FORCED_BY_SCOPE
    if view.function:  # its arguments and results keep their types
        ends = view.nodes_with((ARG_OP, RETVAL_OP))
        code_of.update(dict.fromkeys(ends, Code.PRESERVED))
    named = _find_named(view, config.force_f16, fused, matched)
    forced.update(dict.fromkeys(named, Code.FORCED_BY_NAME))
    named = _find_named(view, config.keep_float32, fused, matched)
    code_of.update(dict.fromkeys(named, Code.KEPT_BY_NAME))
    code_of.update(dict.fromkeys(view.marked(ROUNDED_ATTR), Code.ROUNDED_BEFORE))
    for node, name in enumerate(view.names):
        if name in preserve:
            code_of[node] = Code.PRESERVED
    for node in list(forced):
        if node in code_of or not can_be_forced(view.signatures[node]):
            del forced[node]
    refused = _find_refused(view, resolution.target)
    return Obstacles(code_of, forced, matched, refused)


def _on_other_devices(view: GraphView, resolution: Resolution, wanted: str) -> list[Node]:
    """Returns the nodes on devices of another type than the target's."""
    foreign = {each for each in set(view.devices) if resolution.device_type(each) != wanted}
    if not foreign:
        return []
    return [node for node, device in enumerate(view.devices) if device in foreign]


class _Fused(NamedTuple):
    """Fused products and their parts, which get their names and scopes from other nodes.

    TensorFlow's remapper gives a fused node the name of the last of its nodes, which may be in the
    layer around it, and drops the attribute of amp_tf.scope: a product of block_1/attention and the
    sum that follows become block_1/add. So the scope of a product is read from its filter, and the
    scope of a bias that was split off from the bias.

    Attributes:
        parts: the parts of split products, each with the name of the whole.
        filters: fused products and parts, each with its filter or its bias.
    """

    parts: Mapping[Node, str]
    filters: Mapping[Node, Node]


def _find_fused(view: GraphView) -> _Fused:
    parts = {
        node: whole_of(name) for node, name in enumerate(view.names) if name.endswith(SPLIT_SUFFIX)
    }
    filters = {}
    for node in {*view.nodes_with(FUSED_PRODUCTS), *parts}:
        inputs = view.inputs(node)
        if len(inputs) > 1:
            filters[node] = inputs[1][0]
    return _Fused(parts, filters)


def _precisions_by_scopes(
    view: GraphView, fused: _Fused, matched: dict[str, bool]
) -> Iterator[tuple[Node, bytes]]:
    """Yields the nodes inside scopes with the precision that their scopes ask for."""
    find = functools.cache(matcher)
    marked = view.marked(SCOPE_ATTR)
    scopes = {node: view.protos[node].attr[SCOPE_ATTR].s for node in marked}
    of_filters = {node: scopes[each] for node, each in fused.filters.items() if each in scopes}
    for node, around in (of_filters | scopes).items():
        yield node, _precision_in(around, view.names[node], matched, find)


def _find_named(
    view: GraphView, patterns: Sequence[str], fused: _Fused, matched: dict[str, bool]
) -> list[Node]:
    """Returns the nodes that the patterns match; notes in ``matched`` which patterns match one."""
    found: list[Node] = []
    if not patterns:
        return found
    own = [*enumerate(view.names), *fused.parts.items()]
    of_filters = [(node, view.names[source]) for node, source in fused.filters.items()]
    for pattern in patterns:
        names = own
        if is_layer_pattern(pattern):
            names = own + of_filters
        match = matcher(pattern)
        nodes = [node for node, name in names if match(name)]
        matched[pattern] = matched.get(pattern, False) or bool(nodes)
        found += nodes
    return found


def _find_refused(view: GraphView, target: Target) -> dict[Node, str]:
    """The nodes whose 16-bit kernels refuse to run, each with the property that they refuse."""
    if target.device_type != CPU_DEVICE or target.is_xla:
        return {}
    found: dict[Node, str] = {}
    for pair in paired_maxima(view):
        if kernels.has_channels_first(view.protos[pair[1]].attr):
            found.update(dict.fromkeys(pair, kernels.PAIRED_WHAT))
    for row in kernels.refusals(target.precision.data_type, runs_eigen=target.runs_eigen):
        for node in view.nodes_with(row.ops):
            if row.is_asked(view.protos[node].attr):
                found.setdefault(node, row.what)
    return found


def paired_maxima(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yields the nodes of :data:`kernels.PAIRED`: each forward node with its gradient."""
    for node in view.nodes_with(kernels.PAIRED):
        forward, position = kernels.PAIRED[view.ops[node]]
        source, _ = view.inputs(node)[position]
        if view.ops[source] == forward:
            yield source, node


def _precision_in(
    scopes: bytes, name: str, matched: dict[str, bool], find: Callable[[str], Matcher]
) -> bytes:
    """The precision of the innermost scope that is for a node; empty if none is.

    Notes the patterns that it tries.
    """
    if b"\t" not in scopes:
        return scopes
    for scope in scopes.decode().split("\n"):
        precision, *patterns = scope.split("\t")
        is_for = not patterns
        while patterns and not is_for:
            pattern = patterns.pop(0)
            is_for = find(pattern)(whole_of(name))
            matched[pattern] = is_for or matched.get(pattern, False)
        if is_for:
            return precision.encode()
    return b""


def can_be_forced(signature: Signature) -> bool:
    """Returns whether an op may be forced to 16 bit. Constants only hold a result, and readers of a
    variable must have its type.
    """
    return signature.op not in NEVER_FORCED and not signature.is_stateful and not signature.has_refs


def find_convertible(
    view: GraphView,
    target: Target,
    candidates: NodeMask,
    whole: NodeMask,
    refused: Iterable[Node] = (),
) -> tuple[UnitMask, UnitMask]:
    """Finds the units of some nodes that can be 16 bit by the op's definition, and by a kernel.

    Args:
        candidates: the nodes to look at. All other units are absent from both results.
        whole: the nodes whose types are converted together, by a kernel that accepts all of them:
            MaxPool3DGrad has one for two float32 types and one for two 16-bit types, and none for
            one of each. The types of other nodes are looked up one by one, as in TensorFlow's pass,
            because paint reaches one at a time.
        refused: the nodes that their kernels refuse (:attr:`Obstacles.refused`).

    Returns:
        Two masks of units: allowed by the definition; allowed, and with a kernel. Both hold float32
            units alone.
    """
    allowed = np.zeros(view.unit_count, np.bool_)
    runnable = np.zeros(view.unit_count, np.bool_)
    for together in (False, True):
        nodes = candidates & (whole == together)
        # Nodes of one kind have the same answer, so one node of each kind is looked at.
        node_of_kind = np.full(len(view.of_kind), -1)
        node_of_kind[view.kinds[nodes]] = np.flatnonzero(nodes)
        answers: list[_Answer] = []
        for signature, node in zip(view.of_kind, node_of_kind.tolist(), strict=True):
            if node < 0:
                answers += [_NEITHER] * len(signature.slots)
                continue
            runs = None
            if signature.op in target.without_kernel:
                runs = False
            elif target.device_type == CPU_DEVICE and signature.op in target.rounded:
                # Each op on the lists has a float32 kernel, which may compute the 16-bit type.
                runs = True
            elif not kernels.has_any(signature.op, target.device_type):
                runs = False
            types = tuple(view.dtypes[view.base[node] : view.base[node + 1]])
            asked = (target.device_type, target.precision.data_type, together, runs)
            answers += _answers(signature, types, *asked)
        # A slot's answer holds for the units of all nodes of its kind.
        units = view.units_of(nodes)
        may_be, have_kernels = np.array(answers, np.bool_).reshape(-1, 2).T
        allowed |= units & view.of_slots(may_be)
        runnable |= units & view.of_slots(have_kernels)
    for node in refused:
        runnable[view.units(node)] = False
    return allowed, runnable


#: Two facts about a slot: its op's definition lets it be 16 bit, and a kernel computes it then.
_Answer: TypeAlias = tuple[bool, bool]
_NEITHER: _Answer = (False, False)


@functools.lru_cache(maxsize=8192)
def _answers(
    signature: Signature,
    types: tuple[int, ...],
    device_type: str,
    wanted: int,
    together: bool,
    runs: bool | None,
) -> Sequence[_Answer]:
    """Returns the answer for each slot of a kind of nodes.

    Args:
        runs: whether the kernels run; ``None`` to ask TensorFlow.
    """
    if signature.holds_functions or signature.op in CONSTANTS:
        return [_NEITHER] * len(types)
    allowed: list[bool] = []
    attrs: dict[str, None] = {}
    types_of: dict[str, list[int]] = {}
    for slot, data_type in zip(signature.slots, types, strict=True):
        types_of.setdefault(slot.attr, []).append(data_type)
        is_free = signature.op in KERNELS_DECIDE and not slot.is_fixed
        allowed.append(data_type == datatypes.FLOAT and (is_free or slot.can_be(wanted)))
        if allowed[-1]:
            attrs[slot.attr] = None

    def has_kernel(choice: Iterable[str]) -> bool:
        """Returns whether a kernel accepts some attributes in 16 bit: all their float32 entries if
        they change together, else the first of each.
        """
        changed = {attr: list(given) for attr, given in types_of.items()}
        for attr in choice:
            converted = changed[attr]
            while datatypes.FLOAT in converted:
                converted[converted.index(datatypes.FLOAT)] = wanted
                if not together:
                    break
        return kernels.has_kernel(signature.op, device_type, changed)

    runnable: Iterable[str] = ()
    if runs:
        runnable = attrs
    elif runs is None and not together:
        runnable = [attr for attr in attrs if has_kernel((attr,))]
    elif runs is None:  # the largest set that a kernel accepts, the first of several
        sizes = range(len(attrs), 0, -1)
        choices = (itertools.combinations(attrs, size) for size in sizes)
        runnable = next(filter(has_kernel, itertools.chain.from_iterable(choices)), ())
    found = []
    for slot, is_allowed in zip(signature.slots, allowed, strict=True):
        found.append((is_allowed, is_allowed and slot.attr in runnable))
    return found
