import dataclasses

import pytest

from amp_tf.config import AmpConfig
from amp_tf.oplists.cost_tables import SHIPPED_FOLDER, read_table
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import FLOAT32_ONLY_IN_XLA, ROWS, TABLES
from amp_tf.oplists.targets import build_lists, device_type_of, hardware_for, resolve_target

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


MACHINES = {
    "Volta": VOLTA,
    "Pascal": PASCAL,
    "bfloat16 CPU": BF16_CPU,
    "slow CPU": SLOW_BF16_CPU,
    "old CPU": OLD_CPU,
    "bfloat16 CPU without oneDNN": dataclasses.replace(BF16_CPU, has_onednn=False),
    "XLA, CPU": XLA_CPU,
    "XLA, GPU": XLA_GPU,
}
TOO_OLD = "the GPU is too old: compute capability 6.1, 16 bit is fast from 7.0 on"
NO_FASTER = "this CPU is no faster in bfloat16 and TensorFlow sees no GPU"
NEITHER = "this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU"
#: A machine, settings, and the target's device, precision and table, or why there is none.
ROWS_OF_TARGETS = f"""
    Volta: : GPU float16 cuda
    Volta: precision=bfloat16: GPU bfloat16 cuda
    Volta: target=cpu: CPU bfloat16 cpu
    Volta: target=cpu precision=float16: CPU float16 cuda
    Pascal: ignore_performance=1: GPU float16 cuda
    Pascal: target=cpu: CPU bfloat16 cpu
    Pascal: : {TOO_OLD}
    Pascal: precision=bfloat16: {TOO_OLD}
    Pascal: target=gpu: {TOO_OLD}
    bfloat16 CPU: : CPU bfloat16 cpu
    bfloat16 CPU: precision=bfloat16: CPU bfloat16 cpu
    bfloat16 CPU: precision=float16: CPU float16 cuda
    bfloat16 CPU: target=gpu: GPU float16 cuda
    bfloat16 CPU: target=gpu precision=bfloat16: GPU bfloat16 cuda
    slow CPU: precision=bfloat16: CPU bfloat16 cpu
    slow CPU: target=cpu: CPU bfloat16 cpu
    slow CPU: goal=memory: CPU bfloat16 cpu
    slow CPU: : {NO_FASTER}
    bfloat16 CPU without oneDNN: : without oneDNN {NO_FASTER}
    bfloat16 CPU without oneDNN: precision=bfloat16: CPU bfloat16 cpu
    old CPU: precision=bfloat16: CPU bfloat16 cpu
    old CPU: precision=float16: CPU float16 cuda
    old CPU: ignore_performance=1: CPU bfloat16 cpu
    old CPU: target=cpu: CPU bfloat16 cpu
    old CPU: target=gpu: GPU float16 cuda
    old CPU: : {NEITHER}
    old CPU: goal=memory: {NEITHER}
    XLA, GPU: : GPU float16 cuda
    XLA, GPU: target=cpu: {XLA_WIDENS}
    XLA, CPU: target=gpu: GPU float16 cuda
    XLA, CPU: precision=bfloat16: CPU bfloat16 cpu
    XLA, CPU: ignore_performance=1: CPU bfloat16 cpu
    XLA, CPU: allow_add=MatMul: CPU bfloat16 cpu
    XLA, CPU: force_f16=dense: CPU bfloat16 cpu
    XLA, CPU: : {XLA_WIDENS}
"""


@pytest.mark.parametrize("row", ROWS_OF_TARGETS.strip().splitlines())
def test_hardware_and_settings_give_a_target_or_a_reason_why_there_is_none(row):
    machine, given, expected = row.strip().split(": ", 2)
    settings = dict(setting.split("=") for setting in given.split())
    if "ignore_performance" in settings:
        settings["ignore_performance"] = True
    for name in settings.keys() & {"allow_add", "force_f16"}:
        settings[name] = (settings[name],)
    resolution = resolve_target(AmpConfig(**settings), MACHINES[machine])
    target = resolution.target
    if target is None:
        assert resolution.why_none == expected
        return
    assert f"{target.device_type} {target.precision.value} {target.lists.table}" == expected
    assert resolution.default_device == target.device_type
    assert resolution.why_none == ""


def test_the_oldest_of_several_gpus_decides():
    resolution = resolve_target(AmpConfig(), Hardware(gpu_capabilities=((8, 0), (6, 0))))
    assert resolution.target is None
    assert resolution.why_none == TOO_OLD.replace("6.1", "8.0, 6.0")


DEVICES = """
    /job:localhost/replica:0/task:0/device:CPU:0 CPU
    /job:localhost/replica:0/task:0/device:GPU:1 GPU
    /gpu:0 GPU
    /cpu:0 CPU
    /device:GPU GPU
    /device:XLA_GPU:0 GPU
    /device:TPU:0 OTHER
    /job:gpu_worker/task:0/device:CPU:0 CPU
"""


def test_a_target_that_is_named_needs_no_such_device_here(monkeypatch):
    """A copy that is made on any machine has the kernels of the machine that it is made for."""
    monkeypatch.setattr(
        Hardware, "detect_cpu", lambda: dataclasses.replace(OLD_CPU, has_onednn=False)
    )
    for target, rounds in (("gpu", False), ("cpu", False), ("auto", True)):
        config = AmpConfig(precision="bfloat16", target=target)
        found = resolve_target(config, hardware_for(config)).target
        assert bool(found.rounded) == rounds
        assert found.device_type == ("GPU" if target == "gpu" else "CPU")


@pytest.mark.parametrize("row", DEVICES.strip().splitlines())
def test_a_device_string_has_a_type(row):
    device, device_type = row.split()
    assert device_type_of(device) == device_type


@pytest.mark.parametrize("device", ["", "/job:worker/replica:0/task:1", "/job:gpu_worker/task:0"])
def test_a_device_string_may_have_none(device):
    assert device_type_of(device) == ""


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
    in_xla = resolve_target(config, hardware).target.lists
    assert FLOAT32_ONLY_IN_XLA.isdisjoint(in_xla.list_of)
    elsewhere = resolve_target(config, BF16_CPU).target.lists
    assert "MaxPoolGradGrad" in elsewhere.list_of


@pytest.mark.parametrize("table", TABLES)
def test_without_changes_the_lists_are_the_table(table):
    lists = build_lists(table, AmpConfig())
    wanted = {}
    for row in ROWS:
        if row.table == table:
            wanted[row.op] = row.op_list
    assert dict(lists.list_of) == wanted
    assert not lists.force_all


@pytest.mark.parametrize(
    ("table", "changes", "op", "op_list"),
    [
        ("cpu", {"infer_add": ("Cumsum",), "infer_remove": ("Cumsum",)}, "Cumsum", None),
        ("cuda", {"deny_remove": ("Sum",), "infer_add": ("Sum",)}, "Sum", "infer"),
        *((table, {"infer_add": ("MatMul",)}, "MatMul", "infer") for table in TABLES),
        *((table, {"clear_add": ("Exp",)}, "Exp", "clear") for table in TABLES),
        *((table, {"clear_add": ("Add",)}, "Add", "clear") for table in TABLES),
    ],
)
def test_an_op_moves_by_the_users_changes(table, changes, op, op_list):
    assert build_lists(table, AmpConfig(**changes)).list_of.get(op) == op_list
