from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from amp_tf.cli.main import main
from amp_tf.comparing import readings
from amp_tf.comparing.readings import MonitoredRun, Reading
from amp_tf.precision import Precision
from tests.comparing.test_readings import RUN


def write(folder: Path, name: str, run: MonitoredRun) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join([readings.head_line(run.precision, {}), *map(readings.line, run.readings)]))
    return str(path)


def test_runs_in_two_precisions_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path, "one", RUN)
    other = write(tmp_path, "other", dataclasses.replace(RUN, precision=Precision.BFLOAT16))
    assert main(["monitor", one, other]) == 0
    assert capsys.readouterr().out == (
        f"{one} ran in float16, {other} in bfloat16\nno layer differs in 2 readings, up to step 500\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one", "later"], "monitor: the runs have no step in common. Read both every so many steps"),
        (["one", "one", "one"], "monitor: 3 runs were named. Name one run, or two to compare."),
        (
            ["one", "one", "--tolerance", "2"],
            "--tolerance: 2.0 is not a valid value. Valid values: numbers from 0",
        ),
        (
            ["nowhere"],
            "nowhere.jsonl: there is no such file or folder. Name a file or a folder that",
        ),
    ],
)
def test_what_cannot_be_shown_is_told_with_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "one", RUN)
    write(tmp_path, "later", dataclasses.replace(RUN, readings=(Reading(7, 1.0, ()),)))
    files = [str(tmp_path / f"{word}.jsonl") if word.isalpha() else word for word in arguments]
    assert main(["monitor", *files]) == 2
    assert message in capsys.readouterr().err
