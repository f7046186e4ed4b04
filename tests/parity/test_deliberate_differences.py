"""amp_tf differs from TensorFlow's pass on purpose, each time with a reason and a graph that shows
it.

A difference that is not here is a bug. How the differential tests allow for one is in
``judging.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.painting.paint import RULES
from tests.oracle import DEFAULT, DT_FLOAT, Mode, OriginalFailedError, run_original
from tests.parity.comparison import JUDGED, config_for, run_ours
from tests.parity.judging import has_kernel
from tests.parity.test_cpp_cases import SIMPLE
from tests.rewriting.test_hoisting import EARLY
from tests.rewriting.test_hoisting import LOOP as LOOP_OF_PRODUCTS
from tests.rewriting.test_sharing import SHARED, TWO_READS, X
from tests.small_graphs import graph, run

pytestmark = pytest.mark.cpu_dependent

FP16 = Mode.CUDA_LISTS
BF16 = Mode.BFLOAT16
BOTH = (FP16, BF16)
FORCE = amp_tf.AmpConfig(level="UNSAFE_FORCE_ALL")
INPUT = "input = Const() value=float32[32, 32]\n"
PRODUCT = INPUT + "allow1 = MatMul(input, input)\n"


class Shown(NamedTuple):
    """A graph, and the nodes of it that become 16 bit.

    Attributes:
        name: of the difference; behind a colon what is shown.
        why: what TensorFlow does, and amp_tf instead.
        modes: where.
        theirs: of the nodes that are named in one of both, those that TensorFlow converts.
        ours: those that amp_tf converts.
        text: the graph; ``fetch`` is preserved, and ``also``.
    """

    name: str
    why: str
    modes: tuple[Mode, ...]
    theirs: str
    ours: str
    text: str
    also: str = ""


def mask(lowest):
    return (
        f"{PRODUCT}never = Const() value=float32[]*{lowest}\nmask = Const() dtype=bool "
        "value=bool[32, 32]*1\n"
        "masked = SelectV2(mask, allow1, never)\ninfer1 = Softmax(masked)\nallow2 = "
        "MatMul(infer1, input)\n"
        "fetch = Identity(allow2)"
    )


def residuals(count):
    lines = [INPUT + "infer = Digamma(input)"]
    for n in range(count):
        x = f"infer{n - 1}" if n else "infer"
        lines.append(f"p{n} = MatMul({x}, input)")
        lines.append(f"t{n} = Tanh(p{n})")
        lines.append(f"q{n} = MatMul(t{n}, input)")
        lines.append(f"infer{n} = AddV2({x}, q{n})")
    lines.append(f"last = MatMul(infer{count - 1}, input)")
    lines.append("fetch = Identity(last)")
    return "\n".join(lines)


SUMS = " ".join(f"infer{n}" for n in range(10))
LOOP = """
    enter = Enter({entered}) frame_name='loop'
    {looped}
    next = NextIteration(body)
    fetch = Identity(body)
"""

SHOWN = (
    Shown(
        "fused-ops",
        "amp_tf's hook runs after the remapper, TensorFlow's pass before it: fused ops are on "
        "amp_tf's lists alone.",
        (BF16,),
        "allow1",
        "allow1 fused",
        PRODUCT
        + "bias = Const() value=float32[32]\nfused = _FusedMatMul(input, input, bias) num_args=1 "
        "fused_ops=['BiasAdd']\nfetch = Identity(bias)",
    ),
    Shown(
        "preserved-loop",
        "TensorFlow makes NextIteration agree with its Merge although it is preserved; in amp_tf "
        "both stay in float32.",
        (BF16,),
        "allow1 allow2 merge next",
        "allow1 allow2",
        INPUT
        + LOOP.format(
            entered="input",
            looped="allow1 = MatMul(enter, enter)\n"
            "merge = Merge(allow1, next)\nallow2 = MatMul(merge, merge)\n"
            "body = Identity(allow2)",
        ),
        "next",
    ),
    Shown(
        "tied-types: loop entries",
        "TensorFlow casts between Enter and Merge. By that edge its executor knows that a loop in "
        "a branch that is not "
        "taken does not run.",
        (BF16,),
        "allow1 enter",
        "allow1",
        PRODUCT
        + LOOP.format(entered="allow1", looped="merge = Merge(enter, next)\nbody = Exp(merge)"),
    ),
    *(
        Shown(
            "range: constants",
            "TensorFlow looks at no values: a mask beyond range becomes infinite, and a softmax "
            "of nothing else NaN.",
            (mode,),
            "allow1 masked infer1 allow2",
            "allow1 allow2",
            mask(lowest),
        )
        for mode, lowest in ((FP16, -1e9), (BF16, -3.4e38))
    ),
    Shown(
        "outer-product",
        "TensorFlow looks at no equations. An Einsum that sums nothing multiplies positions by "
        "frequencies, and angles "
        "beyond position 256 (bfloat16) are noise.",
        BOTH,
        "angles allow1",
        "allow1",
        "row = Const() value=float32[32]\nangles = Einsum(row, row) equation='i,j->ij'\nwaves = "
        "Cos(angles)\n"
        "allow1 = MatMul(waves, waves)\nfetch = Identity(allow1)",
    ),
    Shown(
        "inexact-kernel: sums",
        "Kernels that keep a sum in bfloat16 stop growing at 256 times what is added.",
        (BF16,),
        "allow1 lost scattered allow2",
        "allow1 allow2",
        PRODUCT + "lost = BiasAddGrad(allow1)\nwhere = Const() dtype=int32 value=int32[32, 1]*0\n"
        "shape = Const() dtype=int32 value=int32[2]*32\nscattered = ScatterNd(where, allow1, "
        "shape) Tindices=int32\n"
        "allow2 = MatMul(scattered, scattered)\nfetch = Identity(allow2)",
    ),
    Shown(
        "need: results",
        "TensorFlow converts what follows a product, whoever reads it: moving averages stand "
        "still, losses have three "
        "digits.",
        BOTH,
        "allow1 infer1 allow2 infer2",
        "allow1 allow2",
        PRODUCT
        + "v = VarHandleOp() dtype=float32 shape=[32, 32]\nrate = Const() value=float32[]*0.5\n"
        "infer1 = Mul(allow1, rate)\nstep = AssignAddVariableOp(v, infer1)\nallow2 = "
        "MatMul(allow1, allow1)\n"
        "infer2 = Mul(allow2, rate)\nfetch = Identity(infer2)",
    ),
    Shown(
        "need: whole numbers",
        "TensorFlow rounds ids that come as floats, beside other columns, before they are cast to "
        "integers.",
        BOTH,
        "clr1 allow1",
        "allow1",
        INPUT + "zero = Const() dtype=int32 value=int32[2]*0\n"
        "size = Const() dtype=int32 value=int32[2]*32\n"
        "clr1 = Slice(input, zero, size) Index=int32\ncast = Cast(clr1) SrcT=float32 DstT=int32\n"
        "allow1 = MatMul(clr1, clr1)\nfetch = Identity(allow1)",
        "cast",
    ),
    Shown(
        "need: decompositions",
        "TensorFlow rounds the matrix that is inverted next, and the products that multiply the "
        "inverse.",
        BOTH,
        "allow1 allow2 allow3",
        "allow3",
        f"{PRODUCT}inverse = MatrixInverse(allow1)\nallow2 = MatMul(inverse, input)\n"
        "allow3 = MatMul(allow2, input)\nfetch = Identity(allow3)",
    ),
    Shown(
        "origin: running sums",
        "x = x + step in 16 bit stands still once a step is less than a 500th of x.",
        BOTH,
        f"{SUMS} p9 last",
        "p9 last",
        residuals(10),
    ),
    Shown(
        "passed-through",
        "TensorFlow converts what only passes a value on to a product, and who else reads it gets "
        "it rounded, by a "
        "cast back. In amp_tf the cast stands behind it, for the product alone.",
        BOTH,
        "flat allow1",
        "allow1",
        INPUT + "x = Digamma(input)\n"
        "shape = Const() dtype=int32 value=int32[2]*32\nflat = Reshape(x, shape)\n"
        "allow1 = MatMul(flat, flat)\nexact = Digamma(flat)\nfetch = Identity(allow1)",
        "exact",
    ),
    Shown(
        "looked-up-rows",
        "TensorFlow converts a gather before a product, and casts the whole table of embeddings "
        "in each step.",
        BOTH,
        "found allow1",
        "allow1",
        "v = VarHandleOp() dtype=float32 shape=[5000, 32]\ntable = ReadVariableOp(v) "
        "dtype=float32\n"
        "rows = Const() dtype=int32 value=int32[32]*1\naxis = Const() dtype=int32 value=int32[]*0\n"
        "found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32\nallow1 = MatMul(found, "
        "found)\n"
        "fetch = Identity(allow1)",
    ),
    Shown(
        "device-without-part",
        "A device that names a job but no device type is that job's default device; TensorFlow "
        "takes it for none.",
        (BF16,),
        "",
        "allow1",
        PRODUCT.replace(")\n", ") @/job:localhost/replica:0/task:0\n") + "fetch = Identity(allow1)",
    ),
)


@pytest.mark.parametrize(
    ("shown", "mode"),
    [pytest.param(row, mode, id=f"{row.name}-{mode.name}") for row in SHOWN for mode in row.modes],
)
def test_difference(shown, mode):
    theirs = set(shown.theirs.split())
    ours = set(shown.ours.split())
    named = theirs | ours
    preserve = ("fetch", *shown.also.split())
    original, found = both(graph(shown.text), mode, preserve)
    assert original & named == theirs, shown.why
    assert found & named == ours, shown.why


def test_the_differences_that_rules_name_are_shown():
    shown = {"tied-types"}
    for row in SHOWN:
        name, _, _ = row.name.partition(":")
        shown.add(name)
    for row in RULES:
        if row.difference:
            assert row.difference in shown, row.name


def both(graph_def, mode, preserve=("fetch",), knobs=DEFAULT):
    """The nodes that are 16-bit afterwards: TensorFlow's and amp_tf's.

    TensorFlow refuses a graph in which a Placeholder has no shape ("Failed to import metagraph").
    """
    original = run_original(graph_def, mode, preserve, knobs)
    ours = run_ours(graph_def, mode, preserve, knobs)
    return original.nodes_in(mode.f16), ours.nodes_in(mode.f16)


def test_kernel_missing():
    """TensorFlow paints allow nodes, and infer nodes that follow one, without asking for a kernel:
    the graph fails.
    """
    graph_def = graph(
        "x = Const() value=float32[1, 4, 4, 4, 2]\nw = Const() value=float32[1, 1, 1, 2, 2]\n"
        "allow1 = Conv3D(x, w) strides=[1, 1, 1, 1, 1] padding='SAME'\n"
        "infer1 = AvgPool3D(allow1) ksize=[1, 2, 2, 2, 1] strides=[1, 2, 2, 2, 1] padding='SAME'\n"
        "fetch = Identity(infer1)"
    )
    assert both(graph_def, FP16) == ({"allow1", "infer1"}, {"allow1"})
    broken = run_original(graph_def, FP16, ("fetch",)).graph
    assert not all(has_kernel(node, FP16) for node in broken.node)
    with pytest.raises(tf.errors.InvalidArgumentError, match="No OpKernel was registered"):
        run(broken, ("fetch",))
    run(run_ours(graph_def, FP16, ("fetch",)).graph, ("fetch",))

    without_type = graph(
        INPUT + "w = Const() value=float32[64, 64]\nw_c = Const() value=float32[64, 32]\n"
        "b_ru = Const() value=float32[64]\nb_c = Const() value=float32[32]\nclr1 = Relu(input)\n"
        "allow1 = GRUBlockCell(clr1, input, w, w_c, b_ru, b_c)\n"
        "allow2 = MatMul(allow1:3, allow1:3)\nfetch = Identity(allow2)"
    )
    # TensorFlow converts the Relu for the sake of a GRUBlockCell that cannot be float16.
    assert both(without_type, FP16) == ({"clr1", "allow2"}, {"allow2"})


def test_rounded_products():
    """On CPUs TensorFlow gives a product a float16 kernel, which adds in float16; in amp_tf
    float32's computes it.

    TensorFlow's own pass does the same, for all ops, where EMULATE_FP16 is left on, which the judge
    turns off.
    """
    ones = (
        "row = Const() value=float32[1, 4096]*1\ncolumn = Const() value=float32[4096, 1]*0.9995\n"
    )
    graph_def = graph(ones + "allow1 = MatMul(row, column)\nfetch = Identity(allow1)")
    assert run_original(graph_def, FP16, ("fetch",)).nodes_in(FP16.f16) == {"allow1"}
    ours = amp_tf.rewrite(graph_def, config_for(FP16), hardware=JUDGED, preserve=("fetch",))
    assert [node.name for node in ours.report.nodes if node.precision.is_f16] == ["allow1"]
    (product,) = (node for node in ours.graph.node if node.op == "MatMul")
    assert product.attr["T"].type == DT_FLOAT
    (value,) = run(ours.graph, ("fetch",))
    rounded = np.float64(np.float16(0.9995))
    assert value == np.float16(4096 * rounded)


def test_batch_norm_untouched():
    """TensorFlow turns every FusedBatchNorm into FusedBatchNormV2, even where nothing is
    converted.
    """
    graph_def = graph(
        "x = Const() value=float32[1, 4, 4, 2]\nc = Const() value=float32[2]\nnone = Const() "
        "value=float32[0]\n"
        "fbn = FusedBatchNorm(x, c, c, none, none)\nfetch = Identity(fbn)"
    )
    assert run_original(graph_def, BF16, ("fetch",)).ops["fbn"] == "FusedBatchNormV2"
    assert run_ours(graph_def, BF16, ("fetch",)).graph == graph_def


def test_infer_follow_order():
    """TensorFlow's sweep over infer nodes depends on the order of the nodes; amp_tf repeats it."""
    text = f"""
        {INPUT}
        allow1 = MatMul(input, input)
        infer0 = Tanh(allow1)
        infer1 = Tanh(infer0)
        infer2 = Tanh(infer1)
        e = Exp(infer2)
        allow2 = MatMul(e, e)
        fetch = Identity(allow2)
    """
    chain = {"allow1", "infer0", "infer1", "infer2", "allow2"}
    assert both(graph(text), BF16) == (chain, chain)
    turned = "\n".join(reversed(text.splitlines()))
    assert both(graph(turned), BF16) == ({"allow1", "infer0", "allow2"}, chain)


#: Ops with several types, or with a type that is fixed; all but what is fetched can be forced.
FIXED = {
    "simple": (SIMPLE, "deny1 clr1 infer1 clr2 allow1 clr3 infer2 clr4 clr5"),
    "pool": (
        "clr1 = Const() value=float32[1, 4, 8, 8, 1]\npool = MaxPool3D(clr1) ksize=[1, 2, 2, 2, 1] "
        "strides=[1, 2, 2, 2, 1] padding='SAME'\ngrad = MaxPool3DGrad(clr1, pool, pool) ksize=[1, "
        "2, 2, 2, 1] "
        "strides=[1, 2, 2, 2, 1] padding='SAME'\nfetch = Identity(grad)",
        "pool grad",
    ),
    "resize": (
        "x = Const() value=float32[1, 4, 4, 2]\nclr1 = Relu(x)\nsize = Const() dtype=int32 "
        "value=int32[2]*6\n"
        "resize = ResizeBilinear(clr1, size)\nclr2 = Relu(resize)\nfetch = Identity(clr2)",
        "clr1 resize clr2",
    ),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [("simple", FP16), ("resize", FP16), ("simple", BF16), ("pool", BF16), ("resize", BF16)],
)
def test_force_all_fixed(name, mode):
    """TensorFlow's UNSAFE_FORCE_ALL gives up on a graph with a fixed float32 argument, and in
    bfloat16 on any.
    """
    text, f16 = FIXED[name]
    graph_def = graph(text)
    if mode is BF16 or name == "simple":
        with pytest.raises(OriginalFailedError):
            run_original(graph_def, mode, ("fetch",), FORCE)
    ours = run_ours(graph_def, mode, ("fetch",), FORCE)
    assert ours.nodes_in(mode.f16) - {"deny2"} == set(f16.split())
    (value,) = run(ours.graph, ("fetch",))
    (float32,) = run(graph_def, ("fetch",))
    np.testing.assert_allclose(value, float32, rtol=2e-2 if mode is FP16 else 8e-2)


def test_force_all_casts():
    """Under UNSAFE_FORCE_ALL TensorFlow converts casts' float32 side: each rewrite changes the
    graph.
    """
    graph_def = graph(
        INPUT + "down = Cast(input) SrcT=float32 DstT=half\nallow1 = MatMul(down, down) T=half\n"
        "up = Cast(allow1) SrcT=half DstT=float32\nfetch = Identity(up)"
    )
    original = run_original(graph_def, FP16, ("fetch",), FORCE)
    ours = run_ours(graph_def, FP16, ("fetch",), FORCE)
    for place in (("down", "SrcT"), ("up", "DstT")):
        assert original.types[place] == (FP16.f16,)
        assert ours.types[place] == (DT_FLOAT,)
    assert run_ours(ours.graph, FP16, ("fetch",), FORCE).graph == ours.graph


def test_preserved_cast():
    """TensorFlow changes the type of a fetched Cast whose readers are all 16 bit: the caller gets
    another type.
    """
    graph_def = graph(
        "x = Const() dtype=bool value=bool[32, 32]\ncast = Cast(x) SrcT=bool DstT=float32\n"
        "allow1 = MatMul(cast, cast)\nfetch = Identity(allow1)"
    )
    assert both(graph_def, BF16, ("fetch", "cast")) == ({"cast", "allow1"}, {"allow1"})
    for judge, is_float32 in ((run_original, False), (run_ours, True)):
        (value,) = run(judge(graph_def, BF16, ("fetch", "cast")).graph, ("cast",))
        assert (value.dtype == np.float32) is is_float32


def test_tied_types():
    """MaxPool3D's gradient looks for the maximum among what it was taken from: rounded alone, it is
    none of them.
    """
    window = "ksize=[1, 2, 2, 2, 1] strides=[1, 2, 2, 2, 1] padding='VALID'"
    graph_def = graph(f"""
        x = Placeholder() shape=[1, 8, 8, 8, 4]
        deny1 = Exp(x)
        pool = MaxPool3D(deny1) {window}
        shape = Const() dtype=int32 value=int32[2]*16
        w = Const() value=float32[16, 16]*1
        clr1 = Reshape(pool, shape)
        allow1 = MatMul(clr1, w)
        result = Identity(allow1)
        ones = Const() value=float32[1, 4, 4, 4, 4]*1
        fetch = MaxPool3DGrad(deny1, pool, ones) {window}
    """)
    fetches = ("fetch", "result")
    theirs = run_original(graph_def, BF16, fetches)
    ours = run_ours(graph_def, BF16, fetches)
    tied = {"pool", "clr1", "allow1"}
    assert theirs.nodes_in(BF16.f16) >= tied
    assert ours.nodes_in(BF16.f16) & tied == {"clr1", "allow1"}
    x = {"x:0": np.random.default_rng(0).normal(size=(1, 8, 8, 8, 4)).astype("float32")}
    (float32,) = run(graph_def, ("fetch",), x)
    (lost,) = run(theirs.graph, ("fetch",), x)
    assert lost.sum() < 0.1 * float32.sum()
    np.testing.assert_array_equal(run(ours.graph, ("fetch",), x), [float32])


def test_list_of_lists():
    """A loop in a loop stores lists in lists, which TensorFlow does not follow: types disagree."""
    graph_def = graph(
        PRODUCT + "shape = Const() dtype=int32 value=int32[2]*32\n"
        "any = Const() dtype=int32 value=int32[]*-1\n"
        "size = Const() dtype=int32 value=int32[]*4\n"
        "inner = EmptyTensorList(shape, size) element_dtype=float32 shape_type=int32\n"
        "write = TensorListPushBack(inner, allow1) element_dtype=float32\n"
        "outer = EmptyTensorList(any, size) element_dtype=variant shape_type=int32\n"
        "write_list = TensorListPushBack(outer, write) element_dtype=variant\n"
        "read_list = TensorListPopBack(write_list, any) element_dtype=variant\n"
        "read = TensorListPopBack(read_list:1, shape) element_dtype=float32\n"
        "two = Const() value=float32[]*2\ninfer1 = Mul(read:1, two)\nfetch = Identity(infer1)"
    )
    original, ours = both(graph_def, BF16)
    assert original & {"write", "read"} == {"write"}
    assert not {"write", "read"} & ours
    with pytest.raises(tf.errors.InvalidArgumentError, match="list elements"):
        run(run_original(graph_def, BF16, ("fetch",)).graph, ("fetch",))
    run(run_ours(graph_def, BF16, ("fetch",)).graph, ("fetch",))


def test_shared_maker():
    """TensorFlow gives all lists that one op made one type; amp_tf parts them."""
    original, ours = both(graph(SHARED), BF16, ("fetch1", "fetch2"))
    lists = {"narrow", "back1", "wide", "back2", "empty"}
    assert not lists & original
    assert lists & ours == {"narrow", "back1"}


def test_shared_reads():
    """A layer that is shared reads its weights in each call, and TensorFlow casts each read; in
    amp_tf they are one.
    """
    graph_def = graph((X + TWO_READS).replace("()", "() shape=[4, 4]"))
    for rewritten, expected in ((run_original, 2), (run_ours, 1)):
        result = rewritten(graph_def, BF16, ("out",)).graph
        cast = set()
        for node in result.node:
            if node.op == "Cast":
                cast.add(node.input[0])
        assert len(cast & {"r1", "r2"}) == expected


@pytest.mark.parametrize("mode", BOTH)
def test_hoisted_reads(mode):
    """A weight that a loop only reads is cast before it; TensorFlow casts it in each iteration."""
    graph_def = graph(LOOP_OF_PRODUCTS)
    for rewritten, expected in ((run_original, {"read"}), (run_ours, {EARLY})):
        result = rewritten(graph_def, mode, ("fetch",)).graph
        cast = {node.input[0] for node in result.node if node.op == "Cast"}
        assert cast & {"read", EARLY} == expected


def test_call_boundary():
    """A TensorList that enters a functional While belongs to its body as well, which TensorFlow
    does not know.
    """

    @tf.function
    def repeat(x):
        i = tf.constant(0)
        states = tf.TensorArray(tf.float32, 3, element_shape=[32, 32])
        while i < 3:
            states = states.write(i, x)
            i = i + 1
        return tf.identity(tf.matmul(states.stack()[0], x, name="allow1"), name="fetch")

    graph_def = repeat.get_concrete_function(tf.TensorSpec([32, 32])).graph.as_graph_def()
    (loop,) = (node.name for node in graph_def.node if node.op in ("While", "StatelessWhile"))
    lists = {node.name for node in graph_def.node if "TensorList" in node.op}
    original, ours = both(graph_def, BF16)
    # The body still reads and writes float32: TensorFlow's graph cannot run.
    assert len(lists) == 2
    assert lists <= original
    assert not {loop, *lists} & ours
    assert "allow1" in ours
