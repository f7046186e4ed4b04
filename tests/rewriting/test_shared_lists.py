"""TensorLists that functions share: 16 bit where that rounds nothing that was not rounded."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.rewriting.pipeline import rewrite_program
from tests.small_graphs import function

XLA = Hardware(cpu_has_bf16=True, is_xla=True)

MAIN = """
    function main(x: float32, w: float32) -> (y: float32)
      shape = Const() dtype=int32 value=int32[2]*4
      size = Const() dtype=int32 value=int32[]*2
      list = EmptyTensorList(shape:output:0, size:output:0) element_dtype=float32 shape_type=int32
      kept = PartitionedCall(list:handle:0, x, w) Tin=[variant, float32, float32] Tout=[variant] f=keep
      used = PartitionedCall(kept:output:0, w) Tin=[variant, float32] Tout=[float32] f=use
      return y = used:output:0
"""
KEEP = """
    function keep(list: variant, x: float32, w: float32) -> (more: variant)
      product = MatMul(x, w)
      pushed = TensorListPushBack(list, {value}) element_dtype=float32
      return more = pushed:output_handle:0
"""
USE = """
    function use(list: variant, w: float32) -> (y: float32)
      shape = Const() dtype=int32 value=int32[2]*4
      popped = TensorListPopBack(list, shape:output:0) element_dtype=float32
      wave = {op}(popped:tensor:0)
      other = Sin(popped:tensor:0)
      product = MatMul({value}, w)
      return y = product:product:0
"""
READ_BY_PRODUCT = USE.replace("      wave = {op}(popped:tensor:0)\n      other = Sin(popped:tensor:0)\n", "")


def types_of_lists(*texts: str, unknown: tuple[str, ...] = (), **settings) -> dict[str, str]:
    """The element type of each node of a list, by its name; the first function is the root."""
    results = rewritten(*texts, unknown=unknown, **settings)
    return {
        node.name: tf.as_dtype(node.attr["element_dtype"].type).name
        for result in results
        for node in result.graph.node_def
        if "element_dtype" in node.attr
    }


def rewritten(*texts: str, unknown: tuple[str, ...] = (), **settings):
    root, *functions = map(function, texts)
    config = AmpConfig(precision="bfloat16", **settings)
    library = FunctionDefLibrary(function=functions)
    return rewrite_program(root, [f for f in functions if f.signature.name not in unknown], config, XLA, library)


def everywhere(kind: str) -> dict[str, str]:
    return dict.fromkeys(("list", "pushed", "popped"), kind)


def test_what_products_alone_read_is_rounded_before_it_is_kept():
    texts = MAIN, KEEP.format(value="x"), READ_BY_PRODUCT.format(value="popped:tensor:0")
    main, keep, use = rewritten(*texts)
    assert types_of_lists(*texts) == everywhere("bfloat16")
    assert use.report.graphs[0].painting.count(Rule.LIST_SHARED) == 1
    assert [node.input[0] for node in keep.graph.node_def if node.op == "Cast"] == ["x", "w"]  # x for both who read it
    casts = [node for node in use.graph.node_def if node.op == "Cast"]
    assert [node.input[0] for node in casts] == ["w", "product:product:0"]  # none of what is read
    assert main.changed
    assert main.report.why_nothing is None


@pytest.mark.parametrize("op", ["Sin", "Exp"])
def test_what_others_read_too_stays(op):
    use = USE.format(value="popped:tensor:0", op=op)
    assert types_of_lists(MAIN, KEEP.format(value="x"), use) == everywhere("float32")


def test_what_was_rounded_before_is_kept_as_it_is_whoever_reads_it():
    use = USE.format(value="wave:y:0", op="Sin")
    assert types_of_lists(MAIN, KEEP.format(value="product:product:0"), use) == everywhere("bfloat16")


def test_a_list_that_is_read_into_another_is_rounded_by_it():
    relay = """
        function relay(list: variant, other: variant) -> (more: variant)
          shape = Const() dtype=int32 value=int32[2]*4
          taken = TensorListPopBack(list, shape:output:0) element_dtype=float32
          put = TensorListPushBack(other, taken:tensor:0) element_dtype=float32
          return more = put:output_handle:0
    """
    main = MAIN.replace("used = PartitionedCall(kept:output:0,", "used = PartitionedCall(moved:output:0,")
    main = main.replace(
        "      used",
        "      second = EmptyTensorList(shape:output:0, size:output:0) element_dtype=float32 shape_type=int32\n"
        "      moved = PartitionedCall(kept:output:0, second:handle:0) Tin=[variant, variant] Tout=[variant] f=relay\n"
        "      used",
    )
    keep, names = KEEP.format(value="x"), ("list", "second", "pushed", "taken", "put", "popped")
    found = types_of_lists(main, keep, relay, READ_BY_PRODUCT.format(value="popped:tensor:0"))
    assert found == dict.fromkeys(names, "bfloat16")
    found = types_of_lists(main, keep, relay, USE.format(value="popped:tensor:0", op="Sin"))
    assert found == dict.fromkeys(names, "float32")


@pytest.mark.parametrize("name", ["list", "pushed", "popped"])
def test_a_list_that_the_user_keeps_somewhere_stays_everywhere(name):
    texts = MAIN, KEEP.format(value="x"), READ_BY_PRODUCT.format(value="popped:tensor:0")
    assert types_of_lists(*texts, keep_float32=(f"^{name}$",)) == everywhere("float32")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(y: float32)", "(y: float32, out: variant)\n      return out = kept:output:0"),
        ("return y", "seen = OptionalFromValue(kept:output:0) Toutput_types=[variant]\n      return y"),
        (
            "return y",
            "lost = PartitionedCall(kept:output:0) Tin=[variant] Tout=[variant] f=nobody_knows\n      return y",
        ),
    ],
)
def test_a_list_of_which_not_all_users_are_known_stays(before, after):
    main, keep = MAIN.replace(before, after), KEEP.format(value="x")
    found = types_of_lists(main, keep, READ_BY_PRODUCT.format(value="popped:tensor:0"))
    assert found == everywhere("float32")


def test_a_list_that_a_recursive_function_takes_stays():
    """Its call goes on with the function as it was."""
    use = READ_BY_PRODUCT.format(value="popped:tensor:0")
    again = "again = PartitionedCall(list, w) Tin=[variant, float32] Tout=[float32] f=use\n      return y"
    texts = MAIN, KEEP.format(value="x"), use.replace("return y", again)
    assert types_of_lists(*texts) == everywhere("float32")


def test_a_list_that_a_function_uses_which_may_not_be_rewritten_stays():
    texts = MAIN, KEEP.format(value="x"), READ_BY_PRODUCT.format(value="popped:tensor:0")
    assert "pushed" in types_of_lists(*texts, unknown=("use",))
    assert set(types_of_lists(*texts, unknown=("use",)).values()) == {"float32"}
