from __future__ import annotations

from amp_tf.graph import editor
from amp_tf.graph.plan import EditPlan, NewCast, Rename, Retypes
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.serialized import SerializedGraph
from amp_tf.graph.templates import Templates
from amp_tf.graph.text import to_text
from amp_tf.graph.wire import TypePlaces
from amp_tf.oplists.table import SUCCESSORS
from tests.small_graphs import function, graph

FLOAT, HALF = 1, 19


def edit(text, make_plan, apply=editor.apply_to_graph, read=read_graph, made=graph):
    """The text of a graph after a plan, which is made from the numbers of the nodes by name."""
    proto = made(text)
    view = read(proto, Templates(None, SUCCESSORS))
    protos = proto if read is read_function else proto.node
    apply(protos, view, make_plan({name: number for number, name in enumerate(view.names)}))
    return to_text(proto)


def edit_function(text, make_plan):
    return edit(text, make_plan, editor.apply_to_function, read_function, function)


def test_an_empty_plan_changes_nothing_and_is_false():
    text = "x = Placeholder() dtype=float32 shape=[]\n"
    assert edit(text, lambda n: EditPlan()) == text
    assert not EditPlan()


def test_any_edit_makes_a_plan_true():
    assert EditPlan(retypes=Retypes([0], [0], HALF))
    assert EditPlan(renames=(Rename(0, "A", "T", FLOAT),))
    assert EditPlan(casts=(NewCast("c", 0, 0, FLOAT, HALF, ((1, 0),)),))


def test_a_single_type_and_an_entry_of_a_list_get_another_type():
    text = "x = Placeholder()\ni = IdentityN(x, x) T=[float32, float32]"
    plan = lambda n: EditPlan(retypes=Retypes([n["x"], n["i"]], [0, 1], HALF))  # noqa: E731
    assert edit(text, plan) == "x = Placeholder() dtype=float16\ni = IdentityN(x, x) T=[float32, float16]\n"


IN_PLACE = """
    x = Placeholder() dtype=float32
    m = MatMul(x, x)
    i = IdentityN(x, m, x) T=[float32, float32, float32]
    f = FusedBatchNorm(x, x, x, x, x)
"""


def retype_in_place(made, edits):
    """The graph once as much as possible was changed in place, and the (node, slot) pairs that are left."""
    whole = SerializedGraph(made.SerializeToString())
    view = read_graph(whole, Templates(None, SUCCESSORS))
    nodes = {name: number for number, name in enumerate(view.names)}
    plan = EditPlan(retypes=Retypes([nodes[name] for name, _ in edits], [slot for _, slot in edits], HALF))
    changed, left = editor.retype_in_place(whole.node, view, plan)
    assert list(whole.node) == list(made.node)
    return type(made)(node=changed), [(view.names[edit.node], edit.slot) for edit in left.retypes]


def test_types_are_changed_in_place_as_in_protos():
    made = graph(IN_PLACE)
    edits = [("x", 0), ("m", 0), ("i", 0), ("i", 2)]
    changed, left = retype_in_place(made, edits)
    assert left == []
    made.node[0].attr["dtype"].type = made.node[1].attr["T"].type = HALF
    made.node[2].attr["T"].list.type[0] = made.node[2].attr["T"].list.type[2] = HALF
    assert changed == type(made)(node=made.node)


def test_a_type_that_is_not_written_is_left_for_the_editor():
    made = graph(f"{IN_PLACE}\np = MaxPool(x) ksize=[1, 2, 2, 1] strides=[1, 2, 2, 1] padding='SAME'")
    changed, left = retype_in_place(made, [("x", 0), ("f", 1), ("p", 0)])  # f is looked at as its successor, with U
    assert left == [("f", 1), ("p", 0)]
    made.node[0].attr["dtype"].type = HALF
    assert changed == type(made)(node=made.node)


def test_a_list_in_which_a_type_takes_two_bytes_is_left_for_the_editor():
    made = graph(IN_PLACE)
    made.node[2].attr["T"].list.type[1] = 200
    found = SerializedGraph(made.SerializeToString()).node
    places = TypePlaces([2, 2], [0, 0], [0, 2], ["T"])
    changed, is_changed = found.with_types(places, HALF)
    assert list(changed) == list(made.node)
    assert is_changed.tolist() == [False, False]


def test_a_renamed_op_gets_the_type_attribute_of_its_successor():
    text = "x = Placeholder()\nf = FusedBatchNorm(x, x, x, x, x)"
    plan = lambda n: EditPlan(renames=(Rename(n["f"], "FusedBatchNormV2", "U", FLOAT),))  # noqa: E731
    assert edit(text, plan).splitlines()[1] == "f = FusedBatchNormV2(x, x, x, x, x) T=float32 U=float32"


def test_a_cast_stands_on_its_sources_device_and_serves_all_its_readers():
    text = """
        x = Placeholder() @/device:CPU:0
        m = MatMul(x, x) ^x
        r = Relu(x)
    """
    plan = lambda n: EditPlan(  # noqa: E731
        casts=(NewCast("cast", n["x"], 0, FLOAT, HALF, ((n["m"], 0), (n["m"], 1))),)
    )
    assert edit(text, plan).splitlines() == [
        "x = Placeholder() dtype=float32 @/device:CPU:0",
        "m = MatMul(cast, cast) T=float32 ^x",
        "r = Relu(x) T=float32",
        "cast = Cast(x) DstT=float16 SrcT=float32 Truncate=false @/device:CPU:0",
    ]


def test_a_cast_after_a_later_port_names_the_port():
    text = "d = Const() dtype=int32 value=int32[]*0\nx = Placeholder()\ns = Split(d, x) num_split=2\nr = Relu(s:1)"
    plan = lambda n: EditPlan(casts=(NewCast("cast", n["s"], 1, FLOAT, HALF, ((n["r"], 0),)),))  # noqa: E731
    assert edit(text, plan).splitlines()[3:] == [
        "r = Relu(cast) T=float32",
        "cast = Cast(s:1) DstT=float16 SrcT=float32 Truncate=false",
    ]


def test_in_a_function_a_cast_goes_between_argument_node_and_result_and_the_signature_stays():
    text = """
        function f(x: float32) -> (y: float32, z: float32)
          m = MatMul(x, x)
          r = Relu(x)
          return y = m:product:0
          return z = m:product:0
    """
    plan = lambda n: EditPlan(  # noqa: E731
        retypes=Retypes([n["m"]], [0], HALF),
        casts=(
            NewCast("down", n["x"], 0, FLOAT, HALF, ((n["m"], 0), (n["m"], 1))),
            NewCast("up", n["m"], 0, HALF, FLOAT, ((n["f/y"], 0), (n["f/z"], 0))),
        ),
    )
    assert edit_function(text, plan).splitlines() == [
        "function f(x: float32) -> (y: float32, z: float32)",
        "  m = MatMul(down:y:0, down:y:0) T=float16",
        "  r = Relu(x) T=float32",
        "  down = Cast(x) DstT=float16 SrcT=float32 Truncate=false",
        "  up = Cast(m:product:0) DstT=float32 SrcT=float16 Truncate=false",
        "  return y = up:y:0",
        "  return z = up:y:0",
    ]
