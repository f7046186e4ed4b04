from __future__ import annotations

import pytest

from amp_tf.config import AmpConfig
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode
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


def test_where_nothing_is_converted_there_is_nothing_to_edit():
    assert plan(INPUT + "clr1 = Relu(x)")[1] == NO_EDITS


def test_without_a_target_there_is_nothing_to_edit():
    assert plan(INPUT + "allow1 = MatMul(x, x)", precision="auto", hardware=Hardware())[1] == NO_EDITS


def test_all_readers_of_a_port_share_one_cast():
    assert casts(INPUT + "a = MatMul(x, x)\nb = MatMul(x, a)") == {
        f"x-0-CastToFp16-0-{CAST_SUFFIX}": ["a:0", "a:1", "b:0"]
    }


def test_each_port_gets_a_cast_of_its_own():
    text = "d = Const() dtype=int32 value=int32[]*0\n" + INPUT
    text += "o = Sin(x)\ns = Split(d, o) num_split=2\nallow1 = MatMul(s:1, s)"
    assert casts(text, clear_remove=("Split",)) == {
        f"s-1-CastToFp16-0-{CAST_SUFFIX}": ["allow1:0"],
        f"s-0-CastToFp16-0-{CAST_SUFFIX}": ["allow1:1"],
    }


@pytest.mark.parametrize(("precision", "word"), [("float16", "CastToFp16"), ("bfloat16", "CastToBf16")])
def test_the_name_says_the_type_and_casts_back_say_float32(precision, word):
    assert list(casts(INPUT + "a = MatMul(x, x)\no = Sin(a)", precision=precision)) == [
        f"x-0-{word}-0-{CAST_SUFFIX}",
        f"a-0-CastToFp32-0-{CAST_SUFFIX}",
    ]


def test_a_name_that_is_taken_is_not_used_again():
    text = INPUT + f"a = MatMul(x, x)\nx-0-CastToFp16-0-{CAST_SUFFIX} = Sin(x)"
    assert list(casts(text)) == [f"x-0-CastToFp16-1-{CAST_SUFFIX}"]


def test_a_cast_says_from_which_type_to_which():
    _, edits = plan(INPUT + "a = MatMul(x, x)\no = Sin(a)")
    types = [tuple(cast.attributes.attr[name].type for name in ("SrcT", "DstT")) for cast in edits.new]
    assert types == [(1, 19), (19, 1)]


def test_a_reference_is_cast_like_its_value():
    assert casts("v = VariableV2() shape=[4, 4]\na = MatMul(v, v)") == {
        f"v-0-CastToFp16-0-{CAST_SUFFIX}": ["a:0", "a:1"]
    }


def test_control_inputs_get_no_cast():
    assert casts(INPUT + "a = MatMul(x, x)\nn = NoOp() ^a") == {f"x-0-CastToFp16-0-{CAST_SUFFIX}": ["a:0", "a:1"]}


@pytest.mark.usefixtures("local_rules")
def test_each_converted_type_gets_the_other_one():
    view, edits = plan(INPUT + "a = MatMul(x, x)\ni = IdentityN(a, x) T=[float32, float32]\no = Sin(i:1)")
    (retype,) = edits.retypes
    assert [(view.names[node], *place) for node, *place in retype.each()] == [("a", "T", -1), ("i", "T", 0)]
    assert retype.data_type == 19


@pytest.mark.usefixtures("local_rules")
def test_only_a_converted_node_is_renamed_to_its_successor():
    text = """
        x = Placeholder()
        c = Placeholder()
        a = Conv2D(x, x) padding='SAME' strides=[1, 1, 1, 1]
        f = FusedBatchNorm(a, c, c, c, c) is_training=false
        o = Sin(x)
        g = FusedBatchNorm(o, c, c, c, c) is_training=false
    """
    view, edits = plan(text)
    (reop,) = edits.reops
    assert (view.names[reop.node], reop.op) == ("f", "FusedBatchNormV2")
    assert {name: value.type for name, value in reop.attributes.items()} == {"U": 1}


def test_a_functions_arguments_and_results_are_cast_at_the_border():
    text = "function f(x: float32) -> (y: float32)\na = MatMul(x, x)\nreturn y = a:product:0"
    assert casts(text) == {
        f"x-0-CastToFp16-0-{CAST_SUFFIX}": ["a:0", "a:1"],
        f"a-0-CastToFp32-0-{CAST_SUFFIX}": ["f/y:0"],
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
