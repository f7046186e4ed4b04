"""Names in list changes that do nothing: misspelt ones, ones of ops that load later, and removals without effect."""

from __future__ import annotations

import logging

import pytest

import amp_tf
from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import OpListError
from amp_tf.offline.explain import explain
from amp_tf.oplists import op_names
from tests.oplists.late_op import register_op
from tests.small_graphs import graph

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
PRODUCT = "x = Placeholder()\nm = MatMul(x, x)"
FIELDS = [f"{name}_{action}" for name in LIST_NAMES for action in ("add", "remove")]


def unknown(config: AmpConfig) -> list[tuple[str, str]]:
    return [(entry.field, entry.op) for entry in op_names.find_unknown(config)]


@pytest.mark.parametrize("field", FIELDS)
def test_rewrite_refuses_a_name_that_tensorflow_does_not_know_and_names_setting_and_near_matches(field):
    with pytest.raises(OpListError) as caught:
        amp_tf.rewrite(graph(PRODUCT), AmpConfig(**{field: ("MatMull",)}))
    variable = PREFIX + field.upper().replace("_", "LIST_")
    assert str(caught.value) == (
        f"AmpConfig.{field} ({variable}): TensorFlow knows no op 'MatMull'. "
        "Did you mean 'MatMul'? "
        "An op of a library of your own must be loaded before (tf.load_op_library)."
    )


def test_a_name_that_is_like_no_other_is_refused_without_a_guess():
    with pytest.raises(OpListError, match=r"knows no op 'Qqxxzz'\. An op of a library"):
        amp_tf.rewrite(graph(PRODUCT), AmpConfig(deny_add=("Qqxxzz",)))


def test_the_case_of_letters_counts_and_the_right_one_is_suggested():
    (entry,) = op_names.find_unknown(AmpConfig(allow_add=("matmul",)))
    assert "'MatMul'" in entry.guess


def test_explain_refuses_it_too():
    with pytest.raises(OpListError, match="knows no op 'Rellu'"):
        explain(graph(PRODUCT), "m", AmpConfig(clear_add=("Rellu",)))


def test_names_of_the_tables_and_of_private_ops_are_known():
    config = AmpConfig(allow_remove=("_FusedMatMul", "MatMul"), clear_remove=("Relu",), deny_add=("Sin",))
    assert unknown(config) == []
    assert op_names.without(config, ()) is config


def test_unknown_names_are_left_out_of_each_change_and_the_rest_stays():
    config = AmpConfig(precision="float16", allow_add=("Sin", "Sinn"), deny_remove=("Expp",))
    found = op_names.find_unknown(config)
    assert [(entry.field, entry.op) for entry in found] == [("allow_add", "Sinn"), ("deny_remove", "Expp")]
    assert op_names.without(config, found) == AmpConfig(precision="float16", allow_add=("Sin",))


def test_an_op_that_is_loaded_later_is_known_from_then_on():
    config = AmpConfig(deny_add=("AmpTfLateOp",))
    assert unknown(config) == [("deny_add", "AmpTfLateOp")]
    register_op("AmpTfLateOp")
    assert unknown(config) == []
    amp_tf.rewrite(graph(PRODUCT), config)


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({"deny_remove": ("MatMul",)}, [("deny_remove", "MatMul")]),
        ({"allow_remove": ("Sin",)}, [("allow_remove", "Sin")]),
        ({"deny_remove": ("Exp",)}, []),
        ({"infer_remove": ("Sum",)}, []),  # on the CPU's infer list, on the GPU's deny list
        ({"deny_remove": ("Sum",)}, []),
        ({f"{name}_remove": ("Relu",) for name in LIST_NAMES} | {"allow_add": ("Relu",)}, []),  # a move
        ({"infer_remove": ("Sin",), "clear_add": ("Sin",)}, []),
    ],
)
def test_a_removal_from_a_list_that_the_op_is_not_on_is_found_unless_it_is_part_of_a_move(changes, idle):
    assert list(op_names.find_idle_removals(AmpConfig(**changes))) == idle


def test_a_removal_that_changes_nothing_is_told_once_and_is_no_error(caplog):
    config = AmpConfig(deny_remove=("Conv3D",), infer_remove=("Cos",), precision="bfloat16")
    with caplog.at_level(logging.WARNING, logger="absl"):
        for _ in range(2):
            assert amp_tf.rewrite(graph(PRODUCT), config).changed
    assert [record.getMessage() for record in caplog.records] == [
        f"amp_tf: AmpConfig.infer_remove ({PREFIX}INFERLIST_REMOVE): op 'Cos' is not on the infer list, so removing it "
        "changes nothing. It is on no list.",
        f"amp_tf: AmpConfig.deny_remove ({PREFIX}DENYLIST_REMOVE): op 'Conv3D' is not on the deny list, so removing it "
        "changes nothing. It is on the allow list.",
    ]
