"""Workers of one job with different settings stop at their first step, and say why; equal ones train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hooks import running

PROGRAM = Path(__file__).parent / "programs" / "unequal_workers.py"
TRAIN = running.ROOT / "scripts" / "train_distributed.py"
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
LATE = {"LATE": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({**ON, "AMP_TF_PRECISION": "bfloat16"}, "precision is 'bfloat16' there and 'float16' here"),
        ({**ON, "AMP_TF_KEEP_FLOAT32": "logits"}, "keep_float32 is ['logits'] there and [] here"),
        ({**ON, "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING": "0"}, "loss scaling is False there and True here"),
        ({"AMP_TF_DISABLE": "1"}, "worker 1 runs without amp_tf"),
        (ON | {"REGISTERED": "infer"}, "the list of op RGBToHSV is 'infer' there and None here"),
        (ON, ""),
    ],
    ids=["precision", "names", "loss scaling", "off", "registered op", "equal"],
)
def test_workers_with_other_settings_stop_at_their_first_step(other: dict[str, str], said: str, tmp_path: Path) -> None:
    each = json.dumps([ON, other])
    ended = running.run([str(PROGRAM), each, str(TRAIN), "--steps", "2"], tmp_path, {}, seconds=300)
    assert (ended.status != 0) is bool(said), ended.err
    assert ended.out.count('"losses"') == (0 if said else 2)
    if said:
        assert "MultiWorkerMirroredStrategy, worker 0: worker 1 " in ended.err
        assert said in ended.err
        assert "Set the same variables of amp_tf for every worker" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (ON | LATE, ON | LATE, ""),
        (ON, ON | LATE, ""),
        (ON, {**ON, "AMP_TF_PRECISION": "bfloat16"} | LATE, "precision is 'bfloat16' there and 'float16' here"),
        ({"AMP_TF_DISABLE": "1"}, ON | LATE, "worker 0 runs without amp_tf"),
    ],
    ids=["both", "one", "precision", "off"],
)
def test_workers_that_turn_it_on_when_they_are_connected_are_compared(
    first: dict[str, str], second: dict[str, str], said: str, tmp_path: Path
) -> None:
    each = json.dumps([first, second])
    ended = running.run([str(PROGRAM), each, str(TRAIN), "--steps", "2"], tmp_path, {}, seconds=300)
    assert (ended.status != 0) is bool(said), ended.err
    assert said in ended.err
    assert "are not compared" not in ended.err
    if not said:
        assert ended.out.count('"losses"') == 2
        converted = [int(match[2].replace(",", "")) for match in running.SUMMARY.finditer(ended.err)]
        assert len(converted) == 2
        assert all(converted)
