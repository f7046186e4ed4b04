"""Cases 16 to 19, K1 and K7: all replicas and workers decide together."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.loss_scaling.steps import KERAS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
free_ports = importlib.import_module("loopback").free_ports
PROGRAMS = Path(__file__).resolve().parent / "programs"


def start(program, **environment):
    environ = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name}
    environ |= {"PYTHONPATH": str(ROOT), **processes.EVERYWHERE, **environment}
    command = [sys.executable, str(PROGRAMS / program)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return processes.start(command, env=environ, text=True, **pipes)


def finish(process):
    try:
        out, err = process.communicate(timeout=400)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


CASES = (
    ("keras3", "plain"),
    ("keras3", "accumulation"),
    ("keras3", "averages"),
    ("keras3", "both"),
    ("keras3", "both, eager"),
    ("tf_keras_new", "global_clipnorm"),
    ("tf_keras_new", "pairs_alone"),
    ("tf_keras_new", "keeping_arguments"),
    ("tf_keras_legacy", "clipnorm"),
    ("tf_keras_legacy", "without_name"),
    ("tf_keras_legacy", "with_name_alone"),
    ("v1", "plain"),
)


@pytest.fixture(scope="module")
def mirrored():
    return finish(start("mirrored.py"))


@pytest.mark.parametrize(("library", "option"), CASES)
def test_case_16_to_18_k01_and_k07_an_infinity_on_either_replica_is_skipped_by_all(
    mirrored, library, option
):
    found = mirrored[library].get(option) or pytest.skip("this Keras does not accumulate gradients")
    assert found["weights"] == found["expected"]
    assert found["scale"] == 2.0**8
    assert found["skipped"] == 2
    for first, second in found["locals"]:  # the scale and its counters
        assert first == second


def test_case_16_and_17_hold_for_a_loop_with_a_loss_scaler(mirrored):
    rows = mirrored["scaler"]
    assert len(rows) == 8
    for *how, row in rows:
        assert [set(taken) for taken in row["taken"]] == [{True}, {False}, {False}], how
        # mean gradient (2, 1.5), times the mean of the rates 0.5 and 1.0
        assert row["weight"] == [[-0.5, 0.875]] * 2, how
        assert set(row["scale"]) == {2.0**8}, how


@pytest.fixture(scope="module")
def workers():
    """Two workers of a MultiWorkerMirroredStrategy."""
    if KERAS < (3, 5):
        pytest.skip("up to 3.4 Keras does not sum gradients over workers, with or without amp_tf")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    started = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        started.append(start("worker.py", TF_CONFIG=json.dumps(task)))
    return [finish(process) for process in started]


@pytest.mark.parametrize("option", ["plain", "clip_and_accumulation", "ema_overwrite"])
def test_case_19_two_processes_skip_together_what_one_of_them_finds_nonfinite(workers, option):
    first, second = (worker[option]["found"] for worker in workers)
    assert first == second
    assert first["weights"] == workers[0][option]["expected"]["weights"]
    assert first["scale"] == 2.0**8
    assert first["skipped"] == 2


def test_an_optimizer_may_be_built_before_it_is_wrapped_or_by_the_first_traced_step_of_the_replicas(
    mirrored,
):
    counts = mirrored["counts"]
    assert counts == {name: [3, 0, 3] for name in ("built", "built, wrapped outside", "unbuilt")}


def test_another_threads_optimizer_makes_its_own_steps_while_replicas_trace_theirs(mirrored):
    beside = mirrored["beside"] or pytest.skip("this Keras does not accumulate gradients")
    assert len(beside) >= 4  # two replicas, in each branch
    assert all(weights == [0.0, -1.0, -1.0, -2.0] for weights in beside)


@pytest.mark.parametrize("option", ["plain", "accumulation", "averages", "both"])
def test_what_an_optimizer_stores_is_read_by_each_replica_and_what_it_returns_is_its_own(
    mirrored, option
):
    norms = mirrored["norms"].get(option) or pytest.skip("this Keras does not accumulate gradients")
    # As without a wrapper, what is stored is of the replica that was traced last. Both are zero
    # where the step was skipped.
    taken = [[10.0, 2.5], [10.0, 5.0]]
    assert norms == [taken, [[0.0, 0.0], [0.0, 0.0]], taken]
