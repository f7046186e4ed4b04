"""Workers of one job with different settings stop at their first step, and say why; equal ones train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed import clusters
from tests.hooks import running

PROGRAM = Path(__file__).parent / "programs" / "unequal_workers.py"
TRAIN = running.ROOT / "scripts" / "train_distributed.py"
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
LATE = {"LATE": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            ON,
            {
                **ON,
                "AMP_TF_PRECISION": "bfloat16",
                "AMP_TF_KEEP_FLOAT32": "logits",
                "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING": "0",
                "REGISTERED": "infer",
            },
            [
                "precision is 'bfloat16' there and 'float16' here",
                "keep_float32 is ['logits'] there and [] here",
                "loss scaling is False there and True here",
                "the list of op RGBToHSV is 'infer' there and None here",
            ],
        ),
        (ON, {"AMP_TF_DISABLE": "1"}, ["worker 1 runs without amp_tf"]),
        (ON, ON | LATE, []),
        (ON, ON | LATE | {"AMP_TF_PRECISION": "bfloat16"}, ["precision is 'bfloat16' there and 'float16' here"]),
    ],
    ids=["settings", "off", "equal, one late", "settings, one late"],
)
def test_workers_with_other_settings_stop_at_their_first_step(
    first: dict[str, str], second: dict[str, str], said: list[str], tmp_path: Path
) -> None:
    """Some turn it on when they are connected already; a worker with amp_tf waits five seconds for one without."""
    each = json.dumps([first, second])
    ended = clusters.train({"worker": 2}, [str(PROGRAM), each, str(TRAIN), "--steps", "2"], tmp_path, {})
    assert (ended.status != 0) is bool(said), ended.err
    assert "are not compared" not in ended.err
    assert ended.out.count('"losses"') == (0 if said else 2)
    if said:
        assert "MultiWorkerMirroredStrategy, worker 0: worker 1 " in ended.err
        assert [part for part in said if part not in ended.err] == []
        assert "Set the same variables of amp_tf for every worker" in ended.err
    else:
        converted = [int(match[2].replace(",", "")) for match in running.SUMMARY.finditer(ended.err)]
        assert len(converted) == 2
        assert all(converted)
