from __future__ import annotations

import pytest

from amp_tf.errors import GraphError
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.sizes import KnownShapes
from amp_tf.graph.templates import Templates
from tests.small_graphs import function, graph

BROKEN = ". The graph is broken; TensorFlow would refuse it too."


def read(text, *functions):
    made = graph(text, *functions)
    return read_graph(made, Templates(made.library))


def edges(view):
    """(source:port, reader, number of the reader's input) of each edge."""
    ends = view.edges
    names = view.names
    columns = (ends.src_node, ends.src_port, ends.dst_node, ends.dst_position)
    found = []
    for source, port, reader, position in zip(*columns, strict=True):
        found.append((f"{names[source]}:{port}", names[reader], position))
    return found


def test_a_graph_becomes_names_ops_devices_types_and_edges():
    view = read(
        """
        x = Placeholder()
        s = Split(d, x) num_split=2 @/device:CPU:0 ^x
        d = Const() dtype=int32 value=int32[]*0
        m = MatMul(s:1, s) T=float32
        """
    )
    assert view.function == ""
    assert view.names == ["x", "s", "d", "m"]
    assert view.ops == ["Placeholder", "Split", "Const", "MatMul"]
    assert view.devices == ["", "/device:CPU:0", "", ""]
    assert edges(view) == [("d:0", "s", 0), ("x:0", "s", 1), ("s:1", "m", 0), ("s:0", "m", 1)]
    for node, types in enumerate([[1], [3, 1], [3], [1]]):
        start = view.base[node]
        end = view.base[node + 1]
        assert view.dtypes[start:end].tolist() == types


def test_reading_leaves_the_graph_as_it_was():
    made = graph("x = Placeholder()\nr = LeakyRelu(x) T=float32\nf = FusedBatchNorm(x, x, x, x, x)")
    del made.node[1].attr["T"]  # a default that is not written down
    before = made.SerializeToString(deterministic=True)
    view = read_graph(made, Templates(None, {"FusedBatchNorm": ("FusedBatchNormV2", "U")}))
    assert view.dtypes[1] == 1
    assert made.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = Placeholder()\nx = Placeholder()", "node 'x': two nodes have this name"),
        ("r = Relu(x)", "node 'r': input 0 is 'x', which is not a tensor of this graph"),
        (
            "x = Placeholder()\nm = MatMul(x, x:)",
            "node 'm': input 1 is 'x:', which is not a tensor of this graph",
        ),
        (
            "x = Placeholder()\nr = Relu(x:one)",
            "node 'r': input 0 is 'x:one', which is not a tensor of this graph",
        ),
        (
            "x = Placeholder()\nr = Relu(x:1)",
            "node 'r': reads port 1 of 'x', which has 1 output(s)",
        ),
        (
            "n = NoOp()\nr = Relu(n)",
            "node 'r': reads port 0 of 'n', which has 0 output(s)",
        ),
        (
            "x = Placeholder()\nm = MatMul(x, x, x)",
            "node 'm': MatMul expects 2 data input(s) and has 3",
        ),
        ("m = MatMul()", "node 'm': MatMul expects 2 data input(s) and has 0"),
        ("n = NoOp() ^x", "node 'n': control input '^x' names no node of this graph"),
        (
            "x = Placeholder()\nr = Relu(x, ^x, x)",
            "node 'r': data input 'x' comes after a control input",
        ),
        (
            "x = Placeholder()\nr = Relu(x) T=float16",
            "node 'r': input 0 expects float16 and gets float32 from 'x'",
        ),
        (
            "x = Placeholder()\nm = MatMul(x, c)\nc = Cast(x) SrcT=float32 DstT=bfloat16",
            "node 'm': input 1 expects float32 and gets bfloat16 from 'c'",
        ),
        (
            "a = _Arg() T=float32_ref index=0",
            "node 'a': type attribute T is float32_ref, expected a type that is not a reference",
        ),
        (
            "o = Frobnicate()",
            "node 'o': op 'Frobnicate' is not registered in this TensorFlow and not in the "
            "graph's function library. "
            "Load the library that defines it (tf.load_op_library) first.",
        ),
        (
            "x = Placeholder()\na = AddN(x) N=-1",
            "node 'a': attribute 'N' of AddN is -1, expected 0 to 1048576. "
            "Export the graph again; this one cannot run in TensorFlow either.",
        ),
    ],
)
def test_a_broken_graph_is_refused_with_the_place(text, message):
    with pytest.raises(GraphError) as caught:
        read(text)
    if not message.endswith("."):
        message += BROKEN
    assert str(caught.value) == message


def test_a_missing_type_is_refused():
    made = graph("x = Placeholder()")
    del made.node[0].attr["dtype"]
    with pytest.raises(GraphError) as caught:
        read_graph(made, Templates())
    assert str(caught.value) == f"node 'x': type attribute dtype is missing{BROKEN}"


FUNCTION = """
    function f(x: float32, n: int32) -> (y: float32, z: float32)
      s = Split(n, x) num_split=2
      m = MatMul(s:output:1, s:output:0) ^x
      return y = m:product:0
      return z = x
"""


def read_text(text, *library):
    return read_function(function(text), Templates(graph("", *library).library))


def test_a_function_has_its_arguments_first_then_its_results_then_its_body():
    view = read_text(FUNCTION)
    assert view.function == "f"
    assert view.names == ["x", "n", "f/y", "f/z", "s", "m"]
    assert view.ops == ["_Arg", "_Arg", "_Retval", "_Retval", "Split", "MatMul"]
    assert [proto.name for proto in view.protos] == view.names
    assert edges(view) == [
        ("m:0", "f/y", 0),
        ("x:0", "f/z", 0),
        ("n:0", "s", 0),
        ("x:0", "s", 1),
        ("s:1", "m", 0),
        ("s:0", "m", 1),
    ]


@pytest.mark.parametrize("argument", ["x", "x:0"])
@pytest.mark.parametrize("result", ["r:activations", "r:activations:0"])
def test_an_argument_and_a_result_may_be_named_with_and_without_a_number(argument, result):
    view = read_text(
        f"function f(x: float32) -> (y: float32)\nr = Relu({argument})\nreturn y = {result}"
    )
    assert edges(view) == [("r:0", "f/y", 0), ("x:0", "r", 0)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "r = Relu(z)\nreturn y = x",
            "function 'f', node 'r': input 0 is 'z', which is not a tensor",
        ),
        (
            "r = Relu(x)\nreturn y = r",
            "function 'f', node 'f/y': input 0 is 'r', which is not a tensor",
        ),
        (
            "r = Relu(x)\nreturn y = r:0",
            "function 'f', node 'f/y': input 0 is 'r:0', which is not a tensor",
        ),
        (
            "r = Relu(x)\nreturn y = r:wrong:0",
            "function 'f', node 'f/y': input 0 is 'r:wrong:0', which is not a tensor",
        ),
        (
            "r = Relu(x)\nreturn y = r:activations:1",
            "function 'f', node 'f/y': input 0 is 'r:activations:1', which is not a tensor",
        ),
        ("n = NoOp()", "function 'f': result 'y' has no tensor"),
    ],
)
def test_a_broken_function_is_refused_with_function_and_node(body, message):
    with pytest.raises(GraphError) as caught:
        read_text(f"function f(x: float32) -> (y: float32)\n{body}")
    assert str(caught.value).startswith(message)


def test_a_function_whose_types_each_call_chooses_is_refused():
    made = function(FUNCTION)
    made.signature.input_arg[0].type_attr = "T"
    with pytest.raises(GraphError) as caught:
        read_function(made, Templates())
    assert str(caught.value) == (
        "function 'f': argument 'x' has a type that each call chooses. "
        "Instantiate the function for one set of types first."
    )


def test_a_function_may_call_another():
    called = function(
        "function g(x: float32) -> (a: float32, b: float32)\nreturn a = x\nreturn b = x"
    )
    view = read_text("function f(x: float32) -> (y: float32)\nc = g(x)\nreturn y = c:b:0", called)
    assert edges(view) == [("c:1", "f/y", 0), ("x:0", "c", 0)]


def test_an_argument_of_a_reference_type_or_of_none_is_refused():
    for data_type, name in ((101, "float32_ref"), (0, "invalid")):
        made = function("function f(x: float32) -> (y: float32)\nreturn y = x")
        made.signature.input_arg[0].type = data_type
        with pytest.raises(GraphError) as caught:
            read_function(made, Templates())
        assert str(caught.value) == (
            f"function 'f': an argument or result of f has type {name}, which none can have. "
            "Export the graph again; this one cannot run in TensorFlow either."
        )
        with pytest.raises(GraphError, match=r"^node 'c': an argument or result of f has type"):
            read("x = Placeholder()\nc = f(x)", made)


def test_a_name_with_control_characters_is_refused():
    made = graph("first = Placeholder()\nsec\0nd = Placeholder()")
    with pytest.raises(
        GraphError, match=r"node 'sec\\x00nd': the name .* holds control characters"
    ):
        read_graph(made, Templates())


def test_an_argument_has_the_attributes_that_its_function_gives_it():
    made = function(FUNCTION)
    shape = made.arg_attr[0].attr["_output_shapes"].list.shape.add()
    shape.dim.add().size = 3
    before = made.SerializeToString(deterministic=True)
    view = read_function(made, Templates())
    assert KnownShapes.of_nodes(view).output_shapes("x") == [(3,)]
    assert [proto.attr["index"].i for proto in view.protos[:2]] == [0, 1]
    assert made.SerializeToString(deterministic=True) == before


def test_control_inputs_are_edges_of_their_own():
    view = read("x = Placeholder()\nr = Relu(x) ^x\ns = Relu(r) ^x ^r")
    assert view.controls.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert view.awaited(2) == [0, 1]
    assert [ends.tolist() for ends in view.links] == [[0, 1, 0, 0, 1], [1, 2, 1, 2, 2]]
    assert read_text(FUNCTION).controls.tolist() == [[0, 5]]
