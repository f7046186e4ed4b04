from __future__ import annotations

import pytest

from amp_tf.graph import editor
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode, Reop, Rewire, Wait, attribute, having
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.oplists.table import SUCCESSORS
from tests.graph_text import to_text
from tests.small_graphs import function, graph

FLOAT = 1
HALF = 19


def numbers_of(view):
    return {name: number for number, name in enumerate(view.names)}


def retype(view, *places):
    """The edit by which some types, told by (node, slot), become float16."""
    nodes = numbers_of(view)
    units = []
    for name, slot in places:
        units.append(view.base[nodes[name]] + slot)
    return view.retyped(units, HALF)


def edit(text, plan):
    """The text of a graph after edits, which are made from its view and the numbers of its nodes by
    name.
    """
    before = graph(text)
    view = read_graph(before, Templates(None, SUCCESSORS))
    edits = plan(view, numbers_of(view))
    written = editor.apply_to_graph(before, view.names, edits)
    shown = editor.EditedNodes(before.node, view.names, edits)
    assert list(shown) == list(written.node), "what is shown is not what is written"
    assert before == graph(text), "what came in was changed"
    return to_text(written)


def edit_function(text, plan):
    proto = function(text)
    templates = Templates(None, SUCCESSORS)
    view = read_function(proto, templates)
    edits = plan(view, numbers_of(view))
    after = view.after(edits, templates)
    result = editor.apply_to_function(proto, view, edits, after.signatures)
    written = read_function(result, templates)
    assert list(written.names) == list(after.names)
    for column in ("src_node", "src_port", "dst_node", "dst_position"):
        mine = getattr(written.edges, column)
        other = getattr(after.edges, column)
        assert mine.tolist() == other.tolist()
    assert proto == function(text), "what came in was changed"
    return to_text(result)


def cast(name, source, device="", *, of=FLOAT, to=HALF):
    return NewNode.cast(name, source, device, of=of, to=to)


def test_library_and_versions_stay_as_they_are():
    body = "function g(x: float32) -> (y: float32)\nr = Relu(x)\nreturn y = r:activations:0"
    before = graph("x = Placeholder()\nr = Relu(x)", function(body))
    before.versions.producer = 7
    after = editor.apply_to_graph(before, ["x", "r"], Edits(waits=(Wait(1, 0),)))
    assert list(after.node[1].input) == ["x", "^x"]
    assert list(before.node[1].input) == ["x"]
    assert after.library == before.library
    assert after.versions == before.versions
    assert editor.apply_to_graph(before, ["x", "r"], NO_EDITS) == before


def test_another_op_comes_before_other_types_of_its_attributes():
    text = "x = Placeholder()\nf = FusedBatchNorm(x, x, x, x, x)"

    def plan(view, n):
        reop = Reop(
            n["f"], "FusedBatchNormV2", {"U": attribute(type=FLOAT), "T": attribute(type=FLOAT)}
        )
        return Edits((reop,), (retype(view, ("f", 0)),))

    assert (
        edit(text, plan).splitlines()[1]
        == "f = FusedBatchNormV2(x, x, x, x, x) T=float16 U=float32"
    )


def test_an_attribute_may_be_taken_away_and_one_that_is_not_there_too():
    text = "x = Placeholder()\ns = AddN(x, x) N=2 _mark='a'"
    attributes = {"N": None, "_gone": None, "data_format": attribute(s=b"NHWC")}
    found = edit(text, lambda view, n: Edits((Reop(n["s"], "BiasAdd", attributes),)))
    assert found.splitlines()[1] == "s = BiasAdd(x, x) T=float32 _mark='a' data_format='NHWC'"


def test_of_two_edits_of_one_input_the_later_counts_and_waits_add_up():
    text = "x = Placeholder()\ny = Placeholder()\nz = Placeholder()\nr = Relu(x) ^x"

    def plan(view, n):
        rewires = []
        waits = []
        for source in (n["y"], n["z"]):
            rewires.append(Rewire(n["r"], 0, source, 0))
            waits.append(Wait(n["r"], source))
        return Edits(rewires=tuple(rewires), waits=tuple(waits))

    assert edit(text, plan).splitlines()[3] == "r = Relu(z) T=float32 ^x ^y ^z"


def test_edited_nodes_are_looked_at_by_number():
    before = graph("x = Placeholder()\nr = Relu(x) _mark='a'\ns = Relu(r)")
    nodes = before.node
    reop = Reop(2, "Relu", {"_mark": attribute(s=b"b")})
    edits = Edits((reop,), new=(cast("c", (0, 0)),))
    shown = editor.EditedNodes(nodes, ["x", "r", "s"], edits)
    assert len(shown) == 4
    assert shown[1] == before.node[1]
    assert shown[2].attr["_mark"].s == b"b"
    assert "_mark" not in nodes[2].attr
    assert [node.name for node in list(shown)[1:]] == ["r", "s", "c"]
    with pytest.raises(IndexError):
        shown[4]


def test_in_a_function_a_cast_goes_between_argument_node_and_result_and_the_signature_stays():
    text = """
        function f(x: float32) -> (y: float32, z: float32)
          m = MatMul(x, x)
          r = Relu(x)
          return y = m:product:0
          return z = m:product:0
    """

    def plan(view, n):
        down = view.node_count
        up = view.node_count + 1
        product = n["m"]
        rewires = (
            Rewire(product, 0, down, 0),
            Rewire(product, 1, down, 0),
            Rewire(n["f/y"], 0, up, 0),
            Rewire(n["f/z"], 0, up, 0),
        )
        casts = (cast("down", (n["x"], 0)), cast("up", (product, 0), of=HALF, to=FLOAT))
        return Edits(retypes=(retype(view, ("m", 0)),), rewires=rewires, new=casts)

    assert edit_function(text, plan).splitlines() == [
        "function f(x: float32) -> (y: float32, z: float32)",
        "  m = MatMul(down:y:0, down:y:0) T=float16",
        "  r = Relu(x) T=float32",
        "  down = Cast(x) DstT=float16 SrcT=float32 Truncate=false",
        "  up = Cast(m:product:0) DstT=float32 SrcT=float16 Truncate=false",
        "  return y = up:y:0",
        "  return z = up:y:0",
    ]


def test_in_a_function_a_tensor_is_named_by_its_output_and_its_number_there():
    text = """
        function f(x: float32, d: int32) -> (y: float32)
          s = Split(d, x) num_split=3
          t = TopKV2(x, d) T=float32 Tk=int32 index_type=int32
          return y = s:output:2
    """

    def plan(view, n):
        of_part = cast("a", (n["s"], 2))
        of_indices = cast("b", (n["t"], 1), of=3)
        of_argument = cast("c", (n["x"], 0))
        return Edits(new=(of_part, of_indices, of_argument))

    assert edit_function(text, plan).splitlines()[3:-1] == [
        "  a = Cast(s:output:2) DstT=float16 SrcT=float32 Truncate=false",
        "  b = Cast(t:indices:0) DstT=float16 SrcT=int32 Truncate=false",
        "  c = Cast(x) DstT=float16 SrcT=float32 Truncate=false",
    ]


def test_in_a_function_readers_follow_a_node_whose_outputs_get_other_names():
    text = """
        function f(x: float32, b: float32) -> (y: float32, z: float32)
          s = AddV2(x, b)
          r = Relu(s:z) ^s
          m = Mul(s:z:0, r:activations:0)
          return y = s:z:0
          return z = m:z:0
    """

    def plan(view, n):
        types = having(T=attribute(type=FLOAT))
        half = NewNode("half", "Mul", "", ((n["b"], 0), (n["r"], 0)), (n["m"],), types)
        new = view.node_count
        output = {"data_format": attribute(s=b"NHWC")}
        biased = Reop(n["s"], "BiasAdd", output)
        rewires = (Rewire(n["s"], 1, new, 0), Rewire(n["f/z"], 0, new, 0))
        return Edits(reops=(biased,), rewires=rewires, new=(half,))

    assert edit_function(text, plan).splitlines()[1:] == [
        "  s = BiasAdd(x, half:z:0) T=float32 data_format='NHWC'",
        "  r = Relu(s:output:0) T=float32 ^s",
        "  m = Mul(s:output:0, r:activations:0) T=float32",
        "  half = Mul(b, r:activations:0) T=float32 ^m",
        "  return y = s:output:0",
        "  return z = half:z:0",
    ]
