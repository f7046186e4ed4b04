from __future__ import annotations

import pytest

from amp_tf.config import AmpConfig
from amp_tf.oplists.cost_tables import SHIPPED_FOLDER, read_table
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import FLOAT32_ONLY_IN_XLA, ROWS, TABLES
from amp_tf.oplists.targets import build_lists, device_type_of, resolve_target
from amp_tf.precision import Precision

VOLTA = Hardware(gpu_capabilities=((7, 0),), cpu_has_bf16=True)
PASCAL = Hardware(gpu_capabilities=((6, 1),), cpu_has_bf16=True)
BF16_CPU = Hardware(cpu_has_bf16=True)
OLD_CPU = Hardware()
SLOW_BF16_CPU = Hardware(
    cpu_has_bf16=True, costs=read_table(SHIPPED_FOLDER / "intel-without-amx.json")
)
XLA_CPU = Hardware(cpu_has_bf16=True, is_xla=True)
XLA_GPU = Hardware(gpu_capabilities=((9, 0),), cpu_has_bf16=True, is_xla=True)
XLA_WIDENS = (
    "XLA:CPU widens bfloat16 operands to float32, so that 16 bit is not faster there; "
    "AMP_TF_PRECISION=bfloat16 "
    "converts anyway"
)
F16, BF16 = Precision.FLOAT16, Precision.BFLOAT16


@pytest.mark.parametrize(
    ("hardware", "settings", "device_type", "precision", "table"),
    [
        (VOLTA, {}, "GPU", F16, "cuda"),
        (VOLTA, {"precision": "bfloat16"}, "GPU", BF16, "cuda"),
        (VOLTA, {"target": "cpu"}, "CPU", BF16, "cpu"),
        (VOLTA, {"target": "cpu", "precision": "float16"}, "CPU", F16, "cuda"),
        (PASCAL, {"ignore_performance": True}, "GPU", F16, "cuda"),
        (PASCAL, {"target": "cpu"}, "CPU", BF16, "cpu"),
        (BF16_CPU, {}, "CPU", BF16, "cpu"),
        (BF16_CPU, {"precision": "bfloat16"}, "CPU", BF16, "cpu"),
        (BF16_CPU, {"precision": "float16"}, "CPU", F16, "cuda"),
        (BF16_CPU, {"target": "gpu"}, "GPU", F16, "cuda"),
        (BF16_CPU, {"target": "gpu", "precision": "bfloat16"}, "GPU", BF16, "cuda"),
        (OLD_CPU, {"precision": "bfloat16"}, "CPU", BF16, "cpu"),
        (SLOW_BF16_CPU, {"precision": "bfloat16"}, "CPU", BF16, "cpu"),
        (SLOW_BF16_CPU, {"target": "cpu"}, "CPU", BF16, "cpu"),
        (SLOW_BF16_CPU, {"goal": "memory"}, "CPU", BF16, "cpu"),
        (OLD_CPU, {"precision": "float16"}, "CPU", F16, "cuda"),
        (OLD_CPU, {"ignore_performance": True}, "CPU", BF16, "cpu"),
        (OLD_CPU, {"target": "cpu"}, "CPU", BF16, "cpu"),
        (OLD_CPU, {"target": "gpu"}, "GPU", F16, "cuda"),
        (XLA_GPU, {}, "GPU", F16, "cuda"),
        (XLA_CPU, {"target": "gpu"}, "GPU", F16, "cuda"),
        (XLA_CPU, {"precision": "bfloat16"}, "CPU", BF16, "cpu"),
        (XLA_CPU, {"ignore_performance": True}, "CPU", BF16, "cpu"),
        (XLA_CPU, {"allow_add": ("MatMul",)}, "CPU", BF16, "cpu"),
        (XLA_CPU, {"force_f16": ("dense",)}, "CPU", BF16, "cpu"),
    ],
)
def test_hardware_and_settings_give_a_target(hardware, settings, device_type, precision, table):
    resolution = resolve_target(AmpConfig(**settings), hardware)
    target = resolution.target
    assert (target.device_type, target.precision, target.lists.table) == (
        device_type,
        precision,
        table,
    )
    assert resolution.default_device == device_type
    assert resolution.why_none == ""


@pytest.mark.parametrize(
    ("hardware", "settings", "why"),
    [
        (OLD_CPU, {}, "this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU"),
        (
            OLD_CPU,
            {"goal": "memory"},
            "this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU",
        ),
        (SLOW_BF16_CPU, {}, "this CPU is no faster in bfloat16 and TensorFlow sees no GPU"),
        (XLA_CPU, {}, XLA_WIDENS),
        (XLA_GPU, {"target": "cpu"}, XLA_WIDENS),
        (PASCAL, {}, "the GPU is too old: compute capability 6.1, 16 bit is fast from 7.0 on"),
        (
            PASCAL,
            {"precision": "bfloat16"},
            "the GPU is too old: compute capability 6.1, 16 bit is fast from 7.0 on",
        ),
        (
            PASCAL,
            {"target": "gpu"},
            "the GPU is too old: compute capability 6.1, 16 bit is fast from 7.0 on",
        ),
        (
            Hardware(gpu_capabilities=((8, 0), (6, 0))),
            {},
            "the GPU is too old: compute capability 8.0, 6.0, 16 bit is fast from 7.0 on",
        ),
    ],
)
def test_where_there_is_no_target_the_reason_is_said(hardware, settings, why):
    resolution = resolve_target(AmpConfig(**settings), hardware)
    assert resolution.target is None
    assert resolution.why_none == why


@pytest.mark.parametrize(
    ("device", "device_type"),
    [
        ("", ""),
        ("/job:worker/replica:0/task:1", ""),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "CPU"),
        ("/job:localhost/replica:0/task:0/device:GPU:1", "GPU"),
        ("/gpu:0", "GPU"),
        ("/cpu:0", "CPU"),
        ("/device:GPU", "GPU"),
        ("/device:XLA_GPU:0", "GPU"),
        ("/device:TPU:0", "OTHER"),
        ("/job:gpu_worker/task:0/device:CPU:0", "CPU"),
        ("/job:gpu_worker/task:0", ""),
    ],
)
def test_a_device_string_has_a_type(device, device_type):
    assert device_type_of(device) == device_type


@pytest.mark.parametrize(
    ("precision", "hardware", "usable"),
    [
        ("bfloat16", Hardware(cpu_has_bf16=True), True),
        ("bfloat16", Hardware(cpu_has_avx512=True), True),
        ("bfloat16", Hardware(), False),
        ("bfloat16", Hardware(cpu_has_bf16=True, cpu_has_avx512=True, has_onednn=False), False),
        ("float16", Hardware(cpu_has_bf16=True, cpu_has_avx512=True), False),
        ("float16", Hardware(gpu_capabilities=((8, 0),)), True),
    ],
)
def test_fused_products_are_converted_only_where_their_kernels_are_real(
    precision, hardware, usable
):
    target = resolve_target(AmpConfig(precision=precision), hardware).target
    assert ("_FusedMatMul" not in target.without_kernel) == usable
    assert "MatMul" not in target.without_kernel
    assert {"MatMul", "_FusedMatMul"} <= {*target.lists.members("allow")}


@pytest.mark.parametrize("hardware", [XLA_CPU, XLA_GPU])
def test_what_xla_compiles_in_float32_alone_leaves_the_lists_even_where_the_user_adds_it(hardware):
    config = AmpConfig(
        precision="bfloat16", clear_remove=("MaxPoolGradGrad",), allow_add=("MaxPoolGradGrad",)
    )
    assert FLOAT32_ONLY_IN_XLA.isdisjoint(resolve_target(config, hardware).target.lists.list_of)
    assert "MaxPoolGradGrad" in resolve_target(config, BF16_CPU).target.lists.list_of


@pytest.mark.parametrize("table", TABLES)
def test_without_changes_the_lists_are_the_table(table):
    lists = build_lists(table, AmpConfig())
    assert dict(lists.list_of) == {row.op: row.op_list for row in ROWS if row.table == table}
    assert not lists.force_all


def test_an_op_that_both_joins_and_leaves_is_off_the_list():
    assert (
        "Cumsum"
        not in build_lists(
            "cpu", AmpConfig(infer_add=("Cumsum",), infer_remove=("Cumsum",))
        ).list_of
    )


def test_an_op_moves_by_a_remove_and_an_add():
    assert (
        build_lists("cuda", AmpConfig(deny_remove=("Sum",), infer_add=("Sum",))).list_of["Sum"]
        == "infer"
    )


@pytest.mark.parametrize(
    ("add", "op"), [("infer_add", "MatMul"), ("clear_add", "Exp"), ("clear_add", "Add")]
)
@pytest.mark.parametrize("table", TABLES)
def test_an_op_that_joins_a_list_leaves_the_one_that_it_is_on(table, add, op):
    assert build_lists(table, AmpConfig(**{add: (op,)})).list_of[op] == add.removesuffix("_add")
