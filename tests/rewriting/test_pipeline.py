from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import ConfigError, GraphError, RewriteError
from amp_tf.graph.edits import Edits, NewNode
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.form import Job
from tests.golden import check_golden
from tests.graph_text import to_text
from tests.small_graphs import function, graph, run, types_of

BF16_CPU = Hardware(cpu_has_bf16=True)
BF16 = amp_tf.AmpConfig(precision="bfloat16")
F16 = amp_tf.AmpConfig(precision="float16")

CHAIN = """
    x = Placeholder() shape=[4, 4]
    deny1 = Exp(x)
    clr1 = Relu(deny1)
    allow1 = MatMul(clr1, x) transpose_b=true
    infer1 = Tanh(allow1) ^deny1
    other1 = Asinh(infer1)
    fetch = Identity(other1)
"""
REFERENCE = """
    x = Placeholder()
    v = VariableV2() shape=[4, 4]
    set = Assign(v, x)
    again = AssignAdd(v, x) ^set
    early = MatMul(x, v)
    first = MatMul(x, v) ^set
    second = MatMul(x, v) ^set
    late = MatMul(x, v) ^again
    fetch = AddN(early, first, second, late)
"""
FUNCTION = """
    function f(x: float32, w: float32) -> (y: float32, z: float32)
      m = MatMul(x, w)
      r = Relu(m:product:0)
      s = Asinh(r:activations:0)
      return y = r:activations:0
      return z = s:y:0
"""
WITHOUT_PRODUCT = FUNCTION.replace("MatMul", "AddV2").replace("m:product:0", "m:z:0")


def rewrite(proto, config=BF16, **arguments):
    return amp_tf.rewrite(proto, config, hardware=BF16_CPU, **arguments)


GOLDEN = {
    "chain": CHAIN,
    "shared_cast": """
        x = Placeholder() shape=[4, 4]
        axis = Const() dtype=int32 value=int32[]*0
        a = MatMul(x, x)
        b = MatMul(a, x)
        s = Split(axis, b) num_split=2
        o1 = Asinh(s)
        o2 = Atan(s)
        o3 = Asinh(s:1)
    """,
    "batch_norm": """
        x = Placeholder() shape=[1, 4, 4, 2]
        w = Const() dtype=float32 value=float32[2, 2, 2, 2]
        c = Const() dtype=float32 value=float32[2]
        a = Conv2D(x, w) padding='SAME' strides=[1, 1, 1, 1]
        n = FusedBatchNorm(a, c, c, c, c) epsilon=0.001 is_training=false
        b = Conv2D(n, w) padding='SAME' strides=[1, 1, 1, 1]
        fetch = Asinh(b)
    """,
    "devices": """
        x = Placeholder() shape=[4, 4] @/device:CPU:0
        a = MatMul(x, x) @/device:CPU:0
        g = MatMul(x, x) @/device:GPU:0
        o = Asinh(a) @/device:GPU:0
    """,
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("config", [F16, BF16], ids=lambda config: config.precision)
def test_a_rewritten_graph_is_the_golden_one(name, config):
    result = rewrite(graph(GOLDEN[name]), config)
    report = result.report
    counts = f"# {report.converted} of {report.total} nodes converted, {report.casts} casts\n"
    check_golden(f"{name}.{config.precision}", counts + to_text(result.graph))


def test_a_rewritten_function_is_the_golden_one():
    result = rewrite(function(FUNCTION))
    check_golden("function.bfloat16", f"# {result.report.casts} casts\n" + to_text(result.graph))


@pytest.mark.parametrize(
    "proto",
    [
        graph("x = Placeholder()\nr = Relu(x)", function(WITHOUT_PRODUCT)),
        graph(""),
        function(WITHOUT_PRODUCT),
    ],
    ids=["graph", "empty", "function"],
)
def test_where_nothing_is_painted_the_output_is_the_input_itself(proto):
    result = rewrite(proto)
    assert result.graph is proto
    assert not result.changed


@pytest.mark.parametrize(
    "config", [F16, BF16, amp_tf.AmpConfig(precision="bfloat16", level="UNSAFE_FORCE_ALL")]
)
def test_a_second_rewrite_changes_nothing(config):
    for proto in (graph(CHAIN, function(FUNCTION)), function(FUNCTION)):
        once = rewrite(proto, config)
        twice = rewrite(once.graph, config)
        assert twice.graph is once.graph
        assert twice.report.converted == twice.report.casts == 0
        for first, second in zip(once.report.graphs, twice.report.graphs, strict=True):
            assert second.is_revisit == (first.casts > 0)


def test_preserve_names_nodes_of_the_graph_and_not_of_its_functions():
    before = graph("x = Placeholder()\nm = MatMul(x, x)", function(FUNCTION))
    result = rewrite(before, preserve=["m"])
    of_graph, of_function = result.report.graphs
    assert of_graph.converted == 0
    assert of_function.converted == 2


def test_the_memory_of_functions_is_weighed_like_that_of_graphs():
    """Arguments and results of functions are no NodeDefs, and count where amp_tf chooses."""
    result = rewrite(graph(CHAIN, function(FUNCTION)), amp_tf.AmpConfig(goal="memory"))
    assert [report.function for report in result.report.graphs] == ["", "f"]


def test_functions_of_the_library_stay_if_the_caller_says_so():
    before = graph(CHAIN, function(FUNCTION))
    result = rewrite(before, functions=False)
    assert result.graph.library == before.library
    assert len(result.report.graphs) == 1


def test_a_function_whose_types_each_call_chooses_is_left_alone():
    made = function(FUNCTION)
    made.signature.attr.add(name="T", type="type")
    made.signature.input_arg[0].type_attr = "T"
    before = graph(CHAIN, made)
    assert rewrite(before).graph.library == before.library


def test_a_function_finds_what_it_calls_in_the_library_that_is_passed():
    called = function("function g(x: float32) -> (y: float32)\nreturn y = x")
    caller = function(
        "function f(x: float32) -> (y: float32)\nm = MatMul(x, x)\nc = g(m:product:0)\nreturn y = "
        "c:y:0"
    )
    result = rewrite(caller, library=graph("", called).library)
    assert types_of_function(result.graph, "m") == "bfloat16"
    assert result.report.casts == 2
    with pytest.raises(GraphError, match="function 'f', node 'c': op 'g' is not registered"):
        rewrite(caller)


def test_a_body_node_may_be_named_like_a_result():
    made = function(
        "function f(x: float32) -> (y: float32)\nf/y = MatMul(x, x) @/device:CPU:0\nreturn y = "
        "f/y:product:0"
    )
    assert types_of_function(rewrite(made).graph, "f/y") == "bfloat16"


def test_the_environment_is_the_default_configuration(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    result = amp_tf.rewrite(graph(CHAIN), hardware=BF16_CPU)
    assert types_of(result.graph, "clr1") == {"T": "float16"}


def test_a_bad_environment_is_refused(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "fp8")
    with pytest.raises(ConfigError, match=r"^AMP_TF_PRECISION: 'fp8'"):
        amp_tf.rewrite(graph(CHAIN))


@pytest.mark.parametrize("thing", ["graph.pb", None, 3, tf.function(abs)])
def test_what_is_no_graph_is_refused_with_what_it_is(thing):
    with pytest.raises(GraphError) as caught:
        rewrite(thing)
    assert str(caught.value) == (
        "rewrite(graph): expected a GraphDef, FunctionDef, tf.Graph or concrete function, got "
        f"{type(thing).__name__}. "
        "A tf.function gives one with get_concrete_function(…); convert_saved_model converts "
        "models."
    )


def test_a_concrete_function_and_a_graph_are_taken_as_their_graph_def():
    weights = tf.Variable(tf.ones((4, 4)))
    traced = tf.function(lambda x: {"y": tf.matmul(tf.nn.relu(x), weights)})
    made = traced.get_concrete_function(tf.TensorSpec((4, 4)))
    result = rewrite(made)
    (product,) = result.report.nodes.where(op="MatMul")
    assert product.precision.is_f16
    assert types_of(result.graph, "Relu")["T"] == "bfloat16"
    # As the program gets it.
    assert types_of(result.graph, made.outputs[0].op.name)["T"] == "float32"
    assert rewrite(made, preserve=["MatMul"]).report.converted == 0
    ends = (tensor.op.name for tensor in (*made.inputs, *made.outputs))
    assert rewrite(made.graph, preserve=ends).graph == result.graph


def test_a_node_to_preserve_that_is_not_there_is_refused_with_the_closest():
    where = r"^rewrite\(preserve=…\): the graph has no node"
    with pytest.raises(GraphError, match=rf"{where} 'fetsh'\. The closest names: fetch"):
        rewrite(graph(CHAIN), preserve=["fetsh", "x"])
    with pytest.raises(GraphError, match=rf"{where} 'q'"):
        rewrite(function(FUNCTION), preserve=["x", "q"])


NO_NAME = "is not a node name, so it would preserve nothing. Name nodes: 'logits' has"
NO_LIST = "is not a list of strings. Write"


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("hardware", "gpu", "rewrite(hardware=…): expected an amp_tf.Hardware, got 'gpu'. To "),
        ("library", 3, "rewrite(library=…): expected a FunctionDefLibrary, got 3."),
        ("shapes", 3, "rewrite(shapes=…): expected an object with output_shapes(node), got 3."),
        ("preserve", None, f"rewrite(preserve=…): None {NO_LIST}"),
        # it would be taken letter by letter
        ("preserve", "fetch", "'fetch' is one string, not several. Write ('fetch',)."),
        ("preserve", ["x", "r:0"], NO_NAME),
        ("preserve", ["x", "^r"], NO_NAME),
        ("preserve", ["x", 3], f"['x', 3] {NO_LIST}"),
        ("preserve", ["x", b"r"], f"['x', b'r'] {NO_LIST}"),
        ("config", {"level": ""}, "rewrite(config): expected an AmpConfig, got {'level': ''}"),
    ],
)
def test_arguments_of_another_kind_are_refused(argument, value, sentence):
    with pytest.raises(ConfigError) as caught:
        amp_tf.rewrite(graph(CHAIN), **{"hardware": BF16_CPU, argument: value})
    assert sentence in str(caught.value)


def test_a_broken_graph_is_refused_and_the_collector_goes_on():
    gc.enable()
    with pytest.raises(GraphError, match="node 'r': input 0 is 'x'"):
        rewrite(graph("r = Relu(x)"))
    assert gc.isenabled()


def test_a_broken_function_of_the_library_is_refused_with_its_name():
    with pytest.raises(GraphError, match=r"^function 'f', node 'm': MatMul expects 2"):
        rewrite(graph(CHAIN, function(FUNCTION.replace("MatMul(x, w)", "MatMul(x)"))))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda nodes: nodes[0].ClearField("attr"), "type attribute dtype is missing"),
        (lambda nodes: nodes.pop(6), "nodes kept"),
        (lambda nodes: nodes[1].MergeFrom(nodes[3]), "two nodes have this name"),
    ],
)
def test_a_result_that_is_wrong_anywhere_never_leaves_the_rewrite(monkeypatch, spoil, sentence):
    apply = pipeline.editor.apply_to_graph

    def apply_and_spoil(*arguments):
        after = apply(*arguments)
        spoil(after.node)
        return after

    monkeypatch.setattr(pipeline.editor, "apply_to_graph", apply_and_spoil)
    before = graph(CHAIN)
    with pytest.raises(RewriteError) as caught:
        rewrite(before)
    told = str(caught.value)
    assert told.startswith("the rewritten graph did not pass verification: ")
    assert sentence in told
    assert told.endswith("please report it with the graph. The original graph is untouched.")
    assert before == graph(CHAIN)


def test_a_variable_is_cast_after_the_writes_that_its_reader_waits_for():
    """A TF1 reference gives the variable as it is when it is read."""
    result = amp_tf.rewrite(graph(REFERENCE), BF16, hardware=BF16_CPU, preserve=["fetch"])
    inputs = {node.name: list(node.input) for node in result.graph.node}
    waits = {}
    for name in ("early", "first", "second", "late"):
        cast = inputs[name][1]
        assert inputs[cast][0] == "v"
        waits[name] = (cast, inputs[cast][1:])
    assert waits["early"][1] == []
    assert waits["first"][1] == ["^set"]
    assert waits["second"] == waits["first"]
    assert waits["late"][1] == ["^again"]
    assert not amp_tf.rewrite(result.graph, BF16, hardware=BF16_CPU, preserve=["fetch"]).changed


# Values in [-1, 1], sums of 4 products: one rounding of each input and of the result, half an
# epsilon each. In float16 the product's two operands are cast back besides, and its result is cast
# to 16 bit.
@pytest.mark.parametrize(
    ("config", "tolerance", "casts"), [(BF16, 4 * 2.0**-8, 3), (F16, 4 * 2.0**-11, 6)]
)
def test_a_rewritten_graph_with_functions_runs_and_agrees_with_float32(config, tolerance, casts):
    before = graph(
        """
        x = Placeholder() shape=[4, 4]
        w = Placeholder() shape=[4, 4]
        quarter = Const() dtype=float32 value=float32[]
        scaled = Mul(x, quarter)
        c = f(scaled, w)
        p = PartitionedCall(c, w) Tin=[float32, float32] Tout=[float32, float32] f=f
        fetch1 = Identity(p)
        fetch2 = Identity(p:1)
        """,
        function(FUNCTION),
    )
    ends = ("fetch1", "fetch2")
    result = rewrite(before, config, preserve=ends)
    assert result.report.casts == casts
    random = np.random.default_rng(0)
    feeds = {}
    for name in ("x:0", "w:0"):
        feeds[name] = random.uniform(-1, 1, (4, 4)).astype(np.float32)
    expected = run(before, ends, feeds)
    found = run(result.graph, ends, feeds)
    for one, other in zip(expected, found, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance)
        assert not np.array_equal(other, one), "nothing was computed in 16 bit"


def types_of_function(definition, name):
    found = next(node for node in definition.node_def if node.name == name)
    return tf.as_dtype(found.attr["T"].type).name


@pytest.mark.parametrize("functions", [True, False])
def test_a_serialized_graph_is_rewritten_as_the_graph_is(functions):
    before = graph(CHAIN, function(FUNCTION))
    expected = rewrite(before, functions=functions)
    found = pipeline.rewrite_serialized(
        before.SerializeToString(), BF16, hardware=BF16_CPU, functions=functions
    )
    assert found.changed
    assert type(before).FromString(found.graph) == expected.graph
    assert found.report.to_dict() == expected.report.to_dict()


def test_a_serialized_graph_without_anything_to_convert_is_the_bytes_that_came_in():
    data = graph("x = Placeholder()\ny = Asinh(x)").SerializeToString()
    found = pipeline.rewrite_serialized(data, BF16, hardware=BF16_CPU)
    assert found.graph is data
    assert not found.changed


def test_a_function_may_be_all_that_is_converted():
    before = graph("x = Placeholder()\ny = Asinh(x)", function(FUNCTION))
    result = rewrite(before)
    assert list(result.graph.node) == list(before.node)
    assert types_of_function(result.graph.library.function[0], "m") == "bfloat16"


@pytest.fixture
def collector_is_on():
    gc.enable()
    yield
    gc.enable()


def test_a_collector_that_was_off_stays_off(collector_is_on):
    gc.disable()
    with pipeline.pause_garbage_collector():
        pass
    assert not gc.isenabled()


def test_of_several_rewrites_at_once_the_one_that_turned_it_off_turns_it_on_again(collector_is_on):
    first_is_in = threading.Event()
    second_is_done = threading.Event()

    def first():
        with pipeline.pause_garbage_collector():
            first_is_in.set()
            second_is_done.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(30)
    with pipeline.pause_garbage_collector():
        pass
    assert not gc.isenabled(), "the first rewrite still runs"
    second_is_done.set()
    thread.join(30)
    assert gc.isenabled()


ESCAPES = (
    "\x1b]0;owned\x07\n\x9b31m\u202e"  # a title, a line of its own, a colour, text turned around
)


@pytest.mark.parametrize("where", ["node", "device", "function", "body", "op", "input"])
def test_what_a_terminal_would_obey_reaches_no_message(where, tmp_path):
    proto = graph("x = Placeholder()\nm = MatMul(x, x)", function(FUNCTION))
    product = proto.node[1]
    called = proto.library.function[0]
    name = f"a{ESCAPES}"
    if where == "input":
        product.input[0] = name
    elif where in ("device", "op"):
        setattr(product, where, name)
    else:
        named = {"node": product, "function": called.signature, "body": called.node_def[1]}
        named[where].name = name
    config = amp_tf.AmpConfig(precision="bfloat16", log_path=str(tmp_path))
    with pytest.raises(GraphError) as caught:
        rewrite(proto, config)
    assert str(caught.value).isprintable()
    for file in tmp_path.glob("*.t*"):
        if not file.name.endswith(".pb.txt"):  # which escapes by itself
            assert file.read_text().replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize(("names", "kept"), [("pqrst", ["p", "q"]), ("pqr", [])])
def test_what_three_paintings_leave_of_a_pass_is_kept(names, kept):
    """Each painting takes one candidate more away."""
    view = read_graph(graph("x = Placeholder()\na = MatMul(x, x)"), Templates())
    form = Job.of(BF16, resolve_target(BF16, Hardware())).form(view, None)

    def made(names):
        new = tuple(NewNode.cast(name, (0, 0), "", of=1, to=1) for name in names)
        return form.then(Edits(new=new))

    settled = form.settled(names, made, lambda _, wanted: wanted[:-1])
    assert settled.view.names[2:] == kept
