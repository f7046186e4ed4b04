"""What amp_tf reaches on GPUs beside Keras' policy and TensorFlow's pass, as the judged rows have it."""

from __future__ import annotations

from benchmarks.gpu import cases, compiled, grappler, judge, targets


def test_nothing_is_missed_on_gpus_but_what_is_known_and_nothing_known_is_mended() -> None:
    compiled_rows, grappled_rows = compiled.read(judge.COMPILED), grappler.read(judge.GRAPPLED)
    assert {row["model"] for row in compiled_rows} == set(judge.COMPILED_MODELS.split(","))
    assert {row["model"] for row in grappled_rows} == set(judge.GRAPPLED_MODELS.split(","))
    assert {row["mode"] for row in grappled_rows} == set(grappler.MODES)
    found = judge.misses(compiled_rows) | judge.misses(grappled_rows)
    assert judge.disagreements(found, judge.KNOWN) == []


def test_tables_of_the_documents_are_those_of_their_rows() -> None:
    folder = judge.COMPILED.parent
    compiled_rows, grappled_rows = compiled.read(folder / "compiled.json"), grappler.read(folder / "grappler.json")
    assert (folder / "compiled.md").read_text() == compiled.table(compiled_rows) + "\n"
    assert (folder / "grappler.md").read_text() == grappler.table(grappled_rows) + "\n"
    assert (folder / "misses.md").read_text() == judge.told(compiled_rows) + judge.told(grappled_rows)
    assert {row["model"] for row in compiled_rows} == set(cases.CASES)
    assert {row["target"] for row in compiled_rows} == set(targets.TARGETS)
