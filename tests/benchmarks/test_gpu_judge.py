"""What amp_tf reaches on GPUs beside Keras' policy and TensorFlow's pass, as the judged rows have it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu import cases, compiled, grappler, judge, targets


def test_nothing_is_missed_on_gpus_but_what_is_known_and_nothing_known_is_mended() -> None:
    compiled_rows, grappled_rows = compiled.read(judge.COMPILED), grappler.read(judge.GRAPPLED)
    assert {row["model"] for row in compiled_rows} == set(judge.COMPILED_MODELS.split(","))
    assert {row["model"] for row in grappled_rows} == set(judge.GRAPPLED_MODELS.split(","))
    assert {row["mode"] for row in grappled_rows} == set(grappler.MODES)
    found = judge.misses(compiled_rows) | judge.misses(grappled_rows)
    assert judge.disagreements(found, judge.KNOWN) == []


def test_tables_of_the_documents_are_those_of_their_rows() -> None:
    folder = judge.COMPILED.parent
    compiled_rows, grappled_rows = compiled.read(folder / "compiled.json"), grappler.read(folder / "grappler.json")
    assert (folder / "compiled.md").read_text() == compiled.table(compiled_rows) + "\n"
    assert (folder / "grappler.md").read_text() == grappler.table(grappled_rows) + "\n"
    assert (folder / "misses.md").read_text() == judge.told(compiled_rows) + judge.told(grappled_rows)
    assert {row["model"] for row in compiled_rows} == set(cases.CASES)
    assert {row["target"] for row in compiled_rows} == set(targets.TARGETS)


def compiled_row(variant: str, **changes: Any) -> dict[str, Any]:
    figures = {"products": {"f16": 3}, "casts": 10, "temp_mib": 100.0, "mib": 1000.0}
    return {"model": "bert", "way": "train", "target": "h100", "variant": variant, **figures, **changes}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, {}),
        ({"casts": 11, "temp_mib": 103.0, "mib": 1030.0}, {}),
        ({"casts": 12}, {"cast kernels, as a multiple of the policy's": 1.2}),
        ({"temp_mib": 103.5}, {"temporary memory, as a multiple of the policy's": 1.035}),
        ({"mib": 1100.0}, {"bytes moved, as a multiple of the policy's": 1.1}),
        ({"products": {"f16": 2, "f16,f32": 1}}, {"products in float32 that the policy has in 16 bit": 1}),
    ],
)
def test_a_compiled_step_is_judged_beside_the_policy_of_the_same_precision(changes: Any, missed: Any) -> None:
    rows = [
        compiled_row("float32", products={"f32": 3}, casts=0, temp_mib=200.0),
        compiled_row("policy_float16"),
        compiled_row("amp_float16", **changes),
        compiled_row("policy_bfloat16", casts=100),
    ]
    assert judge.misses(rows) == {f"bert train amp_float16 h100: {name}": figure for name, figure in missed.items()}


def test_casts_are_missed_where_the_policy_has_none() -> None:
    rows = [compiled_row("policy_float16", casts=0), compiled_row("amp_float16", casts=1)]
    assert judge.misses(rows) == {"bert train amp_float16 h100: cast kernels, as a multiple of the policy's": 2.0}
    assert judge.misses([rows[0], compiled_row("amp_float16", casts=0)]) == {}


def grappled_row(mode: str, **changes: Any) -> dict[str, Any]:
    counts = {"convolutions": {"float16 NHWC": 2}, "products": {"float16": 3}, "transposes": 0, "casts": 10}
    return {"model": "unet", "capability": "7.0", "precision": "float16", "mode": mode, **counts, **changes}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"casts": 11}, {}),
        ({"convolutions": {"float16 NCHW": 2}}, {"16-bit convolutions in NCHW": 2}),
        ({"convolutions": {"float32 NCHW": 2}}, {"convolutions in float32 that TensorFlow's pass has in 16 bit": 2}),
        ({"transposes": 4}, {"Transposes more than TensorFlow's pass has": 4}),
        ({"products": {"float32 CudnnRNN": 3}}, {"products in float32 that TensorFlow's pass has in 16 bit": 3}),
        ({"casts": 13}, {"casts, as a multiple of those of TensorFlow's pass": 1.3}),
    ],
)
def test_an_optimized_graph_is_judged_beside_tensorflows_pass(changes: Any, missed: Any) -> None:
    rows = [grappled_row("tf_pass"), grappled_row("amp_tf", **changes), grappled_row("float32", casts=0)]
    assert judge.misses(rows) == {f"unet float16: {name}": figure for name, figure in missed.items()}


def test_casts_are_judged_beside_the_policy_where_there_is_one_and_the_worst_gpu_counts() -> None:
    rows = [
        *(grappled_row("tf_pass", capability=capability) for capability in ("7.0", "9.0")),
        *(grappled_row("policy", capability=capability, casts=20) for capability in ("7.0", "9.0")),
        grappled_row("amp_tf", casts=30),
        grappled_row("amp_tf", capability="9.0", casts=28),
    ]
    assert judge.misses(rows) == {"unet float16: casts, as a multiple of those of Keras policy": 1.5}


def test_a_known_miss_must_neither_grow_nor_stay_when_it_is_mended() -> None:
    known = {"a": 1.2, "b": 2}
    assert judge.disagreements({"a": 1.204, "b": 1.9}, known) == []
    assert judge.disagreements({"a": 1.3, "b": 2}, known) == ["a: 1.3, known is 1.2"]
    assert judge.disagreements({"a": 1.2, "b": 2, "c": 1}, known) == ["c: 1, known is none"]
    assert judge.disagreements({"a": 1.2}, known) == ["b: mended, to be taken from the known ones"]
