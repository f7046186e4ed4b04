"""Several real worker processes on loopback, started by an unchanged script with the variable set."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed import clusters
from tests.hooks import running

SCRIPTS = running.ROOT / "scripts"
STEPS = 30
# Two or four by TEST_WORKERS; CI has two cores.
WORKERS = int(os.environ.get("TEST_WORKERS", "2"))
RELATIVE, ABSOLUTE = 0.05, 0.03  # bfloat16 against float32 over 30 steps, losses of about 1
# The precision is said, because these programs are small: auto would leave in float32 what is not faster.
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}


def train(site_folder: Path, variables: dict[str, str], *options: str, status: int = 0) -> running.Ended:
    command = [str(SCRIPTS / "train_distributed.py"), "--steps", str(STEPS), *options]
    ended = clusters.train({"worker": WORKERS}, command, site_folder, variables)
    assert (ended.status != 0) is (status != 0), ended.err
    return ended


def train_measured(site_folder: Path, variables: dict[str, str]) -> running.Ended:
    """The same in a network of its own, whose bytes are counted; the script starts the workers."""
    train_distributed = [sys.executable, str(SCRIPTS / "train_distributed.py")]
    arguments = [*train_distributed, "--workers", str(WORKERS), "--steps", str(STEPS)]
    ended = running.run([str(SCRIPTS / "measure_network.py"), *arguments], site_folder, variables, seconds=400)
    assert ended.status == 0, ended.err
    return ended


def results(ended: running.Ended) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert sorted(result["worker"] for result in found) == list(range(WORKERS)), ended.out + ended.err
    assert all(result["workers"] == WORKERS for result in found)
    return found


def loopback_bytes(ended: running.Ended) -> int:
    measured = json.loads(ended.err.strip().splitlines()[-1])
    if not measured["private"]:
        pytest.skip("no network namespace of its own here: other programs' traffic would be counted")
    return int(measured["loopback_bytes"])


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def uninterrupted(site_folder: Path) -> running.Ended:
    return train_measured(site_folder, ON)


@pytest.mark.slow
def test_every_worker_converts_and_all_have_the_same_loss(site_folder: Path, uninterrupted: running.Ended) -> None:
    in_float32 = results(train(site_folder, {}))
    found = results(uninterrupted)
    converted = [int(match[2].replace(",", "")) for match in running.SUMMARY.finditer(uninterrupted.err)]
    assert len(converted) == WORKERS
    assert all(count > 0 for count in converted)
    for result in found:
        assert result["losses"] == found[0]["losses"]
        assert result["weights"] == found[0]["weights"]
        assert result["losses"] != in_float32[0]["losses"]  # else nothing was computed in bfloat16
        np.testing.assert_allclose(result["losses"], in_float32[0]["losses"], rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.slow
def test_after_a_worker_died_the_restart_ends_as_if_nothing_had_happened(
    site_folder: Path, uninterrupted: running.Ended, tmp_path: Path
) -> None:
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
def test_slurms_variables_alone_make_a_cluster(site_folder: Path, uninterrupted: running.Ended) -> None:
    # What srun -n 2 on one node sets, in a network of its own because the resolver's ports are fixed.
    variables = {
        "SLURM_STEP_NUM_TASKS": str(WORKERS),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(WORKERS),
    }
    task = f"SLURM_PROCID=$task {sys.executable} {SCRIPTS / 'train_distributed.py'} --steps {STEPS}"
    shell = f"for task in $(seq 0 {WORKERS - 1}); do {task} & done; wait"
    command = [str(SCRIPTS / "measure_network.py"), "bash", "-c", shell]
    found = results(running.run(command, site_folder, ON | variables, seconds=400))
    assert [result["losses"] for result in found] == [results(uninterrupted)[0]["losses"]] * WORKERS


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "allreduce"), [("bfloat16", "bfloat16"), ("float16", "float16")])
def test_gradients_summed_in_16_bit_cost_half_the_network_and_no_accuracy(
    precision: str, allreduce: str, site_folder: Path, uninterrupted: running.Ended
) -> None:
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": precision, "AMP_TF_ALLREDUCE": allreduce}
    ended = train_measured(site_folder, variables)
    expected = results(uninterrupted)[0]
    for result in results(ended):
        assert result["losses"] == results(ended)[0]["losses"]
        assert result["weights"] == results(ended)[0]["weights"]
        assert result["losses"] != expected["losses"]  # else the sums were those of float32
        np.testing.assert_allclose(result["losses"], expected["losses"], rtol=RELATIVE, atol=ABSOLUTE)
        assert abs(result["accuracy"] - expected["accuracy"]) <= 0.01  # 3 of 297 images
    share = loopback_bytes(ended) / loopback_bytes(uninterrupted)
    assert 0.45 < share < 0.6  # half, and what float32 costs in both: small tensors, messages, the start
