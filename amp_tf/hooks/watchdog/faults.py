"""Finds the layers at fault in a batch that goes wrong in 16 bit, by comparing it with float32 node by node.

The comparison runs on copies of the variables, on one device, each replica's part of the batch as a batch of its own.
It names nodes; a lock has layers, which are found again after a trace. Of a layer, all nodes and gradients stay in
float32. Where the comparison fails or finds nothing, it is all layers: no
step is lost for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from amp_tf.comparing.comparison import Comparison, why
from amp_tf.comparing.pipeline import compare
from amp_tf.config import AmpConfig
from amp_tf.graph.layers import is_gradient, is_within, path_of
from amp_tf.hooks.comparison.fit import as_step
from amp_tf.hooks.process import devices
from amp_tf.lock import Decision, Layer
from amp_tf.reporting import process


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is to stay in float32 from now on.

    Attributes:
        decisions: for the lock; none where nothing was found.
        why: which tensor went wrong and how, for people.
    """

    decisions: tuple[Decision, ...] = ()
    why: str = ""

    def to_plain(self) -> dict[str, Any]:
        """The fault as plain data, for other workers."""
        return {"decisions": [one.to_row() for one in self.decisions], "why": self.why}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Fault:
        """The fault that another worker found."""
        return cls(tuple(map(Decision.of_row, plain["decisions"])), plain["why"])


def together(faults: Sequence[Fault]) -> Fault:
    """One fault of several workers' ones; the decisions by name, so that all workers have them in one order."""
    decisions = {one.name: one for fault in faults for one in fault.decisions}
    reasons = dict.fromkeys(fault.why for fault in faults if fault.decisions)
    return Fault(tuple(decisions[name] for name in sorted(decisions)), "; ".join(reasons))


def find_fault(model: Any, parts: Sequence[Any], owner: Any, config: AmpConfig, is_finite: bool) -> Fault:
    """The layers at fault.

    Args:
        model: of Keras or tf_keras, whose variables are those from which the step went wrong.
        parts: the batch, each replica's part.
        owner: the class that has the library's own ``train_step``.
        config: the settings in force; what their lock file keeps in float32 is not at fault.
        is_finite: whether all that is wrong is the loss.
    """
    import tensorflow as tf

    strategy = model.distribute_strategy
    try:
        subject, batches, _ = as_step(model, parts, owner)
        asked: dict[str, Any] = {"steps": len(batches), "hardware": devices.hardware()}
        if strategy.num_replicas_in_sync == 1:
            comparison = compare(subject, batches, config, **asked)
        else:
            with tf.distribute.ReplicaContext(strategy, 0):  # the model is called as on a replica
                comparison = compare(subject, batches, config, **asked)
    except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
        return Fault(why=f"the comparison failed ({type(error).__name__}: {error})")
    return fault_of(comparison, known_layers(), is_finite)


def fault_of(comparison: Comparison, layers: Mapping[str, Layer], is_finite: bool) -> Fault:
    """The layers at fault by a comparison of the batch.

    A comparison mends all outputs, and what is not finite but a part of that: there it is the layer of the finding that
    helps most. Where another one is at fault as well, the step goes wrong again, and is compared again.

    Args:
        comparison: of the batch at fault.
        layers: the program's, by their paths.
        is_finite: whether all that is wrong is the loss.
    """
    found = comparison.findings if is_finite else comparison.findings[:1]
    reasons: dict[str, str] = {}
    for one in found:
        reason = f"{one.kind} at {one.node} ({one.op}): {why(one, comparison.precision)}"
        reasons.setdefault(_layer_of(one.node, layers), reason)
    decisions = (Decision(layers.get(path, Layer(path)), why=reason) for path, reason in reasons.items())
    return Fault(tuple(decisions), "; ".join(list(reasons.values())[:1]))


def known_layers() -> dict[str, Layer]:
    """The layers of the graphs that this process converted, by their paths."""
    graphs = process.report().graphs
    return {layer.path: layer for graph in graphs if graph.converted for layer in graph.painting.locked.layers}


def everything(known: Collection[str], why: str) -> Fault:
    """All layers that are not locked yet: what is left where it is not known which of them is at fault.

    Args:
        known: the names of those that are.
        why: what is known all the same.
    """
    reason = f"which layer is at fault was not found{f': {why}' if why else ''}"
    rest = (layer for path, layer in sorted(known_layers().items()) if path not in known)
    return Fault(tuple(Decision(layer, why=reason) for layer in rest), reason)


def _layer_of(name: str, layers: Mapping[str, Layer]) -> str:
    """The innermost of the program's layers that a node belongs to, or its own scope."""
    path = path_of(name)
    if path in layers and not is_gradient(name):
        return path
    return max((known for known in layers if is_within(name, known)), key=len, default=path)
