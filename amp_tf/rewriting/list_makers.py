"""Gives each TensorList an op that makes it, so that lists of different types do not stand in each other's way.

A list is a value: each op that adds to one gives a new one. TensorFlow's optimizers make one op of all that make empty
lists alike, as those in which a recurrent layer keeps gates, states and inputs for its gradient. All these lists would
have one type, float32 as soon as one of them must.

    before:  empty → PushBack of gates, empty → PushBack of states
    after:   empty → PushBack of gates, empty-0-AmpTfList → PushBack of states

Lists that become 16 bit, although others of the same op do not, get an op of their own; all others stay as they are.
Only in GraphDefs: functions, as they are traced, have an op for each list. It is dropped where nothing becomes 16 bit.
A second rewrite finds nothing to part.

Difference "shared-maker": TensorFlow's pass gives all these lists one type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import control_links
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, NewNode, Rewire
from amp_tf.graph.names import FreshNames
from amp_tf.oplists.table import TENSOR_LIST_MAKERS
from amp_tf.rewriting.form import Form, Job

SUFFIX = "AmpTfList"  #: ends the names of new nodes


def part_lists(form: Form, job: Job) -> Form:
    """Parts what becomes 16 bit by itself from what does not; the form itself where there is nothing of the kind.

    That shows when the graph is painted: as it is, and with an op for each list of those that stay in float32 so.
    """
    view = form.view
    shared = np.bincount(view.edges.src_node, minlength=view.node_count) > 1
    makers = np.flatnonzero(shared & view.mask_with(TENSOR_LIST_MAKERS)).tolist()
    if not makers or job.resolution.target is None:
        return form
    is_wide, kept = np.asarray(view.dtypes) == datatypes.FLOAT, job.obstacles(form).rule_of
    is_wide[job.paint(form).converted] = False
    makers = [node for node in makers if node not in kept and is_wide[view.units(node)].any()]
    readers = list(view.edges.at(np.isin(view.edges.src_node, makers)).rows("dst_node", "dst_position"))
    narrow = set(job.paint(_with_own_makers(form, job, readers)).converted_nodes()) if readers else ()
    own = [reader for maker, reader in enumerate(readers, view.node_count) if maker in narrow]
    return _with_own_makers(form, job, own)


def _with_own_makers(form: Form, job: Job, readers: Sequence[tuple[Node, int]]) -> Form:
    """Gives some readers of makers a maker of their own."""
    view, waits = form.view, control_links(form.view)
    name = FreshNames(view.names, SUFFIX)
    new: list[NewNode] = []
    for reader, position in readers:
        maker, _ = view.inputs(reader)[position]
        after = tuple(source for source, node in waits if node == maker)
        inputs = tuple(view.inputs(maker))
        new.append(NewNode.like(name.make(view.names[maker]), view, maker, inputs, after))
    rewires = (Rewire(*reader, maker, 0) for maker, reader in enumerate(readers, view.node_count))
    return form.then(Edits(rewires=tuple(rewires), new=tuple(new)), job.templates, {}) if new else form
