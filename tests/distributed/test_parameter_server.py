"""A parameter-server cluster of real processes on loopback: the workers' graphs are converted in the workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed import clusters
from tests.hooks import running

SCRIPT = running.ROOT / "scripts" / "train_parameter_server.py"
WORKERS = 2
# Workers apply their gradients as they come, with weights that others have changed meanwhile: on a busy machine a run
# in bfloat16 and one in float32 differed by 0.12 in the second epoch, where losses fall fastest, by 0.03 in the last.
FIRST_EPOCH, LAST_EPOCH = 0.1, 0.1


@pytest.mark.slow
def test_workers_convert_what_the_chief_sends_them(tmp_path: Path) -> None:
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    jobs = {"chief": 1, "worker": WORKERS, "ps": 1}
    ended, in_float32 = (
        clusters.train(jobs, [str(SCRIPT)], tmp_path, given, served=("worker", "ps")) for given in (variables, {})
    )
    assert (ended.status, in_float32.status) == (0, 0), ended.err + ended.out + in_float32.err
    assert "amp_tf" not in in_float32.err
    # One line for each of chief, two workers and the parameter server; the chief and the server compute nothing.
    converted = sorted(int(match[2].replace(",", "")) for match in running.SUMMARY.finditer(ended.err))
    assert len(converted) == WORKERS + 2
    assert converted[:2] == [0, 0]
    assert all(count > 0 for count in converted[2:])
    losses, expected = ended.result["losses"], in_float32.result["losses"]
    assert losses[-1] < losses[0] / 4  # it trains
    np.testing.assert_allclose(losses[0], expected[0], rtol=FIRST_EPOCH)
    np.testing.assert_allclose(losses[-1], expected[-1], rtol=0, atol=LAST_EPOCH)
    assert abs(ended.result["accuracy"] - in_float32.result["accuracy"]) <= 0.05
