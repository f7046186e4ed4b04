from __future__ import annotations

from amp_tf.config import AmpConfig
from amp_tf.graph.edits import Edits, NewNode
from amp_tf.graph.names import CAST_SUFFIX
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.rewriting.form import Job, plan_edits
from tests.painting.painted import painted
from tests.small_graphs import graph

INPUT = "x = Placeholder()\n"


def plan(text, **settings):
    painting = painted(text, **settings).painting
    return painting.view, plan_edits(painting)


def casts(text, **settings):
    """(name, readers as node:input) of each cast."""
    view, edits = plan(text, **settings)
    readers = {cast.name: [] for cast in edits.new}
    for rewire in edits.rewires:
        cast = edits.new[rewire.src_node - view.node_count]
        readers[cast.name].append(f"{view.names[rewire.node]}:{rewire.position}")
    return readers


def test_a_name_that_is_taken_is_not_used_again():
    text = INPUT + f"a = MatMul(x, x)\nx-0-CastToFp16-0-{CAST_SUFFIX} = Sin(x)"
    assert list(casts(text)) == [f"x-0-CastToFp16-1-{CAST_SUFFIX}"]


def test_a_reference_is_cast_like_its_value():
    assert casts("v = VariableV2() shape=[4, 4]\na = MatMul(v, v)") == {
        f"v-0-CastToFp16-0-{CAST_SUFFIX}": ["a:0", "a:1"]
    }


def test_what_three_paintings_leave_of_a_pass_is_kept():
    """Each painting takes one candidate more away."""
    view = read_graph(graph(INPUT + "a = MatMul(x, x)"), Templates())
    config = AmpConfig(precision="bfloat16")
    form = Job.of(config, resolve_target(config, Hardware())).form(view, None)

    def made(names):
        return form.then(Edits(new=tuple(NewNode.cast(name, (0, 0), "", of=1, to=1) for name in names)))

    def added(names):
        return form.settled(names, made, lambda _, wanted: wanted[:-1]).view.names[2:]

    assert (added("pqrst"), added("pqr")) == (["p", "q"], [])
