"""Which ops are computed together with a product, as TensorFlow does it with oneDNN, which is on
where 16 bit pays.

On other CPUs TensorFlow is told that it is, and has bfloat16; what it would compute then is not
computed, because it lies in a branch that is not taken.
"""

from __future__ import annotations

import collections
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.sizes import NO_SHAPES, KnownShapes
from amp_tf.graph.templates import Templates
from amp_tf.painting.remapper import computed_with_products, find_gelus
from tests.as_cpu import onednn
from tests.small_graphs import function as small_function
from tests.small_graphs import graph

pytestmark = pytest.mark.cpu_dependent

v1 = tf.compat.v1
TYPES = pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=["float32", "bfloat16"])
CHANNELS = 16
ACTIVATIONS = {
    "Elu": tf.nn.elu,
    "LeakyRelu": tf.nn.leaky_relu,
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Sigmoid": tf.sigmoid,
    "Softplus": tf.nn.softplus,
    "Tanh": tf.tanh,
}
ERFS = {"Erf", "Erfc"}  #: one of these is in each exact Gelu
ASKED = {"AddN", "AddV2", "BiasAdd", "BiasAddGrad", *ACTIVATIONS, *ERFS}


def _filters(*sides):
    return [*sides, CHANNELS, CHANNELS]


#: How each product is asked for, with the shapes of what it reads.
PRODUCTS = {
    "MatMul": (tf.matmul, [32, CHANNELS], _filters()),
    "Conv1D": (lambda x, w: tf.nn.conv1d(x, w, 1, "SAME"), [2, 32, CHANNELS], _filters(3)),
    "Conv2D": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), [2, 8, 8, CHANNELS], _filters(3, 3)),
    "Conv3D": (
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"),
        [2, 4, 4, 4, CHANNELS],
        _filters(3, 3, 3),
    ),
    "DepthwiseConv2dNative": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        [2, 8, 8, CHANNELS],
        [3, 3, CHANNELS, 1],
    ),
    "BatchMatMulV2": (tf.matmul, [4, 32, CHANNELS], _filters(4)),
}


def _told_and_done(function, *shapes, dtype=tf.float32):
    """The ops that are computed with a product: those of which the project says so, and those that
    do not run alone.
    """
    graph = tf.Graph()
    with graph.as_default(), graph.device("/cpu:0"):
        is_taken = v1.placeholder(tf.bool, [])
        inputs = []
        for shape in shapes:
            given = tf.cast(v1.placeholder(tf.float32, shape), dtype)
            inputs.append(tf.raw_ops.Switch(data=given, pred=is_taken).output_true)
        fetches = []
        for result in tf.nest.flatten(function(*inputs)):
            wanted = tf.cast(result, tf.float32, name="wanted")
            merge = tf.raw_ops.Merge(inputs=[wanted, tf.constant(0.0)])
            fetches.append(merge.value_index)
    view = read_graph(graph.as_graph_def(add_shapes=True), Templates())
    is_f16 = np.zeros(view.node_count, np.bool_)
    found = computed_with_products(view, is_f16, KnownShapes.of_nodes(view))
    told = collections.Counter(_label(view.names[node], view.ops[node]) for node in found)
    there = collections.Counter(map(_label, view.names, view.ops))
    gone = there - _run(graph, fetches)
    return [sorted(filter(None, labels.elements())) for labels in (told, gone)]


def _label(name, op):
    """An op that is asked for, with the activation that ends its chain where a graph has several;
    empty for any other op.
    """
    if op not in ASKED:
        return ""
    scope, is_inside, _ = name.partition("/")
    return f"{scope}: {op}" if is_inside and scope in ACTIVATIONS else op


def _run(graph, fetches):
    """Counts the labels of the ops that a session runs."""
    feeds = {}
    for op in graph.get_operations():
        if op.type == "Placeholder":
            (tensor,) = op.outputs
            feeds[tensor] = np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype)
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True)
    with onednn.told(bfloat16=True), v1.Session(graph=graph) as session:
        session.run(fetches, feeds, options=options, run_metadata=metadata)
    ops = collections.Counter()
    for partition in metadata.partition_graphs:
        ops.update(_label(node.name, node.op) for node in partition.node)
    return ops


ADDED = {
    "sum": lambda biased, other: biased + other,
    "other first": lambda biased, other: other + biased,
    "AddN": lambda biased, other: tf.add_n([biased, other]),
    "another shape": lambda biased, other: biased + other[:1],
    "": lambda biased, other: biased,
}
#: For other products with a sum and a Relu, the remapper makes a node without an op.
ADDED_TO = ("Conv2D", "Conv3D")
ALONE = [product for product in PRODUCTS if product not in ADDED_TO]


@TYPES
@pytest.mark.parametrize(
    ("product", "add"), [*itertools.product(ADDED_TO, ADDED), *((each, "") for each in ALONE)]
)
def test_what_follows_products_is_computed_with_those_with_which_tensorflow_computes_it(
    product, add, dtype
):
    multiply, shape, filters = PRODUCTS[product]

    def function(*given):
        # Fed tensors have no known shape.
        x, b, other, *weights = (tf.reshape(tensor, tensor.shape) for tensor in given)
        results = []
        for name, weight in zip(ACTIVATIONS, weights, strict=True):
            with tf.name_scope(name):
                biased = tf.nn.bias_add(multiply(x, weight), b)
                results.append(ACTIVATIONS[name](ADDED[add](biased, other)))
        return results

    each = [filters] * len(ACTIVATIONS)  # equal products would become one
    told, done = _told_and_done(function, shape, [CHANNELS], shape, *each, dtype=dtype)
    assert told == done


@pytest.mark.parametrize("product", ["MatMul", "Conv2D"])
def test_an_exact_gelu_is_computed_with_a_matrix_product(product):
    multiply, *shapes = PRODUCTS[product]

    def function(x, w, b):
        return tf.nn.gelu(tf.nn.bias_add(multiply(x, w), b))

    told, done = _told_and_done(function, *shapes, [CHANNELS])
    assert told == done
    has_gelu = not ERFS.isdisjoint(told)
    assert has_gelu == (product == "MatMul")


def test_a_gelu_of_a_biased_argument_is_computed_alone():
    text = """
        function f(x: float32, b: float32) -> (y: float32)
        half = Const() dtype=float32 value=float32[]*0.5
        root = Const() dtype=float32 value=float32[]*0.70710678
        biased = BiasAdd(x, b)
        minus = Neg(biased:output:0)
        scaled = Mul(root:output:0, minus:y:0)
        core = Erfc(scaled:z:0)
        halved = Mul(core:y:0, half:output:0)
        out = Mul(halved:z:0, biased:output:0)
        return y = out:z:0
    """
    view = read_function(small_function(text), Templates())
    assert len([*find_gelus(view)]) == 1
    none = np.zeros(view.node_count, np.bool_)
    assert computed_with_products(view, none, NO_SHAPES) == {}


def test_what_something_else_reads_is_computed_alone():
    def function(x, w, b):
        product = tf.matmul(x, w)
        biased = tf.nn.bias_add(product, b)
        other = tf.nn.relu(tf.nn.bias_add(product, b * 2))
        return tf.nn.relu(biased), tf.abs(biased), tf.matmul(other, w)

    told, done = _told_and_done(function, *PRODUCTS["MatMul"][1:], [CHANNELS])
    assert told == done == []


@pytest.mark.parametrize("waiting", ["product", "bias", "activation"])
def test_what_waits_for_something_is_computed_alone(waiting):
    def function(x, w, b):
        checked = tf.debugging.Assert(tf.reduce_all(x < 1e9), [x])

        def after(name):
            return tf.control_dependencies([checked] if name == waiting else [])

        with after("product"):
            product = tf.matmul(x, w)
        with after("bias"):
            biased = tf.nn.bias_add(product, b)
        with after("activation"):
            return tf.nn.relu(biased)

    told, done = _told_and_done(function, *PRODUCTS["MatMul"][1:], [CHANNELS])
    expected = ["BiasAdd"] if waiting == "activation" else []
    assert told == done == expected


def _found(text, converted):
    """The nodes that are computed with products, and those, where some nodes are 16 bit."""
    view = read_graph(graph(text), Templates())
    is_f16 = np.isin(np.arange(view.node_count), converted)
    return computed_with_products(view, is_f16, NO_SHAPES)


@pytest.mark.parametrize(
    ("converted", "expected"),
    [([], [2, 3]), ([1, 2, 3], [2, 3]), ([1, 2], [2]), ([1], []), ([1, 3], [])],
)
def test_what_has_another_type_than_its_product_is_computed_alone(converted, expected):
    text = "x = Placeholder()\np = MatMul(x, x)\nb = BiasAdd(p, x)\nr = Relu(b)\ng = Identity(r)"
    assert [*_found(text, converted)] == expected


@TYPES
def test_bias_gradients_are_computed_with_filter_gradients(dtype):
    def function(x, w, g):
        shape = tf.constant(w.shape.as_list())
        filters = tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=shape, out_backprop=g, strides=[1] * 4, padding="SAME"
        )
        return filters, tf.raw_ops.BiasAddGrad(out_backprop=g)

    image, kernel = PRODUCTS["Conv2D"][1:]
    told, done = _told_and_done(function, image, kernel, image, dtype=dtype)
    assert told == done == ["BiasAddGrad"]


@pytest.mark.parametrize(
    ("converted", "expected"), [([3, 5], {5: 3}), ([4, 5], {5: 4}), ([3, 4], {})]
)
def test_a_bias_gradient_is_computed_with_the_filter_gradient_of_its_type(converted, expected):
    filters = "Conv2DBackpropFilter(x, s, g) strides=[1, 1, 1, 1] padding='SAME'"
    text = f"""
        x = Placeholder()
        s = Const() dtype=int32 value=int32[4]*1
        g = Placeholder()
        f = {filters}
        h = {filters}
        b = BiasAddGrad(g)
    """
    assert _found(text, converted) == expected


# ---------------------------------------------------------------- Gelus

GELU_INPUT = """
    x = Placeholder() shape=[64, 32]
    w = Placeholder() shape=[32, 16]
    b = Placeholder() shape=[16]
    half = Const() value=float32[]*0.5
"""
EXACT = """
    product = MatMul(x, w)
    biased = BiasAdd(product, b)
    root = Const() value=float32[]*0.70710678
    minus = Neg(biased)
    scaled = Mul(root, minus)
    core = Erfc(scaled)
    halved = Mul(core, half)
    out = Mul(halved, biased)
"""
APPROXIMATE = """
    biased = _FusedMatMul(x, w, b) num_args=1 fused_ops=['BiasAdd']
    third = Const() value=float32[]*0.044715
    root = Const() value=float32[]*0.79788456
    one = Const() value=float32[]*1
    square = Square(biased)
    cube = Mul(square, biased)
    part = Mul(third, cube)
    sum = AddV2(part, biased)
    scaled = Mul(sum, root)
    core = Tanh(scaled)
    above = AddV2(core, one)
    halved = Mul(above, half)
    out = Mul(halved, biased)
"""
READER = "\n    fetch = Softmax(out)\n"
KINDS = pytest.mark.parametrize("text", [EXACT, APPROXIMATE], ids=["exact", "approximate"])


def gelus(text):
    view = read_graph(graph(GELU_INPUT + text + READER), Templates())
    return [*find_gelus(view)]


@KINDS
def test_the_order_of_the_terms_of_sums_and_products_does_not_matter(text):
    turned = re.sub(r"(Mul|AddV2)\((\w+), (\w+)\)", r"\1(\3, \2)", text)
    assert turned != text
    assert len(gelus(turned)) == 1


@KINDS
@pytest.mark.parametrize("read", ["biased", "scaled", "core", "halved"])
def test_what_something_else_reads_makes_no_gelu(text, read):
    assert gelus(f"{text}    other = Softmax({read})") == []
    assert gelus(f"{text}    other = Mul({read}, {read})") == []


@KINDS
@pytest.mark.parametrize(
    "change", [(r"\*0\.7", "*0.6"), (r"core = \w+", "core = Sin")], ids=["constant", "op"]
)
def test_other_constants_and_ops_make_no_gelu(text, change):
    assert gelus(re.sub(*change, text)) == []


def test_a_gelu_of_another_type_than_its_product_or_that_waits_is_computed_alone():
    view = read_graph(graph(GELU_INPUT + EXACT + READER), Templates())
    product = view.names.index("product")
    for converted, count in (([], 5), (range(product, view.node_count), 5), ([product], 0)):
        is_f16 = np.isin(np.arange(view.node_count), converted)
        told = computed_with_products(view, is_f16, NO_SHAPES).values()
        assert [*told].count(product) == count + (count > 0)  # and the bias
    waiting = EXACT.replace("Erfc(scaled)", "Erfc(scaled) ^x")
    view = read_graph(graph(GELU_INPUT + waiting + READER), Templates())
    none = np.zeros(view.node_count, np.bool_)
    assert len(computed_with_products(view, none, NO_SHAPES)) == 1


def test_a_long_chain_of_arithmetic_ends_the_search():
    lines = [EXACT, "a0 = Neg(x)", "b0 = Tanh(a2000)"]
    for chain in "ab":
        for i in range(2000):
            lines.append(f"{chain}{i + 1} = Mul({chain}{i}, x)")
    assert len(gelus("\n".join(lines))) == 1
