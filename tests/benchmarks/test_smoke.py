"""One small run of each benchmark that has no test file of its own."""

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from amp_tf.cpu import economy
from amp_tf.hooks import xla
from amp_tf.oplists import fusions, table
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting import paint
from amp_tf.rewriting import form as planning
from amp_tf.rewriting import pipeline
from benchmarks import (
    kernel_accuracy,
    memory,
    serving,
)
from benchmarks.models.wide.__main__ import try_one
from benchmarks.step_time import forecast, parts, suite
from benchmarks.step_time.modes import WAYS, modes
from benchmarks.tune import __main__ as tune
from tests import processes
from tests.hooks import running
from tests.tuning.programs import Weak

ROOT = running.ROOT
TINY = "--size tiny"
ONCE = "--seeds 1 --modes float32"
FIGURES = r" \| .*\d\.\d"  # a row of a table with a figure


@pytest.fixture
def forked(monkeypatch):
    """The processes that a benchmark starts are forks; not those of which it takes the memory."""
    monkeypatch.setattr(subprocess, "Popen", processes.start)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("compare_cost", "small_mlp --batch 8", rf"\| MLP, 64 wide{FIGURES}"),
        (
            "memory_peak",
            f"wide_mlp {TINY} --batch 8192 --modes float32",
            r"\*\*MLP, 2048 wide, fit, batch 8192\*\*",
        ),
        (
            "public.__main__",
            f"--only ranking {ONCE} --rows FILE -- --steps 4 --batch 4",
            r"32 \| AUC",
        ),
        (
            "step_time.ablation",
            f"shared~casts --models small_mlp {TINY} --rounds 0",
            r"\| shared casts \| MLP",
        ),
        (
            "step_time.profile",
            f"wide_mlp {TINY} --modes float32,amp_tf --rows 100 --turns 1",
            r"\| Cast \|.*\(\d+\)",
        ),
    ],
)
def test_a_command_prints_its_figures(module, arguments, said, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    arguments = [
        word.replace("~", " ").replace("FILE", str(tmp_path / "file")) for word in arguments.split()
    ]
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    program = importlib.import_module(f"benchmarks.{module}")
    status = (
        program.main(arguments) if inspect.signature(program.main).parameters else program.main()
    )
    assert status == 0
    assert re.search(said, capfd.readouterr().out)


@pytest.mark.slow
def test_rewrite_times_are_printed(tmp_path):
    module = [sys.executable, "-m", "benchmarks.rewrite_time"]
    command = [
        *module,
        "synthetic-1k",
        "--rounds",
        "1",
        "--json",
        "--cache",
        str(tmp_path / "file"),
    ]
    fresh = "TensorFlow logs more"
    ended = processes.run(
        command, fresh=fresh, cwd=ROOT, capture_output=True, text=True, timeout=550
    )
    assert '"nodes": 992' in ended.stdout, ended.stdout + ended.stderr


MODULES = (economy, fusions, paint, pipeline, planning, xla)


@pytest.mark.parametrize("part", parts.PARTS)
def test_a_part_is_found_where_the_ablation_takes_it_out(part):
    before = [dict(vars(module)) for module in MODULES]
    try:
        parts.remove(part)
        changed = [
            name
            for module, attributes in zip(MODULES, before, strict=True)
            for name, value in vars(module).items()
            if attributes[name] is not value  # KeyError: what the part replaces has moved
        ]
    finally:
        for module, attributes in zip(MODULES, before, strict=True):
            vars(module).update(attributes)
    assert changed


@pytest.mark.usefixtures("forked")
def test_another_checkout_is_at_work_or_its_row_says_that_it_is_not(tmp_path):
    """A copy of the package stands for the checkout; from a folder without one, today's would be
    imported.
    """
    shutil.copytree(ROOT / "amp_tf", tmp_path / "copy" / "amp_tf")
    shutil.copy(ROOT / "_amp_tf_start.py", tmp_path / "copy")
    chosen = [
        modes("bfloat16")[name]
        for name in ("float32", *(f"all listed@{tmp_path}/{n}" for n in ("copy", "none")))
    ]
    settings = suite.Settings("tiny", "bfloat16", rounds=2, seconds=0.02)
    rows = {
        row.mode: row for row in suite.measure("wide_mlp", None, chosen, [WAYS["fit"]], settings)
    }
    float32, copied, missing = (rows[mode.name] for mode in chosen)
    assert (copied.error, copied.amp_tf) == ("", f"{tmp_path}/copy/amp_tf")
    assert copied.converted > 0
    assert len(copied.ms) == 2
    assert copied.peak_mib > 100  # TensorFlow alone takes more
    assert all(abs(a - b) <= 0.02 * b for a, b in zip(copied.losses, float32.losses, strict=True))
    assert (
        missing.error
        == f"{missing.mode} imported amp_tf from {ROOT}/amp_tf, not from {tmp_path}/none."
    )


@pytest.mark.usefixtures("forked")
@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
def test_a_wide_product_is_expected_to_save_time():
    saved = forecast.expect("autoencoder", "predict")
    assert 0.1 < saved.total < saved.products < 100


def test_the_ops_that_are_called_inaccurate_are_those_that_the_table_shows_to_be():
    written = kernel_accuracy.WRITTEN.read_text(encoding="utf-8")
    # what is absolute is painted deny wherever it is
    assert kernel_accuracy.inaccurate(written) - table.ABSOLUTE == table.INACCURATE
    words = set(written.replace(",", " ").replace(".", " ").split())
    assert {op.split()[-1] for op, _, _ in kernel_accuracy.cases()} <= words
    rows = list(kernel_accuracy.measure({"Elu", "Tanh", "Maximum"}, "CPU:0", "of this process"))
    assert {row.op for row in rows if row.lost > kernel_accuracy.MOST} == {"Elu"}
    assert all(row.is_exact for row in rows if row.op == "Maximum")


def test_memory_is_that_of_training_steps_and_the_largest_batch_is_found_on_the_line():
    mib, live = memory.measure("wide_mlp", "tiny", "bfloat16", modes("bfloat16")["memory"], 8192)
    assert 0 < live < mib < 400  # the process itself takes more
    points = [(8, 180.0), (16, 260.0)]  # 100 MiB and 10 for each example
    found = memory.largest_batch(points, 500.0, lambda batch: 100 + 12.0 * batch)
    assert found is not None
    assert (found.batch, found.mib) == (33, 496.0)


def test_each_way_of_serving_has_its_size_latency_and_error(monkeypatch, capsys, tmp_path):
    def run(options):  # a step of the benchmark without a process of its own
        folder = Path(options["folder"])
        if options["step"] == "make":
            return serving.make(options["model"], folder, options["ways"], options["precision"])
        if options["step"] == "memory":
            return {way: serving.memory_of(way, folder, options) for way in options["ways"]}
        found = serving.time_ways(folder, options["ways"], options)
        return json.loads(
            json.dumps({way: serving.dataclasses.asdict(each) for way, each in found.items()})
        )

    monkeypatch.setattr(serving, "run", run)
    monkeypatch.setattr(serving, "SECONDS", 0.0)
    layers = keras.layers
    small = keras.Sequential(
        [layers.Input((64,), name="x"), layers.Dense(256, "relu"), layers.Dense(4)]
    )
    monkeypatch.setattr(serving, "build", lambda name: small)
    arguments = [
        "--models",
        "mlp",
        "--ways",
        "tf_pass",
        "converted",
        "weights",
        "--batches",
        "1",
        "4",
        "--rounds",
        "1",
    ]
    assert serving.main([*arguments, "--json", str(tmp_path / "serving.json")]) == 0
    assert not tf.config.optimizer.get_experimental_options()[
        serving.PASS["bfloat16"]
    ]  # it is off again
    found = json.loads((tmp_path / "serving.json").read_text())["mlp"]
    assert list(found) == ["float32", "tf_pass", "converted", "weights"]
    assert (
        found["weights"]["megabytes"] < 0.75 * found["converted"]["megabytes"]
    )  # the graph is no smaller
    assert (
        found["float32"]["error"] == 0 < found["tf_pass"]["error"] < 0.02
    )  # two products in bfloat16
    assert found["weights"]["error"] == pytest.approx(found["converted"]["error"])
    assert found["weights"]["ratios"].keys() == {"1", "4"}


def test_each_rule_keeps_its_nodes_of_a_program_with_a_weak_layer(tmp_path, monkeypatch):
    """One that trains nothing; tests/cli/test_tune.py and the page tune the last of the real ones."""
    nodes = [{"name": "m/b/dense/Tanh", "largest": 600.0, "local": 0.1, "has_truth": True}]
    program = Weak(
        ("m/a/dense", "m/b/dense"), ("m/b/dense/Tanh",), {"findings": [], "nodes": nodes}
    )
    monkeypatch.setattr(tune, "TunedScript", lambda *_: program)
    goal = tune.Goal("accuracy", 0.03, is_loss=False)
    planted = tune.Planted("weak", goal, tune.AmpConfig(), "b")
    rows = [*tune.rows_of(planted, tmp_path)]
    assert {(row["planted"], row["is_good"]) for row in rows} == {(3, True)}
    assert [(row["rule"], row["kept"]) for row in rows] == [
        ("amp_tf", 3),
        ("AutoCast", 1),
        ("Polygraphy", 6),
    ]


@pytest.mark.parametrize("name", ["two_towers", "tf_keras_lstm", "functions_of_tensorflow"])
def test_a_model_of_the_wide_suite_trains_a_step(name):
    """``python -m benchmarks.models.wide`` tries all of them."""
    assert np.isfinite(try_one(name))
