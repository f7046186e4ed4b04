"""Export of steps as XLA is given them, and their run by JAX alone; on the CPU and at the tiny size."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import environment
from benchmarks.gpu import export as exporter
from benchmarks.gpu import run as runner

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("float32", "float32_strict", "amp_bfloat16", "amp_float16", "policy_float16")
WITH_JAX = environment.COMPILER.python
JAX_PYTHON = os.environ.get("JAX_PYTHON", str(WITH_JAX) if WITH_JAX.exists() else sys.executable)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, "-m", "benchmarks.gpu", "export", "--models", "ncf", "--size", "tiny"]
    command += ["--variants", ",".join(VARIANTS)]
    environ = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([*command, "--out", str(folder)], check=True, cwd=ROOT, env={**os.environ, **environ})
    return folder


def manifest(folder: Path, variant: str, way: str = "train") -> dict:
    return json.loads((folder / f"ncf-{way}-{variant}.json").read_text())


def text(folder: Path, variant: str) -> str:
    return gzip.decompress((folder / f"ncf-train-{variant}.mlir.gz").read_bytes()).decode()


def test_each_variant_multiplies_in_its_own_type(exported):
    products = {variant: Counter(manifest(exported, variant)["products"]) for variant in VARIANTS}
    count = sum(products["float32"].values())
    assert count > 0
    assert products["float32"] == products["float32_strict"] == {"dot f32": count}
    assert products["amp_bfloat16"] == {"dot bf16": count}
    assert products["amp_float16"] == products["policy_float16"] == {"dot f16": count}
    assert manifest(exported, "float32")["casts"] == 0 < manifest(exported, "amp_float16")["casts"]
    inference = manifest(exported, "amp_float16", "predict")
    assert sum(inference["products"].values()) < count
    assert {row["role"] for row in inference["arguments"]} == {"input", "weight"}


def test_steps_hold_nothing_that_is_no_stablehlo(exported):
    for variant in VARIANTS:
        assert "mhlo.copy" not in text(exported, variant)
    copied = "%5 = mhlo.copy %4 : tensor<2x3xf16> loc(#loc1)"
    assert exporter.plain(copied) == "%5 = stablehlo.reshape %4 : (tensor<2x3xf16>) -> tensor<2x3xf16> loc(#loc1)"


def test_a_step_in_which_amp_tf_converted_nothing_is_refused():
    amp, plain = exporter.VARIANTS["amp_bfloat16"], exporter.VARIANTS["float32"]
    with pytest.raises(RuntimeError, match="amp_bfloat16: no product is in 16 bit"):
        exporter.refuse_unconverted(amp, {"dot f32": 3})
    exporter.refuse_unconverted(amp, {"dot f32": 1, "dot bf16": 2})
    exporter.refuse_unconverted(plain, {"dot f32": 3})


def test_strict_variant_asks_for_full_precision_and_the_other_does_not(exported):
    assert "HIGHEST" in text(exported, "float32_strict")
    assert "HIGHEST" not in text(exported, "float32")


def test_made_up_values_are_the_same_in_every_variant_and_second_moments_are_not_negative(exported):
    for variant in VARIANTS:
        arguments = manifest(exported, variant)["arguments"]
        moments = [row for row in arguments if row["name"].endswith("velocity")]
        assert moments
        assert all((runner.made_up(row) >= 0).all() for row in moments)
        assert all(list(runner.made_up(row).shape) == row["shape"] for row in arguments)
    weights = [
        [runner.made_up(row) for row in manifest(exported, variant)["arguments"] if row["role"] == "weight"]
        for variant in ("float32", "amp_float16")
    ]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def run_by_jax(*arguments: str) -> subprocess.CompletedProcess:
    if subprocess.run([JAX_PYTHON, "-c", "import jax"], capture_output=True, check=False).returncode:
        pytest.skip("the run tool needs JAX: pip install jax, or JAX_PYTHON=<a Python that has it>")
    command = [JAX_PYTHON, "-m", "benchmarks.gpu", "run", *arguments]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)


def test_run_prints_a_table_in_which_every_variant_agrees_with_float32(exported, tmp_path):
    ended = run_by_jax(str(exported), "--rounds", "2", "--round-s", "0.01", "--json", str(tmp_path / "result.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["failures"] == []
    assert result["left_out"] == []
    rows = {(row["way"], row["variant"]): row for row in result["rows"]}
    assert set(rows) == {(way, variant) for way in exporter.WAYS for variant in VARIANTS}
    assert all(row["agrees"] and row["ms"] > 0 and row["temp_mib"] >= 0 for row in rows.values())
    assert rows["train", "float32"]["speedup"] == rows["train", "float32"]["memory_ratio"] == 1.0
    assert 0 < rows["predict", "amp_bfloat16"]["cosine"] < 1
    assert "| NCF | train | 64 | amp_bfloat16 |" in ended.stdout
    assert "attention: this is not a GPU" in ended.stdout


def test_steps_that_time_is_not_left_for_are_named(exported):
    ended = run_by_jax(str(exported), "--minutes", "0")
    assert ended.returncode == 0, ended.stderr
    assert "left out, because the time was up: ncf-train" in ended.stdout


def test_steps_are_found_training_first_and_a_folder_without_any_is_an_error(exported, tmp_path):
    train, predict = runner.find(exported, "")
    assert [path.stem for path in train] == [f"ncf-train-{name}" for name in exporter.VARIANTS if name in VARIANTS]
    assert predict[0].stem == "ncf-predict-float32"
    with pytest.raises(FileNotFoundError, match=r"holds no steps: python -m benchmarks\.gpu export"):
        runner.find(tmp_path, "")


def test_the_roofline_stands_beside_times_of_the_gpu_that_it_is_for():
    step = {"model": "ncf", "way": "train", "batch": 64}
    rows = [
        {**step, "target": "h100", "variant": "float32", "roofline_us": 2000.0},
        {**step, "target": "a100", "variant": "float32", "roofline_us": 4000.0},
        {**step, "target": "h100", "variant": "amp_float16", "batch": 32, "roofline_us": 1.0},
    ]
    assert runner.roofline(step, "NVIDIA H100 80GB HBM3", rows) == {"float32": 2.0}
    assert runner.roofline(step, "cpu", rows) == {}


def test_cosine_tells_directions_apart():
    a = np.array([1.0, 0.0], np.float32)
    assert runner.cosine(a, 2 * a) == pytest.approx(1.0)
    assert runner.cosine(a, np.array([0.0, 3.0], np.float32)) == pytest.approx(0.0)
    assert runner.cosine(a, -a) == pytest.approx(-1.0)
    assert runner.cosine(0 * a, 0 * a) == 1.0
