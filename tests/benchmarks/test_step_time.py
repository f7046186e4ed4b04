"""The suite's processes run for real at the tiny size; what its tables say is checked on made-up figures."""

from __future__ import annotations

import dataclasses
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.step_time import results, suite, tables
from benchmarks.step_time.__main__ import batches, main, new_parser
from benchmarks.step_time.modes import COMPARED, WAYS, environment, modes
from benchmarks.step_time.suite import Row

MODES = modes("bfloat16")


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str], Row]:
    settings = suite.Settings("tiny", "bfloat16", rounds=2, seconds=0.02)
    ways = [WAYS[name] for name in ("fit", "predict", "loop", "fit_jit")]
    chosen = [MODES[name] for name in ("float32", "amp_tf")]
    return {(row.way, row.mode): row for row in suite.measure("wide_mlp", None, chosen, ways, settings)}


@pytest.mark.parametrize("way", ["fit", "predict", "loop", "fit_jit"])
def test_both_modes_are_measured_in_every_way(measured, way):
    for mode in ("float32", "amp_tf"):
        row = measured[way, mode]
        assert row.error == ""
        assert len(row.ms) == 2
        assert min(row.ms) > 0
        assert row.first_step_s > 0
        assert row.peak_mib > 100  # TensorFlow alone takes more
        assert row.batch == 16
        assert len(row.losses) == (8 if WAYS[way].trains else 0)


def test_losses_begin_the_same_in_both_modes(measured):
    ours, theirs = measured["fit", "amp_tf"].losses, measured["fit", "float32"].losses
    assert ours == pytest.approx(theirs, rel=0.02)


def test_worker_that_cannot_start_becomes_a_row_with_its_error():
    settings = suite.Settings("tiny", "bfloat16", rounds=1, seconds=0.01)
    rows = suite.measure("no_such_model", None, [MODES["float32"]], [WAYS["fit"]], settings)
    assert len(rows) == 1
    assert "KeyError: 'no_such_model'" in rows[0].error


def test_a_mode_whose_environment_is_missing_says_what_makes_it(tmp_path):
    settings = suite.Settings("tiny", "bfloat16", rounds=1, seconds=0.01)
    zentf = dataclasses.replace(MODES["zentf"], python=tmp_path / "python")
    rows = suite.measure("wide_mlp", None, [zentf], [WAYS["predict"]], settings)
    assert [row.error for row in rows] == [
        f"zentf runs in {tmp_path}/python, which is not there: python -m benchmarks.step_time.zentf makes it"
    ]


@pytest.mark.parametrize(("mode", "reached"), [("amp_tf", 5), ("tf_pass", 3), ("zentf", 1)])
def test_modes_are_measured_in_the_ways_that_they_are_for(mode, reached):
    assert len([way for way in WAYS.values() if MODES[mode].reaches(way)]) == reached
    assert MODES[mode].is_ours == (mode == "amp_tf")


def test_the_amp_tf_of_another_checkout_runs_beside_todays(tmp_path):
    """A copy of the package stands for the checkout; in the second one nothing can be imported."""
    root = Path(suite.__file__).resolve().parents[2]
    shutil.copytree(root / "amp_tf", tmp_path / "copy" / "amp_tf")
    shutil.copy(root / "_amp_tf_start.py", tmp_path / "copy")
    settings = suite.Settings("tiny", "bfloat16", rounds=1, seconds=0.01)
    chosen = [MODES[name] for name in ("amp_tf", f"all listed@{tmp_path}/copy", f"amp_tf@{tmp_path}/none")]
    ours, copied, missing = sorted(
        suite.measure("wide_mlp", None, chosen, [WAYS["fit"]], settings), key=lambda row: chosen.index(MODES[row.mode])
    )
    assert (ours.error, ours.amp_tf) == ("", "")
    assert (copied.error, copied.amp_tf) == ("", f"{tmp_path}/copy/amp_tf")
    assert copied.converted > 0
    assert missing.error == f"amp_tf@{tmp_path}/none imported amp_tf from {root}/amp_tf, not from {tmp_path}/none."
    assert f"all listed@{tmp_path}/copy: the package in {tmp_path}/copy/amp_tf" in tables.table(
        [made_up("float32", (1.0,)), ours, copied], [MODES["float32"], *chosen[:2]]
    )


@pytest.mark.parametrize("name", ["amp_tf_at", "float32@..", "none@.."])
def test_only_a_mode_of_amp_tf_may_come_from_another_checkout(name):
    with pytest.raises(KeyError):
        MODES[name]


def test_a_process_stands_still_until_it_is_asked():
    """Or threads of a peer that wait in a busy loop would slow the others down."""
    worker = suite.Worker("wide_mlp", MODES["float32"], None, suite.Settings("tiny", "bfloat16", 1, 0.01))
    try:
        for _ in range(2):
            worker.ask(do="versions")
            deadline = time.monotonic() + 10
            while (state := _state_of(worker)) != "T" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert state == "T"
    finally:
        worker.close()


def _state_of(worker):
    """What Linux says that its process does: T for stopped."""
    return Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_each_mode_sets_its_own_variables_and_no_others(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert not any("MIXED" in name or "AMP_TF" in name for name in environment(MODES["float32"]))
    on = environment(MODES["amp_tf"])
    assert (on["TF_ENABLE_AUTO_MIXED_PRECISION"], on["AMP_TF_PRECISION"]) == ("1", "bfloat16")


def made_up(mode: str, ms: tuple[float, ...], **figures: float) -> Row:
    return Row("bert", "fit", mode, 16, ms, losses=(2.0, 1.0), **{"first_step_s": 2.0, "peak_mib": 100.0, **figures})


def test_table_gives_ratios_of_medians_their_spread_and_the_best_other_mode():
    rows = [
        made_up("float32", (10.0, 12.0, 11.0)),
        made_up("policy", (10.0, 10.0, 10.0)),
        made_up("amp_tf", (5.0, 6.0, 5.5), first_step_s=2.2, peak_mib=150.0, converted=120, casts=30),
        Row("bert", "fit", "tf_pass", error="it broke"),
    ]
    text = tables.table(rows, [MODES[name] for name in COMPARED])
    line = next(line for line in text.splitlines() if line.startswith("| BERT"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "BERT encoder", "fit", "16", "11.00", "1.10 ± 0.10", "–", "2.00 ± 0.00", "1.10", "1.50", "120 / 30", "0.0e+00",
        "1.82 ± 0.17 (policy)",
    ]  # fmt: skip
    assert "amp_tf over float32: geometric mean 2.000, worst 2.000 of 1" in text
    assert "amp_tf over the best other of each row: geometric mean 1.818, worst 1.818 of 1" in text
    assert "bert fit tf_pass: it broke" in text


def test_noise_makes_the_best_of_many_no_better_where_other_rounds_choose_it():
    """Three modes as fast as amp_tf, of which each has a fast round; whichever the one half of the rounds chooses."""
    rows = {
        "float32": made_up("float32", (10.0, 10.0, 8.0, 10.0)),
        "policy": made_up("policy", (8.0, 10.0, 10.0, 10.0)),
        "tf_pass": made_up("tf_pass", (10.0, 8.0, 10.0, 10.0)),
        "amp_tf": made_up("amp_tf", (10.0, 10.0, 10.0, 10.0)),
    }
    assert tables.fair_ratio(rows) == pytest.approx(1.0)
    assert tables.least_ratio(rows, "the best other") == pytest.approx(0.8)
    alone = {mode: dataclasses.replace(row, ms=row.ms[:1]) for mode, row in rows.items()}
    assert tables.fair_ratio(alone) == tables.median_ratio(alone["amp_tf"], alone["policy"])


def test_amp_tf_by_other_names_is_not_among_the_others():
    rows = {mode: made_up(mode, (ms,)) for mode, ms in (("float32", 3.0), ("policy", 2.0), ("calibrated", 1.0))}
    assert tables.best_other({**rows, "without cost model": made_up("without cost model", (1.0,))}).mode == "policy"


def test_loss_difference_is_the_largest_of_the_first_steps():
    reference = made_up("float32", (1.0,))
    other = Row("bert", "fit", "amp_tf", 16, (1.0,), losses=(2.2, 1.0))
    assert tables.loss_difference(other, reference) == pytest.approx(0.1)
    assert tables.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert math.isclose(tables.speedups(other, reference)[0], 1.0)


def test_the_table_and_the_picture_of_a_run_can_be_made_again_from_its_files(tmp_path, capsys):
    one, two = tmp_path / "bert.json", tmp_path / "ncf.json"
    facts = {"date": "2026-11-20", "command": "measure"}
    rows = (made_up("float32", (10.0, 12.0)), made_up("amp_tf", (5.0, 6.0)))
    results.Results(facts, "bfloat16", rows).write(one)
    results.Results(facts, "bfloat16", tuple(dataclasses.replace(row, model="ncf") for row in rows)).write(two)
    assert results.read([one]).rows == rows
    assert main(["--read", str(one), str(two)]) == 0
    text = capsys.readouterr().out
    assert "command: measure; measure" in text
    assert "| BERT encoder | fit | 16 | 11.00 | 2.00 ± 0.00 |" in text
    assert "| NCF | fit | 16 | 11.00 | 2.00 ± 0.00 |" in text


def test_files_of_different_16_bit_types_are_not_shown_together(tmp_path):
    for precision in ("bfloat16", "float16"):
        results.Results({"command": ""}, precision, ()).write(tmp_path / precision)
    with pytest.raises(ValueError, match=r"different 16-bit types \(bfloat16, float16\)"):
        results.read([tmp_path / "bfloat16", tmp_path / "float16"])


def test_what_two_files_measured_has_the_rounds_of_both(tmp_path):
    rows = (made_up("float32", (10.0, 12.0)), made_up("amp_tf", (5.0, 6.0)))
    slower = tuple(dataclasses.replace(row, ms=tuple(2 * ms for ms in row.ms)) for row in rows)
    for name, which in (("first", rows), ("second", slower), ("fewer", slower[:1])):
        results.Results({"command": name}, "bfloat16", which).write(tmp_path / name)
    assert [row.ms for row in results.read([tmp_path / "first", tmp_path / "second"]).rows] == [
        (10.0, 12.0, 20.0, 24.0),
        (5.0, 6.0, 10.0, 12.0),
    ]
    with pytest.raises(ValueError, match="bert, fit: amp_tf has 2 rounds, other modes have 4"):
        results.read([tmp_path / "first", tmp_path / "fewer"])


def test_batches_are_those_named_or_the_models_sweep_or_its_own():
    asked = [new_parser().parse_args(text.split()) for text in ("", "--batches", "--batches 4 9")]
    assert [batches("convnet", options) for options in asked] == [(None,), (8, 16, 32, 64), [4, 9]]


def test_the_policy_of_a_mode_is_in_force_when_its_model_is_built():
    """Keras forgets the global policy when the session is cleared between the ways."""
    program = """
from benchmarks.step_time import worker
from benchmarks.step_time.modes import WAYS, modes
worker.set_up(modes("bfloat16")["policy"])
options = {"model": "small_mlp", "size": "tiny", "batch": None, "precision": "bfloat16", "mode": "policy"}
for way in ("fit", "predict"):
    runner, _ = worker.prepare(options, WAYS[way])
    print(runner.model.layers[-1].compute_dtype)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["bfloat16", "bfloat16"]


def test_the_wide_suites_halves_have_means_of_their_own():
    """Two judging models, of which the best other is another mode in each; one choosing model without amp_tf."""

    def wide(model: str, mode: str, *ms: float) -> Row:
        return Row(model, "fit", mode, 8, ms, first_step_s=1.0, peak_mib=100.0)

    rows = [
        wide("vgg16", "float32", 8.0, 10.0, 12.0), wide("vgg16", "amp_tf", 5.0, 5.0, 4.0),
        wide("vgg16", "policy", 6.0, 5.0, 4.0),
        wide("conv1d", "float32", 4.0, 4.0, 4.0), wide("conv1d", "amp_tf", 2.0, 2.0, 2.0),
        wide("conv1d", "policy", 8.0, 8.0, 8.0),
        wide("densenet", "float32", 8.0, 8.0, 8.0), wide("densenet", "policy", 8.0, 8.0, 8.0),
    ]  # fmt: skip
    text = tables.table(rows, [MODES[name] for name in ("float32", "policy", "amp_tf")])
    assert "judging half, fit: amp_tf over float32 2.000 by medians, 2.000 by the fastest rounds, of 2" in text
    fair = "1.452 where other rounds choose the best"
    assert f"over the best other 1.414 by medians, {fair}, 1.414 by the fastest rounds, of 2" in text
    assert "choosing half" not in text


def test_of_several_files_some_modes_can_be_shown_alone(tmp_path):
    facts, paths = {"date": "2026-11-20", "command": "measure"}, [tmp_path / "one.json", tmp_path / "two.json"]
    both = (made_up("float32", (10.0, 12.0)), made_up("amp_tf", (5.0, 6.0)))
    for path, rows in zip(paths, (both, (*both, made_up("calibrated", (4.0, 6.0)))), strict=True):
        results.Results(facts, "bfloat16", rows).write(path)
    with pytest.raises(ValueError, match="calibrated has 2 rounds, other modes have 4"):
        results.read(paths)
    assert {row.mode: row.ms for row in results.read(paths, ["float32", "amp_tf"]).rows} == {
        "float32": (10.0, 12.0, 10.0, 12.0),
        "amp_tf": (5.0, 6.0, 5.0, 6.0),
    }


def test_another_form_of_amp_tf_is_compared_with_it_by_halves():
    rows = []
    for model, ms in (("vgg16", 2.0), ("resnet_v2", 8.0)):
        row = {mode: dataclasses.replace(made_up(mode, (4.0, 4.0)), model=model) for mode in ("float32", "amp_tf")}
        rows += [*row.values(), dataclasses.replace(row["amp_tf"], mode="calibrated", ms=(ms, ms))]
    shown = tables.table(rows, [MODES[mode] for mode in ("float32", "amp_tf", "calibrated")])
    way = rows[0].way
    assert f"judging half, {way}: calibrated over amp_tf 1.000 ± 0.693, of 2" in shown.splitlines()
