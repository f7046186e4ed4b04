from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from amp_tf.comparing import readings
from amp_tf.comparing.readings import LayerReading, MonitoredRun, Reading, find_divergence
from amp_tf.errors import FileError
from amp_tf.precision import Precision

CALM = LayerReading("net/calm", False, 1.0, 1e-3, 0.0, 0.0, 0.001, 2.0)
WIDE = dataclasses.replace(CALM, layer="net/wide", largest=32752.0, norm=5e4)
TINY = dataclasses.replace(CALM, layer="net/tiny", is_gradient=True, smallest=1e-9, underflow=0.03)
RUN = MonitoredRun("run", Precision.FLOAT16, (Reading(0, 1.5, (CALM, WIDE, TINY)), Reading(500, 0.25, (CALM, WIDE))))


@pytest.mark.parametrize(
    ("layer", "precision", "near", "limit"),
    [
        (WIDE, Precision.FLOAT16, 0.5, "range"),
        (WIDE, Precision.BFLOAT16, 0.008, "distance"),
        (TINY, Precision.FLOAT16, 0.3, "underflow"),
        (dataclasses.replace(TINY, underflow=0.2), Precision.FLOAT16, 2.0, "underflow"),
        (dataclasses.replace(WIDE, overflow=0.01), Precision.FLOAT16, 1.01, "overflow"),
        (dataclasses.replace(CALM, distance=0.25), Precision.BFLOAT16, 2.0, "distance"),
    ],
)
def test_a_layer_is_as_near_as_to_its_nearest_limit(
    layer: LayerReading, precision: Precision, near: float, limit: str
) -> None:
    found, which = layer.nearness(precision)
    assert found == pytest.approx(near, rel=0.01)  # the figures above are rounded
    assert which == limit


def test_a_run_prints_its_last_reading_the_nearest_layer_first() -> None:
    assert str(RUN) == (
        "run: 2 readings in float16, the last at step 500\n"
        "  net/wide: 0.001 to 3.28e+04, 0.10% from float32; at 0.5 of its limit (range)\n"
        "  net/calm: 0.001 to 1, 0.10% from float32; at 0.064 of its limit (distance)"
    )
    assert str(dataclasses.replace(RUN, readings=())) == "run: nothing was read yet"
    assert readings.describe(dataclasses.replace(TINY, overflow=0.5), Precision.FLOAT16) == (
        "net/tiny (gradient): 1e-09 to 1, 0.10% from float32, 0.5 of it overflows, 0.03 of it underflows; at 1.5 of "
        "its limit (overflow)"
    )


def test_a_file_holds_what_was_read_and_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "amp_tf_monitor_host_1_2.jsonl"
    lines = [readings.head_line(RUN.precision, {"model": "net"}), *map(readings.line, RUN.readings)]
    path.write_text("\n".join(lines))
    assert readings.read(str(path)) == dataclasses.replace(RUN, name=str(path))
    assert readings.read(str(tmp_path)) == readings.read(str(path))
    path.write_text("\n".join(lines)[:-20])
    assert readings.read(str(path)).readings == RUN.readings[:1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file or folder"),
        ("", "is not a monitor's"),
        ('{"schema": "amp_tf.report"}', "is not a monitor's (ValueError: schema 'amp_tf.report')"),
        (readings.head_line(Precision.FLOAT16, {}) + "\n{\n{}", "is not a monitor's"),
    ],
)
def test_what_is_no_file_of_a_monitor_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FileError) as caught:
        readings.read(str(path))
    assert message in str(caught.value)
    assert "Name a file or a folder that AMP_TF_MONITOR wrote" in str(caught.value)


def test_a_folder_without_readings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no readings of a monitor"):
        readings.read(str(tmp_path))


def test_runs_part_at_the_first_step_and_in_the_first_layer_that_differs() -> None:
    later = dataclasses.replace(WIDE, norm=5.2e4)
    changed = dataclasses.replace(RUN, readings=(RUN.readings[0], Reading(500, 0.25, (CALM, later))))
    divergence = find_divergence(RUN, changed)
    assert divergence is not None
    assert str(divergence) == "the runs part at step 500 in net/wide: norm 50000 and 52000, 3.85% apart"
    assert find_divergence(RUN, RUN) is None
    assert find_divergence(RUN, changed, tolerance=0.05) is None


def test_steps_and_layers_of_one_run_alone_are_left_out() -> None:
    other = dataclasses.replace(RUN, readings=(Reading(250, 1.0, (WIDE,)), Reading(500, 1.0, (WIDE,))))
    assert readings.common_steps(RUN, other) == [500]
    assert find_divergence(RUN, other) is None


def test_the_rows_of_a_report_have_the_limit() -> None:
    (first, *_) = RUN.rows()
    assert first["layer"] == "net/wide"
    assert (first["step"], first["limit"]) == (500, "range")
    assert json.dumps(first)
