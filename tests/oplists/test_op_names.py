"""Ops by the names that users give: those of list changes, and those of custom libraries."""

import ctypes
import logging
from pathlib import Path

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import ConfigError, OpListError
from amp_tf.offline.explain import explain
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.reasons import Code
from tests.small_graphs import graph

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
PRODUCT = "x = Placeholder()\nm = MatMul(x, x)"
FIELDS = [f"{name}_{action}" for name in LIST_NAMES for action in ("add", "remove")]


def register_op(name):
    """Registers an op without inputs and outputs by TensorFlow's C API (tensorflow/c/ops.h)."""
    library = ctypes.CDLL(str(Path(tf.__file__).parent / "libtensorflow_cc.so.2"))
    for function in ("TF_NewOpDefinitionBuilder", "TF_NewStatus"):
        getattr(library, function).restype = ctypes.c_void_p
    library.TF_NewOpDefinitionBuilder.argtypes = [ctypes.c_char_p]
    library.TF_RegisterOpDefinition.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.TF_RegisterOpDefinition.restype = None
    library.TF_GetCode.argtypes = [ctypes.c_void_p]
    library.TF_DeleteStatus.argtypes = [ctypes.c_void_p]
    library.TF_DeleteStatus.restype = None
    status = library.TF_NewStatus()
    library.TF_RegisterOpDefinition(library.TF_NewOpDefinitionBuilder(name.encode()), status)
    code = library.TF_GetCode(status)
    library.TF_DeleteStatus(status)
    assert code == 0, f"TensorFlow refuses to register {name}: status {code}"


@pytest.mark.parametrize("field", FIELDS)
def test_rewrite_refuses_a_name_that_tensorflow_does_not_know_and_names_setting_and_near_matches(
    field,
):
    with pytest.raises(OpListError) as caught:
        amp_tf.rewrite(graph(PRODUCT), AmpConfig(**{field: ("MatMull",)}))
    variable = PREFIX + field.upper().replace("_", "LIST_")
    assert str(caught.value) == (
        f"AmpConfig.{field} ({variable}): TensorFlow knows no op 'MatMull'. "
        "Did you mean 'MatMul'? "
        "An op of a library of your own must be loaded before (tf.load_op_library)."
    )


def test_names_of_the_tables_and_of_private_ops_are_known():
    removed = ("_FusedMatMul", "MatMul")
    config = AmpConfig(allow_remove=removed, clear_remove=("Relu",), deny_add=("Sin",))
    assert list(op_names.find_unknown(config)) == []
    assert op_names.without(config, ()) is config


def test_unknown_names_are_left_out_of_each_change_and_the_rest_stays():
    config = AmpConfig(precision="float16", allow_add=("Sin", "Sinn"), deny_remove=("Expp",))
    found = op_names.find_unknown(config)
    assert [(entry.field, entry.op) for entry in found] == [
        ("allow_add", "Sinn"),
        ("deny_remove", "Expp"),
    ]
    assert op_names.without(config, found) == AmpConfig(precision="float16", allow_add=("Sin",))


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({"deny_remove": ("MatMul",)}, [("deny_remove", "MatMul")]),
        ({"allow_remove": ("Sin",)}, [("allow_remove", "Sin")]),
        ({"deny_remove": ("Exp",)}, []),
        ({"infer_remove": ("Sum",)}, []),  # on the CPU's infer list, on the GPU's deny list
        ({"deny_remove": ("Sum",)}, []),
        (
            {f"{name}_remove": ("Relu",) for name in LIST_NAMES} | {"allow_add": ("Relu",)},
            [],
        ),  # a move
        ({"infer_remove": ("Sin",), "clear_add": ("Sin",)}, []),
    ],
)
def test_a_removal_from_a_list_that_the_op_is_not_on_is_found_unless_it_is_part_of_a_move(
    changes, idle
):
    assert list(op_names.find_idle_removals(AmpConfig(**changes))) == idle


def test_a_removal_that_changes_nothing_is_told_once_and_is_no_error(caplog):
    config = AmpConfig(deny_remove=("Conv3D",), infer_remove=("Cos",), precision="bfloat16")
    with caplog.at_level(logging.WARNING, logger="absl"):
        for _ in range(2):
            assert amp_tf.rewrite(graph(PRODUCT), config).changed
    infer, deny = (record.getMessage() for record in caplog.records)
    assert infer == (
        f"amp_tf: AmpConfig.infer_remove ({PREFIX}INFERLIST_REMOVE): op 'Cos' is not on the infer "
        "list, so removing it changes nothing. It is on no list."
    )
    assert deny == (
        f"amp_tf: AmpConfig.deny_remove ({PREFIX}DENYLIST_REMOVE): op 'Conv3D' is not on the deny "
        "list, so removing it changes nothing. It is on the allow list."
    )


BF16_CPU = Hardware(cpu_has_bf16=True)
TEXT = """
    x = Placeholder()
    allow1 = MatMul(x, x)
    own = RGBToHSV(allow1)
    allow2 = MatMul(own, x)
    deny1 = Exp(allow2)
"""
WHY = "computes each color by itself"


@pytest.fixture(autouse=True)
def nothing_registered():
    op_names._rows.clear()
    yield
    op_names._rows.clear()


def report(text=TEXT, **settings):
    settings.setdefault("precision", "bfloat16")
    config = amp_tf.AmpConfig(**settings)
    return amp_tf.rewrite(graph(text), config, hardware=BF16_CPU).report


def rule_of(name, **settings):
    (found,) = (node for node in report(**settings).nodes if node.name == name)
    return found.reason.code


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("allow", Code.ALLOW_LIST),
        ("infer", Code.BETWEEN_ALLOW),
        ("clear", Code.BETWEEN_ALLOW),
        ("deny", Code.DENY_LIST),
    ],
)
def test_a_registered_op_is_on_its_list_from_then_on(name, rule):
    assert rule_of("own") is Code.NOT_LISTED
    amp_tf.register_op("RGBToHSV", list=name, why=WHY)
    assert rule_of("own") is rule
    for hardware in (BF16_CPU, Hardware(gpu_capabilities=((8, 0),))):
        target = resolve_target(amp_tf.AmpConfig(), hardware).target
        assert target is not None
        assert target.lists.list_of["RGBToHSV"] == name


def test_settings_of_the_user_win():
    amp_tf.register_op("RGBToHSV", list="infer", why=WHY)
    own = ("RGBToHSV",)
    assert rule_of("own", deny_add=own) is Code.DENY_LIST
    assert rule_of("own", infer_remove=own) is Code.NOT_LISTED
    assert rule_of("own", level="TREAT_INFER_AS_DENY") is Code.DENY_LIST
    assert op_names.find_idle_removals(AmpConfig(infer_remove=own)) == ()
    (idle,) = op_names.find_idle_removals(AmpConfig(deny_remove=own))
    assert idle == ("deny_remove", "RGBToHSV")


def test_registering_the_same_again_does_no_harm():
    amp_tf.register_op("RGBToHSV", list="infer", why=WHY)
    amp_tf.register_op("RGBToHSV", list="infer", why="is elementwise")
    assert [row.why for row in op_names.registered_rows()] == ["is elementwise"] * 2


STAYS = "Its row stays for all; a program moves it for itself by"
INFER, CLEAR, ALLOW = (
    f"AmpConfig.{name}_add (TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name.upper()}LIST_ADD)"
    for name in ("infer", "clear", "allow")
)
REASON = (
    'Write words that complete "because it …", such as "is a matrix product and sums in float32"'
)


@pytest.mark.parametrize(
    ("op", "name", "why", "message"),
    [
        (
            "Own",
            "grey",
            WHY,
            "('Own', list): 'grey' is not a valid value. Valid values: allow, infer, deny, clear.",
        ),
        ("Own", "infer", " ", f"('Own', why): ' ' is no reason. {REASON}."),
        (
            "my op",
            "infer",
            WHY,
            ": 'my op' is not the name of an op. Write it as REGISTER_OP has it.",
        ),
        (None, "infer", WHY, ": None is not the name of an op. Write it as REGISTER_OP has it."),
        (
            "MatMul",
            "infer",
            WHY,
            f": op 'MatMul' is on the allow list of amp_tf itself. {STAYS} {INFER}.",
        ),
        (
            "Sum",
            "clear",
            WHY,
            f": op 'Sum' is on the infer and the deny list of amp_tf itself. {STAYS} {CLEAR}.",
        ),
        (
            "RGBToHSV",
            "allow",
            WHY,
            ": op 'RGBToHSV' is registered for the infer list (it computes each color by itself). "
            "Register it once; a "
            f"program moves it for itself by {ALLOW}.",
        ),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(op, name, why, message):
    amp_tf.register_op("RGBToHSV", list="infer", why=WHY)
    with pytest.raises(OpListError if ": op " in message else ConfigError) as caught:
        amp_tf.register_op(op, list=name, why=why)
    assert str(caught.value) == f"amp_tf.register_op{message}"
    assert {row.op for row in op_names.registered_rows()} == {"RGBToHSV"}


def test_explain_and_the_report_say_why():
    amp_tf.register_op("RGBToHSV", list="deny", why=WHY)
    config = amp_tf.AmpConfig(precision="bfloat16")
    explanation = explain(graph(TEXT), "own", config, hardware=BF16_CPU)
    assert str(explanation).splitlines()[:2] == [
        "own (RGBToHSV, on the deny list) computes in float32: its op is on the deny list.",
        "The op was registered for that list because it computes each color by itself.",
    ]
    moved = amp_tf.AmpConfig(precision="bfloat16", infer_add=("RGBToHSV",))
    assert explain(graph(TEXT), "own", moved, hardware=BF16_CPU).registered == ""
    assert str(report()).splitlines()[-2:] == [
        "registered by libraries:",
        "  RGBToHSV: deny list, because it computes each color by itself",
    ]
    assert "registered" in str(report())
    assert "registered" not in str(report("x = Placeholder()\nallow1 = MatMul(x, x)"))
    settings = amp_tf.report().to_dict()["settings"]
    assert settings[-1] == {
        "field": "op RGBToHSV",
        "value": "deny list, because it computes each color by itself",
        "from": "amp_tf.register_op",
    }
