"""Which nodes of a step are looked at."""

import pytest
import tensorflow as tf

from amp_tf.tools.comparing.flattening import FlatStep
from amp_tf.tools.comparing.joining import AMP, FLOAT32, join
from amp_tf.tools.comparing.nodes import probe
from tests.cpu.test_folding import BLOCK
from tests.cpu.test_lifting import DENSE
from tests.rewriting.rewritten import rewrite
from tests.small_graphs import graph

BEHIND = """
    w3 = Placeholder() shape=[3, 3, 16, 64]
    fetch = Conv2D(act, w3) padding='SAME' strides=[1, 1, 1, 1]
"""


def _probes(proto, rewritten):
    """The names of the nodes that are looked at."""
    feeds = tuple(node.name for node in proto.node if node.op == "Placeholder")
    step = FlatStep(proto, feeds, {}, {}, ("fetch:0",), (), is_compiled=False)
    with tf.Graph().as_default() as joint:
        tf.import_graph_def(join(step, {FLOAT32: proto, AMP: rewritten}), name="")
    return {found.name for found in probe(step, rewritten, joint, wanted=".")}


@pytest.mark.parametrize(
    ("text", "moved", "others"),
    [
        (DENSE, {"back"}, {"product", "biased", "act", "sum"}),
        (BLOCK.replace("    fetch = Identity(act)\n", BEHIND), {"conv", "scaled", "shifted"}, {"act"}),
    ],
    ids=["lifting", "folding"],
)
def test_a_node_that_gives_other_values_since_it_was_moved_is_not_looked_at(text, moved, others):
    """A reshaping comes after its bias then; a convolution gives scaled values, of which a sum became a BiasAdd."""
    proto = graph(text)
    assert _probes(proto, proto) >= moved | others
    found = _probes(proto, rewrite(proto).graph)
    assert found >= others
    assert not found & moved
