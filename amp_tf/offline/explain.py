"""Explains one node: its precision, the rule, the way the decision came, and the list change that would turn it.

The change is not guessed: candidates are tried, cheapest first, by rewriting the graph again under the changed
configuration, and the first one that turns the node is named. What is explained is the decision of the rewrite itself,
after normalization was folded.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import GraphError, OpListError
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.painting import Painting
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import rewrite

BIAS_OP = "BiasAdd"  #: what folding makes of the sum behind a convolution


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is known about one node.

    Attributes:
        name, op: the node.
        new_op: the op that folding normalization makes of it; ``op`` where it makes none.
        op_list: the list that its op is on, empty for none.
        precision: what its result is computed in.
        reason: why.
        trail: names of the nodes along which the decision came, the node first; one name where it decided by itself.
        change: the list change that would turn the decision, field of AmpConfig to ops; empty where none was found.
    """

    name: str
    op: str
    new_op: str
    op_list: str
    precision: Precision
    reason: Reason
    trail: tuple[str, ...]
    change: dict[str, tuple[str, ...]]

    def __str__(self) -> str:
        listed = f"on the {self.op_list} list" if self.op_list else "on no list"
        op = self.op if self.new_op == self.op else f"{self.op}, folded to {self.new_op}"
        # An integer, or a type of 16 bit that somebody chose before us: what it computes in is not ours to say.
        is_other = self.reason.rule is Rule.NO_FLOAT32
        state = "is left as it is" if is_other else f"computes in {self.precision.value}"
        lines = [f"{self.name} ({op}, {listed}) {state}: {self.reason}."]
        if len(self.trail) > 1:
            lines.append("The decision came along: " + " <- ".join(self.trail))
        other = "float32" if self.precision.is_f16 else "16 bit"
        if self.change:
            settings = ", ".join(f"{field}={ops!r}" for field, ops in self.change.items())
            variables = " ".join(
                f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{field.upper().replace('_', 'LIST_')}={','.join(ops)}"
                for field, ops in self.change.items()
            )
            lines.append(f"This would turn it to {other}: AmpConfig({settings}), or {variables}")
        elif not is_other:
            lines.append(f"No change of one or two ops on the lists turns it to {other}.")
        return "\n".join(lines)


def explain(
    graph: Any,
    node_name: str,
    config: AmpConfig,
    *,
    preserve: tuple[str, ...] = (),
    hardware: Hardware | None = None,
    library: Any = None,
) -> Explanation:
    """Explains a node of a graph.

    Args:
        graph: a ``GraphDef`` or ``FunctionDef``. Normalization is folded where the nodes carry their shapes.
        node_name: the node.
        config: the configuration to explain it under.
        preserve: names of nodes that stay as they are.
        hardware: the devices; this machine's CPU by default.
        library: for a FunctionDef, the functions that it calls.

    Raises:
        GraphError: the graph has no node of that name; the message names the closest ones.
        OpListError: the lists contradict each other, or a change of them names an op that TensorFlow does not know.
    """
    hardware = Hardware.detect_cpu() if hardware is None else hardware

    def painted(changed: AmpConfig) -> Painting:
        quiet = dataclasses.replace(changed, log_path=None)
        result = rewrite(graph, quiet, preserve=preserve, hardware=hardware, library=library, functions=False)
        return result.report.graphs[0].painting

    painting = painted(config)
    view = painting.view
    if node_name not in view.names:
        raise missing_node(node_name, view.names, f"function {view.function!r}" if view.function else "graph")
    node = view.names.index(node_name)
    is_f16 = _is_f16(painting, node)
    target = resolve_target(config, hardware).target
    list_of: Mapping[str, str] = target.lists.list_of if target else {}
    trail = painting.trail(node)
    change: dict[str, tuple[str, ...]] = {}
    ops = dict.fromkeys([view.ops[node], *(view.ops[view.names.index(name)] for name in reversed(trail))])
    for candidate in _candidates(list(ops), list_of, is_f16):
        try:
            turned = _is_named_f16(painted(_changed(config, candidate)), node_name) != is_f16
        except OpListError:
            continue
        if turned:
            change = candidate
            break
    precision = painting.precision if is_f16 and painting.precision else Precision.FLOAT32
    op = view.ops[node]
    reason = painting.reason(node)
    old_op = _op_of(graph, node_name) if op == BIAS_OP else op
    return Explanation(node_name, old_op, op, list_of.get(op, ""), precision, reason, tuple(trail), change)


def _op_of(graph: Any, name: str) -> str:
    nodes = graph.node_def if hasattr(graph, "node_def") else graph.node
    return next(str(item.op) for item in nodes if item.name == name)


def missing_node(wanted: str, names: Sequence[str], where: str) -> GraphError:
    """The error for a node that none of the names is; it tells the closest ones."""
    close = closest(wanted, names)
    return GraphError(
        f"the graph has no node {wanted!r}",
        where=where,
        fix=f"The closest names: {', '.join(close)}" if close else "amp-tf rewrite --report lists all names",
    )


def closest(wanted: str, names: Sequence[str]) -> list[str]:
    """Up to three names, first those that end in what was typed: Keras puts the model's name before the layer's."""
    inner = sorted((name for name in names if name.endswith(f"/{wanted}")), key=len)
    return list(dict.fromkeys([*inner, *difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)]))[:3]


def _is_f16(painting: Painting, node: int) -> bool:
    return node in painting.converted_nodes()


def _is_named_f16(painting: Painting, name: str) -> bool:
    """By name: another configuration may fold more or less, so that the numbers of new nodes differ."""
    return name in painting.view.names and _is_f16(painting, painting.view.names.index(name))


def _candidates(ops: list[str], list_of: Mapping[str, str], is_f16: bool) -> Iterator[dict[str, tuple[str, ...]]]:
    """Moves of one op to another list: towards float32 for a converted node, towards 16 bit for the others."""
    for op in ops:
        current = list_of.get(op, "")
        goals = ("deny", "") if is_f16 else ("clear", "infer", "allow", "")
        for goal in goals:
            if goal == current:
                continue
            change: dict[str, tuple[str, ...]] = {f"{current}_remove": (op,)} if current in LIST_NAMES else {}
            if goal:
                change[f"{goal}_add"] = (op,)
            if change:
                yield change


def _changed(config: AmpConfig, change: dict[str, tuple[str, ...]]) -> AmpConfig:
    return dataclasses.replace(config, **{field: (*getattr(config, field), *ops) for field, ops in change.items()})  # type: ignore[arg-type]
