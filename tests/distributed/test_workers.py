"""Clusters of real processes on loopback, started by unchanged scripts with the variable set."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import processes
from tests.hooks import running

SCRIPTS = running.ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))
loopback: Any = importlib.import_module("loopback")


def run_tasks(jobs, command, site_folder, variables, served=()):
    """Runs a script with its arguments as each task of a cluster, and joins what all wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def start(command, env):
            environ = running.environment(site_folder, {**variables, "TF_CONFIG": env["TF_CONFIG"]})
            return processes.start(command, env=environ, cwd=site_folder, stdout=out, stderr=err)

        status = loopback.run_cluster(jobs, command, served=served, start=start)
        for stream in (out, err):
            stream.seek(0)
        return running.Ended(status, out.read(), err.read())


STEPS = 30
# Two or four by TEST_WORKERS; CI has two cores.
WORKERS = int(os.environ.get("TEST_WORKERS", "2"))
#: Limits of bfloat16 against float32 over 30 steps, with losses of about 1.
RELATIVE = 0.05
ABSOLUTE = 0.03
# The precision is said, because these programs are small: auto would leave in float32 what is not
# faster.
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}


def train(site_folder, variables, *options, status=0):
    command = [str(SCRIPTS / "train_distributed.py"), "--steps", str(STEPS), *options]
    ended = run_tasks({"worker": WORKERS}, command, site_folder, variables)
    assert (ended.status != 0) is (status != 0), ended.err
    return ended


def train_measured(site_folder, variables, *command):
    """The same by a command, in a network of its own, whose bytes are counted."""
    ended = running.run(
        [str(SCRIPTS / "measure_network.py"), *command], site_folder, variables, seconds=400
    )
    assert ended.status == 0, ended.err
    return ended


def printed(ended):
    """The results that all processes printed, each as a line of JSON."""
    return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]


def results(ended):
    found = printed(ended)
    workers = sorted(result["worker"] for result in found)
    assert workers == list(range(WORKERS)), ended.out + ended.err
    assert {result["workers"] for result in found} == {WORKERS}
    return found


def converted(ended):
    """The nodes that each process converted, in order of their number."""
    return sorted(running.converted_in(match) for match in running.SUMMARY.finditer(ended.err))


def loopback_bytes(ended):
    measured = json.loads(ended.err.strip().splitlines()[-1])
    if not measured["private"]:
        pytest.skip(
            "no network namespace of its own here: other programs' traffic would be counted"
        )
    return int(measured["loopback_bytes"])


@pytest.fixture(scope="module")
def uninterrupted(site_folder):
    """Workers of which Slurm's variables alone make a cluster: what ``srun -n 2`` on one node
    sets.
    """
    variables = {
        "SLURM_STEP_NUM_TASKS": str(WORKERS),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(WORKERS),
    }
    task = f"SLURM_PROCID=$task {sys.executable} {SCRIPTS / 'train_distributed.py'} --steps {STEPS}"
    shell = f"for task in $(seq 0 {WORKERS - 1}); do {task} & done; wait"
    return train_measured(site_folder, ON | variables, "bash", "-c", shell)


@pytest.mark.slow
def test_every_worker_converts_and_all_have_the_same_loss(site_folder, uninterrupted):
    in_float32, *_ = results(train(site_folder, {}))
    first, *others = results(uninterrupted)
    counts = converted(uninterrupted)
    assert len(counts) == WORKERS
    assert counts[0] > 0
    for other in others:
        assert other["losses"] == first["losses"]
        assert other["weights"] == first["weights"]
    assert first["losses"] != in_float32["losses"]  # else nothing was computed in bfloat16
    np.testing.assert_allclose(first["losses"], in_float32["losses"], rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.slow
def test_after_a_worker_died_the_restart_ends_as_if_nothing_had_happened(
    site_folder, uninterrupted, tmp_path
):
    """Also as if Slurm, and not TF_CONFIG, had made the cluster."""
    checkpoint = ("--checkpoint", str(tmp_path), "--save-every", "10")
    died = train(site_folder, ON, *checkpoint, "--die-at", "17", status=17)
    assert not re.search(r"^\{", died.out, re.MULTILINE)  # no worker came to its end
    resumed = results(train(site_folder, ON, *checkpoint))
    expected = results(uninterrupted)[0]
    for result in resumed:
        assert result["first_step"] == 10
        assert result["losses"] == expected["losses"][10:]
        assert result["weights"] == expected["weights"]


@pytest.mark.slow
def test_gradients_summed_in_16_bit_cost_half_the_network_and_no_accuracy(
    site_folder, uninterrupted
):
    workers = ["--workers", str(WORKERS), "--steps", str(STEPS)]
    command = [sys.executable, str(SCRIPTS / "train_distributed.py"), *workers]
    ended = train_measured(site_folder, FLOAT16 | {"AMP_TF_ALLREDUCE": "float16"}, *command)
    expected = results(uninterrupted)[0]
    first, *others = results(ended)
    for other in others:
        assert other["losses"] == first["losses"]
        assert other["weights"] == first["weights"]
    assert first["losses"] != expected["losses"]  # else the sums were those of float32
    np.testing.assert_allclose(first["losses"], expected["losses"], rtol=RELATIVE, atol=ABSOLUTE)
    assert abs(first["accuracy"] - expected["accuracy"]) <= 0.01  # 3 of 297 images
    share = loopback_bytes(ended) / loopback_bytes(uninterrupted)
    # Half, and what float32 costs in both: small tensors, messages, the start.
    assert 0.45 < share < 0.6


PROGRAM = Path(__file__).parent / "programs" / "unequal_workers.py"
TRAIN = SCRIPTS / "train_distributed.py"
FLOAT16 = ON | {"AMP_TF_PRECISION": "float16"}
LATE = {"LATE": "1"}
OTHERS = {
    "AMP_TF_PRECISION": "bfloat16",
    "AMP_TF_KEEP_FLOAT32": "logits",
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING": "0",
    "REGISTERED": "infer",
    "SLOW": "1",
}
OTHER_PRECISION = "precision is 'bfloat16' there and 'float16' here"
SAID = [
    OTHER_PRECISION,
    "keep_float32 is ['logits'] there and [] here",
    "loss scaling is False there and True here",
    "the list of op RGBToHSV is 'infer' there and None here",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (FLOAT16, FLOAT16 | OTHERS, SAID),
        (FLOAT16, {"AMP_TF_DISABLE": "1"}, ["worker 1 runs without amp_tf"]),
        (FLOAT16, FLOAT16 | LATE, []),
        (FLOAT16, FLOAT16 | LATE | {"AMP_TF_PRECISION": "bfloat16"}, [OTHER_PRECISION]),
    ],
    ids=["settings", "off", "equal, one late", "settings, one late"],
)
def test_workers_with_other_settings_stop_at_their_first_step(first, second, said, tmp_path):
    """Some turn it on when they are connected already; a worker with amp_tf waits ten seconds for
    one without.

    Each tells the difference, also one that reads late when the other, which holds what they
    publish, would end.
    """
    command = [str(PROGRAM), json.dumps([first, second]), str(TRAIN), "--steps", "2"]
    ended = run_tasks({"worker": 2}, command, tmp_path, {})
    assert (ended.status != 0) is bool(said), ended.err
    assert ended.out.count('"losses"') == (0 if said else 2)
    if not said:
        assert len(converted(ended)) == 2
        assert converted(ended)[0] > 0
        return
    for part in said:
        assert part in ended.err
    assert "MultiWorkerMirroredStrategy, worker 0: worker 1 " in ended.err
    told_by_both = "MultiWorkerMirroredStrategy, worker 1: worker 0 " in ended.err
    assert told_by_both is (OTHER_PRECISION in said)
    assert "Set the same variables of amp_tf for every worker" in ended.err


# Workers apply their gradients as they come, with weights that others have changed meanwhile: on a
# busy machine a run in bfloat16 and one in float32 differed by 0.12 in the second epoch, where
# losses fall fastest, by 0.03 in the last.
FIRST_EPOCH = 0.1
LAST_EPOCH = 0.1


@pytest.mark.slow
def test_workers_convert_what_the_chief_sends_them(tmp_path):
    def train(variables):
        jobs = {"chief": 1, "worker": 2, "ps": 1}
        command = [str(SCRIPTS / "train_parameter_server.py")]
        ended = run_tasks(jobs, command, tmp_path, variables, served=("worker", "ps"))
        assert ended.status == 0, ended.err + ended.out
        return ended

    ended = train(ON)
    in_float32 = train({})
    assert "amp_tf" not in in_float32.err
    # One line for each of chief, two workers and the parameter server; the chief and the server
    # compute nothing.
    *idle, first, second = converted(ended)
    assert idle == [0, 0]
    assert min(first, second) > 0
    losses = ended.result["losses"]
    expected = in_float32.result["losses"]
    assert losses[-1] < losses[0] / 4  # it trains
    np.testing.assert_allclose(losses[0], expected[0], rtol=FIRST_EPOCH)
    np.testing.assert_allclose(losses[-1], expected[-1], rtol=0, atol=LAST_EPOCH)
    assert abs(ended.result["accuracy"] - in_float32.result["accuracy"]) <= 0.05


@pytest.mark.slow
def test_a_chief_and_a_worker_train_while_an_evaluator_judges(tmp_path):
    """As in a TFJob of Kubeflow's."""
    options = ["--steps", "15", "--checkpoint", str(tmp_path), "--save-every", "5"]
    jobs = {"chief": 1, "worker": 1, "evaluator": 1}
    ended = run_tasks(jobs, [str(TRAIN), *options], tmp_path, ON)
    assert ended.status == 0, ended.err
    lines = printed(ended)
    chief, worker = [line for line in lines if "worker" in line]
    assert {chief["worker"], worker["worker"]} == {0, 1}
    assert chief["losses"] == worker["losses"]
    assert chief["weights"] == worker["weights"]
    judged = [line for line in lines if "evaluated_step" in line]
    assert judged[-1] == {"evaluated_step": 15, "accuracy": chief["accuracy"]}
    assert len(converted(ended)) == 3
    assert converted(ended)[0] > 0
