"""What engines set for their workers. Ray, Spark and a real srun: ``python -m benchmarks.engines``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engines import tfjob
from tests.distributed import clusters
from tests.hooks import running

ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
SCRIPT = str(running.ROOT / "scripts" / "train_distributed.py")


def test_an_evaluator_has_a_task_and_is_in_no_cluster() -> None:
    configs = tfjob.configs({"Chief": 1, "Worker": 2, "PS": 1, "Evaluator": 1}, [1, 2, 3, 4])
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"], "ps": ["127.0.0.1:4"]}
    read = {pod: json.loads(config) for pod, config in configs.items()}
    assert all(config["cluster"] == cluster and config["environment"] == "cloud" for config in read.values())
    assert read["Worker", 1]["task"] == {"type": "worker", "index": 1}
    assert read["Evaluator", 0]["task"] == {"type": "evaluator", "index": 0}


@pytest.mark.slow
def test_a_tfjob_trains_while_its_evaluator_judges(tmp_path: Path) -> None:
    options = [SCRIPT, "--steps", "15", "--checkpoint", str(tmp_path), "--save-every", "5"]
    pods = ["Chief=1,Worker=1,Evaluator=1", *options]
    ended = clusters.run(lambda start: tfjob.main(pods, start), tmp_path, ON)
    assert ended.status == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    chief, worker = (line for line in lines if "worker" in line)
    assert {chief["worker"], worker["worker"]} == {0, 1}
    assert chief["losses"] == worker["losses"]
    assert chief["weights"] == worker["weights"]
    judged = [line for line in lines if "evaluated_step" in line]
    assert judged[-1] == {"evaluated_step": 15, "accuracy": chief["accuracy"]}
    converted = [int(match[2].replace(",", "")) for match in running.SUMMARY.finditer(ended.err)]
    assert len(converted) == 3
    assert all(converted)
