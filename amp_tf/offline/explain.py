"""Explains one node: its precision, the rule, how the decision came about, and what would change it.

Proposals are tried, not guessed: candidates, the narrowest first, are decided by the rewrite's own step
(:func:`amp_tf.rewriting.pipeline.decide`) under the changed configuration, and those that change the node's precision
are named. Graphs without shapes are not folded, here as in ``amp-tf rewrite``; a running program's graphs get theirs
from Grappler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from amp_tf.config import LIST_NAMES, AmpConfig, variable_of
from amp_tf.errors import OpListError
from amp_tf.graph.names import find_followers, matcher, missing_node, pattern_for
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.op_names import find_registered
from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.rewriting.form import Job
from amp_tf.rewriting.pipeline import check_arguments, decide, pause_garbage_collector, settle

_PATTERN_FIELDS = {Rule.KEPT_BY_NAME: "keep_float32", Rule.FORCED_BY_NAME: "force_f16"}
_NAME_A_TARGET = (
    "Nothing is converted here unless it is named. Explain it with --precision float16 --target gpu, as a GPU would "
    "run it, or with --precision bfloat16, as this CPU would."
)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is known of one node."""

    name: str  #: the node
    op: str
    new_op: str  #: the op that folding normalization turned it into; else ``op``
    op_list: str  #: the list that its op is on, empty for none
    precision: Precision  #: what its result is computed in
    reason: Reason  #: why
    #: names of the nodes along which the decision came, the node first; one name where the node decided alone
    trail: tuple[str, ...]
    patterns: tuple[str, ...]  #: the patterns of the configuration that decided, because its name matches them
    #: a pattern for this node, under all names that it may run under, that would change the decision, field of
    #: AmpConfig to patterns; empty where that does not change it
    own_change: dict[str, tuple[str, ...]]
    #: the list change that would change the decision, field of AmpConfig to ops; empty where none was found
    change: dict[str, tuple[str, ...]]
    matches: int = 1  #: how many nodes the pattern for this one finds
    #: why its library registered the op for the list; empty where none did, or a setting moved the op
    registered: str = ""

    def __str__(self) -> str:
        is_without_target = self.reason.rule is Rule.NO_TARGET  # so that no lists count
        listed = "" if is_without_target else f", on the {self.op_list} list" if self.op_list else ", on no list"
        op = self.op if self.new_op == self.op else f"{self.op}, folded to {self.new_op}"
        # An integer, a 16-bit type chosen by the user, or what was rewritten before: amp_tf does not decide its type.
        is_other = self.reason.rule in (Rule.NO_FLOAT32, Rule.ROUNDED_BEFORE)
        state = "is left as it is" if is_other else f"computes in {self.precision.value}"
        lines = [f"{self.name} ({op}{listed}) {state}: {self.reason}."]
        if is_without_target:
            return "\n".join([*lines, _NAME_A_TARGET])
        if self.registered:
            lines.append(f"The op was registered for that list because it {self.registered}.")
        if (balance := self.reason.balance) is not None:
            pair = balance.in_f16 / 1e3, balance.in_float32 / 1e3
            digits = next((many for many in (1, 2, 3) if len({f"{figure:.{many}f}" for figure in pair}) == 2), 1)
            in_f16, in_float32 = (f"{figure:.{digits}f} µs" for figure in pair)
            lines.append(
                f"The cost model expects {in_f16} in 16 bit, casts included, {in_float32} in float32, for all "
                "connected nodes that would be converted together; where nothing is gained, float32 stays, which "
                "rounds less. With a named precision (--precision, AMP_TF_PRECISION) nothing is weighed."
            )
        if len(self.trail) > 1:
            lines.append("The decision came along: " + " <- ".join(self.trail))
        return "\n".join([*lines, *([] if is_other else self._proposals())])

    def _proposals(self) -> list[str]:
        other = "float32" if self.precision.is_f16 else "16 bit"
        if self.patterns:
            field = _PATTERN_FIELDS[self.reason.rule]
            return [
                f"Its name matches {' and '.join(map(repr, self.patterns))} of {field} ({variable_of(field)}): "
                "drop that"
            ]
        if self.reason.rule is Rule.KEPT_BY_LOCK:
            return [f"Take it out of the lock file ({variable_of('lock')})"]
        if self.reason.rule in (Rule.KEPT_BY_SCOPE, Rule.FORCED_BY_SCOPE):
            return ["Take it out of the amp_tf.scope in which the model's code makes it"]
        lines = []
        if self.own_change:
            of_it = "it alone" if self.matches == 1 else f"it, one of {self.matches} nodes whose names match,"
            lines.append(f"This would turn {of_it} to {other}: {_setting(self.own_change)}")
        if self.change:
            lines.append(f"This would turn it to {other}, and all like it in the whole model: {_setting(self.change)}")
        return lines or [f"No change of one op's list, nor a pattern for its name, turns it to {other}."]


@pause_garbage_collector()
def explain(
    graph: Any,
    node_name: str,
    config: AmpConfig,
    *,
    preserve: tuple[str, ...] = (),
    hardware: Hardware | None = None,
    library: Any = None,
    where: str = "",
) -> Explanation:
    """Explains a node of a ``GraphDef`` or ``FunctionDef``, on the devices of ``hardware``, this machine's CPU by
    default.

    Normalization is folded where the nodes carry their shapes. For a FunctionDef, ``library`` has the functions that it
    calls. ``where`` is where the graph comes from, such as a file, for the error.

    Raises a GraphError where the graph has no node of that name, which names the closest ones, and an OpListError where
    a change of the lists names an op that TensorFlow does not know.
    """
    machine = Hardware.detect_cpu() if hardware is None else hardware
    names = check_arguments(graph, config, preserve, hardware, library, None)
    is_function = hasattr(graph, "node_def")
    job = Job.of(config, settle(config, machine), library if is_function else graph.library, names, has_preserved=True)
    form = job.form((read_function if is_function else read_graph)(graph, job.templates), None)

    def painted(changed: AmpConfig) -> Painting:
        trial = dataclasses.replace(job, config=changed, resolution=settle(changed, machine))
        return decide(dataclasses.replace(form, job=trial))[0].painting

    painting = painted(config)
    view = painting.view
    if node_name not in view.names:
        place = f"function {view.function!r}" if view.function else where or "graph"
        raise missing_node(node_name, view.names, place)
    node = view.names.index(node_name)
    is_f16 = node in painting.converted_nodes()

    target = job.resolution.target

    def first(changes: Iterable[dict[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
        """The first change of the configuration under which the node, looked up by name, has another precision."""
        for change in changes if target else ():
            fields: dict[str, Any] = {field: (*getattr(config, field), *names) for field, names in change.items()}
            with contextlib.suppress(OpListError):
                after = painted(dataclasses.replace(config, **fields))
                names = after.view.names
                if (node_name in names and names.index(node_name) in after.converted_nodes()) != is_f16:
                    return change
        return {}

    list_of: Mapping[str, str] = target.lists.list_of if target else {}
    trail, op, reason = painting.trail(node), view.ops[node], painting.reason(node)
    ops = dict.fromkeys([op, *(view.ops[before] for before in reversed(trail))])
    own_pattern = pattern_for(node_name, find_followers(graph))
    own: dict[str, tuple[str, ...]] = {"keep_float32" if is_f16 else "force_f16": (own_pattern,)}
    protos = graph.node_def if is_function else graph.node
    patterns = getattr(config, _PATTERN_FIELDS[reason.rule]) if reason.rule in _PATTERN_FIELDS else ()
    row = find_registered(op)
    return Explanation(
        name=node_name,
        op=next((str(item.op) for item in protos if item.name == node_name), op),
        new_op=op,
        op_list=list_of.get(op, ""),
        precision=painting.precision if is_f16 and painting.precision else Precision.FLOAT32,
        reason=reason,
        trail=tuple(view.names[before] for before in trail),
        patterns=tuple(each for each in patterns if matcher(each)(node_name)),
        own_change=first([own]),
        change=first(_candidates(list(ops), list_of, is_f16)),
        registered=row.why if row and list_of.get(op) == row.op_list else "",
        matches=sum(re.search(own_pattern, name) is not None for name in view.names),
    )


def _setting(change: Mapping[str, tuple[str, ...]]) -> str:
    fields = ", ".join(f"{field}={names!r}" for field, names in change.items())
    variables = " ".join(f"{variable_of(field)}={shlex.quote(','.join(names))}" for field, names in change.items())
    return f"AmpConfig({fields}), or {variables}"


def _candidates(ops: list[str], list_of: Mapping[str, str], is_f16: bool) -> Iterator[dict[str, tuple[str, ...]]]:
    """Moves of one op to another list: towards float32 for a converted node, towards 16 bit for others."""
    for op in ops:
        current = list_of.get(op, "")
        for goal in ("deny", "") if is_f16 else ("clear", "infer", "allow", ""):
            if goal and goal != current:
                yield {f"{goal}_add": (op,)}  # it then leaves its current list
            elif goal != current and current in LIST_NAMES:
                yield {f"{current}_remove": (op,)}
