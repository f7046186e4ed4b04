"""TensorFlow runs products in 16 bit, few casts, and gelus inside the kernels of products."""

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.oplists.hardware import Hardware
from tests import as_cpu
from tests.as_cpu import onednn
from tests.hooks import running

PROGRAM = running.PROGRAMS / "fused_layers.py"
WAYS = ("fit", "tf_keras fit", "predict", "loop", "session")
BACKWARD = {"Conv2DBackpropFilter", "Conv2DBackpropInput"}
# Losses and outputs of about 1 after up to 8 steps; bfloat16 has 8 significant bits, float16 11.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.01}
# Runs each way of the program and prints its result beside the products of the graphs that ran: op,
# type, name.
WATCHED = f"""
import json, runpy
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.eager import context
context.context().enable_run_metadata()
graphs, run = [], session.BaseSession.run

def watched(self, fetches, feed_dict=None):
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    result = run(self, fetches, feed_dict, options, metadata)
    graphs.extend(metadata.partition_graphs)
    return result

session.BaseSession.run = watched
found = {{}}
for name, way in runpy.run_path({str(PROGRAM)!r})["WAYS"].items():
    result = way()
    graphs += context.context().export_run_metadata().partition_graphs
    nodes = [node for graph in graphs for node in graph.node]
    products = [node for node in nodes if "MatMul" in node.op or "Conv" in node.op]
    found[name] = [result, [[node.op, node.attr["T"].type, node.name] for node in products]]
    graphs.clear()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def in_float32(site_folder):
    ended = running.run([str(PROGRAM)], site_folder, as_cpu.variables())
    return ended.result


@pytest.fixture(scope="module", params=["bfloat16", "float16", "bfloat16 in hardware"])
def named(request, site_folder):
    """The precision, the type whose kernels compute products, and what was found: without 16-bit
    hardware, or with that of this CPU.
    """
    precision, _, in_hardware = request.param.partition(" ")
    if in_hardware and not onednn.computes_bfloat16():
        pytest.skip("this CPU has no bfloat16")
    version = tuple(map(int, tf.__version__.split(".")[:2]))
    if request.param == "bfloat16" and onednn.computes_bfloat16() and version < (2, 21):
        pytest.skip("this TensorFlow's remapper still takes the CPU for one with bfloat16")
    # The loop and the session have no optimizer that could scale their loss.
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": precision,
        f"{running.SWITCH}_LOSS_SCALING": "0",
    }
    ended = running.run(
        ["-c", WATCHED], site_folder, variables if in_hardware else as_cpu.variables() | variables
    )
    assert ended.warnings == []
    run_by = tf.bfloat16 if in_hardware else tf.float32
    return precision, run_by.as_datatype_enum, ended.result


@pytest.mark.parametrize("way", WAYS)
def test_no_product_that_runs_is_of_another_type(way, named, in_float32):
    precision, run_by, found = named
    result, products = found[way]
    left = [(op, name) for op, number, name in products if number != run_by]
    assert left == []
    assert products
    ops = {op for op, _, _ in products}
    if way.endswith("fit") or way == "loop":
        assert all(any(name in op for op in ops) for name in BACKWARD)  # oneDNN's have a prefix
    assert result != in_float32[way]
    scale = np.abs(in_float32[way]).max()
    np.testing.assert_allclose(result, in_float32[way], rtol=0, atol=TOLERANCES[precision] * scale)


IN_FLOAT16 = """
import json
import tensorflow as tf

def both(x, y):
    return tf.nn.relu(tf.matmul(x, y) + tf.matmul(y, x))

def run(step, *values):
    return step(*(tf.constant([[value]]) for value in values)).numpy().item()

found = {}
for is_compiled in (False, True):
    step = tf.function(both, jit_compile=is_compiled)
    pairs = ((2049.0, 1.0), (2051.0, 1.0), (300.0, 300.0))
    found[str(is_compiled)] = [run(step, x, y) for x, y in pairs]
print(json.dumps(found))
"""


def test_tensorflow_keeps_the_roundings_around_products_in_float32(site_folder):
    ended = running.run(
        ["-c", IN_FLOAT16], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    )
    assert ended.result["False"] == [4096.0, 4104.0, np.inf]
    assert ended.converted >= 4
    # XLA may leave out a pair of casts, which makes results more exact.
    *exact, large = ended.result["True"]
    assert exact == pytest.approx([4098.0, 4102.0], rel=2**-10)
    assert large >= 180_000


needs_bf16 = pytest.mark.skipif(
    not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU"
)
OF_AUTO = """
import json
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from amp_tf.hooks import plugin, switch

SIZE = 512
OF_GELUS = ("Erf", "Erfc", "Square", "Tanh")
random = np.random.default_rng(0)
normal = lambda *shape: random.standard_normal(shape, "f")
layers = [(normal(SIZE, SIZE) / SIZE**0.5, normal(SIZE)) for _ in range(3)]
weights = (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) / SIZE**2).astype("float32")

def constant(x):
    return tf.exp(tf.matmul(x, tf.constant(weights)))

def pair(x):
    h = tf.cast(tf.cast(tf.matmul(x, x), tf.bfloat16), tf.float32)
    return tf.exp(tf.matmul(h, x))

def down(x):
    return tf.cast(tf.matmul(x, x), tf.bfloat16)

def gelus(x, is_approximate=False):
    for number, (w, b) in enumerate(layers):
        x = tf.nn.bias_add(tf.tensordot(x, w, 1), b)
        x = tf.nn.gelu(x, is_approximate) if number < 2 else x
    return x

def executed(function, *arguments):
    result = tf.function(function)(*arguments).numpy()
    graphs = context.context().export_run_metadata().partition_graphs
    nodes = {node.name: node for graph in graphs for node in graph.node}
    products = [node for node in nodes.values() if "MatMul" in node.op]
    casts = [node for node in nodes.values() if node.op == "Cast"]
    behind = [nodes[cast.input[0].partition(":")[0]].op for cast in casts]
    bfloat16 = tf.bfloat16.as_datatype_enum
    steps = [step for node in products for step in node.attr["fused_ops"].list.s]
    return result, {
        "in bfloat16": sum(node.attr["T"].type == bfloat16 for node in products),
        "fused": sorted(step.decode() for step in steps),
        "gelus alone": sum(node.op in OF_GELUS for node in nodes.values()),
        "casts": [len(behind), behind.count("Const"), behind.count("Cast")],
    }

context.context().enable_run_metadata()
cases = {
    "exact over sequences": (gelus, normal(8, 64, SIZE)),
    "exact": (gelus, normal(512, SIZE)),
    "approximate": (gelus, normal(512, SIZE), True),
    **{function.__name__: (function, tf.ones((SIZE, SIZE))) for function in (constant, pair, down)},
}
exact = {name: executed(*case)[0] for name, case in cases.items() if case[0] is gelus}
switch.install(plugin.__name__)
found = {}
for name, case in cases.items():
    result, found[name] = executed(*case)
    if name in exact:
        found[name]["error"] = float(np.abs(result - exact[name]).max() / np.abs(exact[name]).max())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def under_auto(site_folder):
    return running.run(["-c", OF_AUTO], site_folder, {}).result


@needs_bf16
# TensorFlow folds the cast of a constant: what is left are the casts of x and of the result.
@pytest.mark.parametrize(
    ("case", "products", "casts"), [("constant", 1, 2), ("pair", 2, 2), ("down", 1, 1)]
)
def test_constants_are_cast_once_and_pairs_of_casts_do_not_run(under_auto, case, products, casts):
    assert (under_auto[case]["in bfloat16"], under_auto[case]["casts"]) == (products, [casts, 0, 0])


@needs_bf16
@pytest.mark.parametrize("case", ["exact over sequences", "exact", "approximate"])
def test_gelus_are_fused_with_products_in_bfloat16(under_auto, case):
    found = under_auto[case]
    kind = "GeluApproximate" if case == "approximate" else "GeluExact"
    assert found["error"] < 0.02
    assert (found["in bfloat16"], found["gelus alone"]) == (3, 0)
    assert found["fused"] == [*["BiasAdd"] * 3, kind, kind]
