"""The search for the layers that stay in float32: items, runs and the journal."""

import dataclasses
import itertools
import math
import random
import re
from pathlib import Path

import pytest

from amp_tf.errors import AmpError, ConfigError
from amp_tf.tools import keeping
from amp_tf.tools.search import (
    Item,
    OutOfRunsError,
    find_items,
    find_nodes,
    find_smallest,
    rank,
)
from amp_tf.tools.tuning.result import Goal, Outcome
from amp_tf.tools.tuning.tuning import Journal, Tuning, Way
from amp_tf.values import read_pattern_file
from tests.tuning.programs import GOOD, Weak, findings, node, report

ACCURACY = Goal("accuracy", 0.01, is_loss=False)
PATHS = tuple(f"m/{letter}/dense" for letter in "abcdefgh")


def tuned(program, folder, **settings):
    journal = Journal(folder / "runs", {"program": "weak"})
    return Tuning(program, ACCURACY, journal, **settings).for_accuracy()


def weak_at_e():
    """A program that needs one layer in float32, which its comparison finds."""
    return Weak(PATHS, ("m/e/dense/MatMul",), findings("m/e/dense/MatMul"))


def test_what_the_comparison_finds_is_kept_and_no_more(tmp_path):
    told = []
    program = weak_at_e()
    found = tuned(program, tmp_path, progress=told.append)
    assert told[:2] == ["run 1 of at most 40: float32", ""]
    assert re.search(r", \d+ s a run, at most \d+ s left$", told[-2])
    assert found.patterns == ("layer:m/e/dense$",)
    assert found.proof == "none of them can be left out"
    assert program.runs == found.runs <= 9
    assert found.why == {"layer:m/e/dense$": "rounding at m/e/dense/MatMul: it is rounded"}
    assert found.mixed == 0.4
    assert found.chosen is not None
    assert found.chosen.value == 0.9


def test_a_model_that_is_good_in_mixed_precision_needs_four_runs_and_nothing_in_float32(tmp_path):
    program = Weak(PATHS, ())
    found = tuned(program, tmp_path)
    assert found.patterns == ()
    assert program.runs == 4
    assert str(found) == (
        "accuracy: 0.9 and 0.9 in float32, good is at least 0.89\n"
        "Nothing has to stay in float32: accuracy 0.9, 100 % of matmul and convolution work in "
        "16 bit (4 runs).\n"
        "What was tried:\n"
        "   16 bit     accuracy       step  in float32\n"
        "    100 %          0.9    10.0 ms  nothing"
    )


def test_where_only_nothing_in_16_bit_is_good_all_layers_are_tried_before_they_are_the_result(
    tmp_path,
):
    """Patterns may not find a part that has no name, or another one in each run."""
    found = tuned(Weak(PATHS, ("elsewhere/MatMul",)), tmp_path / "elsewhere")
    assert found.patterns is None
    assert str(found).endswith(f"No set was found that suffices, in {found.runs} runs.")
    found = tuned(Weak(PATHS[:1], (f"{PATHS[0]}/MatMul",)), tmp_path / "one")
    assert found.patterns == (f"layer:{PATHS[0]}$",)
    assert found.trades[-1].kept == found.patterns
    assert found.chosen.share == found.trades[-1].outcome.share == 0.0


def test_patterns_of_the_settings_are_in_every_run_and_in_the_file(tmp_path):
    from_settings = ("layer:m/a/dense$",)
    program = Weak(PATHS, ("m/a/dense/MatMul", "m/e/dense/MatMul"), findings("m/e/dense/MatMul"))
    told = []
    found = tuned(program, tmp_path, from_settings=from_settings, tell=told.append)
    assert found.patterns == (*from_settings, "layer:m/e/dense$")
    assert "run 4 of at most 40: nothing else in float32: accuracy 0.4" in told[4]
    shown = str(found)
    assert "2 layers or nodes stay in float32: accuracy 0.9" in shown
    why = f"the settings keep {from_settings[0]}; none of the others can be left out"
    assert f"; {why}):\n" in shown
    assert shown.splitlines()[-1].endswith(f"  {', '.join(found.patterns)}")
    file = tmp_path / "keep.txt"
    found.write(file)
    assert read_pattern_file(str(file), where="test") == found.patterns
    assert "0.4 with nothing else in float32, 0.9 with what is below" in file.read_text()
    assert f"; {why}\n" in file.read_text()


def test_the_runs_of_another_version_of_the_program_are_an_error(tmp_path):
    """Files that the program itself writes are no part of it."""
    script = tmp_path / "train.py"
    log = tmp_path / "log.csv"
    made = tmp_path / "model.h5"
    script.write_text("print(1)")
    log.write_text("epoch")
    words = [*map(str, (script, log, made)), "--epochs", str(tmp_path)]
    first = Journal(tmp_path / "runs", {"command": "a"}, words)
    log.write_text("epoch, loss")
    made.write_text("weights")
    first.add("float32/1", Outcome(GOOD))
    del first
    log.write_text("")
    made.write_text("better weights")
    again = Journal(tmp_path / "runs", {"command": "a"}, words)
    assert list(again.runs) == ["float32/1"]
    del again
    script.write_text("print(2)")
    other = rf"the runs of another tuning \(other content of {script}\)\. Delete the folder"
    with pytest.raises(ConfigError, match=other):
        Journal(tmp_path / "runs", {"command": "a"}, words)
    script.write_text("print(1)")
    Journal(tmp_path / "runs", {"command": "a"}, words)


def test_the_runs_of_another_tensorflow_or_cpu_are_deleted(tmp_path):
    made = []
    for made_with in ("TensorFlow 2.20", "TensorFlow 2.20", "TensorFlow 2.21"):
        journal = Journal(tmp_path / "runs", {"command": "a"}, (), made_with)
        made.append((journal.outdated, [*journal.runs]))
        if not journal.runs:
            assert journal.read("mixed.json") is journal.read("comparison.json") is None
            journal.add("float32/1", Outcome(GOOD))
            journal.write("mixed.json", {})
            journal.write("comparison.json", {})
        del journal
    assert made == [("", []), ("", ["float32/1"]), ("TensorFlow 2.20", [])]


def test_a_run_that_failed_in_the_search_is_not_kept_and_its_last_words_neither(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",))
    original = program.run

    def failing(way, patterns):
        if way is Way.MIXED and not patterns:
            return Outcome(failure="the password is 1234")
        return original(way, patterns)

    def reporting_nothing(way, patterns):
        """As on a full disk."""
        return dataclasses.replace(original(way, patterns), report=None)

    program.run = failing
    with pytest.raises(AmpError, match=r"left no report \(the password is 1234\)"):
        tuned(program, tmp_path)
    kept = (tmp_path / "runs" / "tuning.json").read_text()
    assert "float32/2" in kept
    assert "1234" not in kept
    program.run = reporting_nothing
    with pytest.raises(AmpError, match="left no report"):
        tuned(program, tmp_path)
    program.run = original
    found = tuned(program, tmp_path)
    assert found.runs == program.runs - 1  # the one without a report
    assert found.patterns is not None


def test_two_tunings_in_one_folder_do_not_meet(tmp_path):
    first = Journal(tmp_path / "runs", {"command": ["a"]})
    with pytest.raises(ConfigError, match="another process tunes there now") as refused:
        Journal(tmp_path / "runs", {"command": ["a"]})
    del refused  # whose traceback holds that journal
    first.remove()
    assert not [
        link for link in Path("/proc/self/fd").glob("*") if str(tmp_path) in str(link.resolve())
    ]
    Journal(tmp_path / "runs", {"command": ["a"]})


def test_a_file_says_what_was_measured_and_when_and_is_read_as_it_was_written(tmp_path):
    program = weak_at_e()
    found = tuned(program, tmp_path)
    file = tmp_path / "keep.txt"
    found.write(file)
    text = re.sub(r"\d{4}-\d\d-\d\d", "DATE", file.read_text())
    assert (
        text
        == f"""\
# amp-tf tune: float16 on GPU, TensorFlow 2.20.0, DATE
# accuracy: 0.9 and 0.9 in float32, 0.4 with nothing in float32, 0.9 with what is below
# good is at least 0.89; {found.runs} runs; none of them can be left out
# Read with AMP_TF_KEEP_FLOAT32=@keep.txt

# rounding at m/e/dense/MatMul: it is rounded
layer:m/e/dense$
"""
    )
    assert read_pattern_file(str(file), where="test") == found.patterns


def test_words_of_several_lines_are_one_comment(tmp_path):
    file = tmp_path / "keep.txt"
    keeping.write(
        file, ["a"], ["measured"], {"a": "Graph execution error:\n\n\x1b[1mDetected\tat node"}
    )
    assert "\n# Graph execution error: [1mDetected at node\na\n" in file.read_text()
    assert read_pattern_file(str(file), where="test") == ("a",)


def test_where_amp_tf_alone_changes_the_metric_it_stops(tmp_path):
    why = r"^with amp_tf on and nothing in 16 bit, the run is not good \(accuracy 0.5"
    with pytest.raises(AmpError, match=why):
        tuned(Weak(PATHS, (), nothing=0.5), tmp_path)
    mended = Weak(PATHS, ())
    assert tuned(mended, tmp_path).runs == 4
    assert mended.runs == 2


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(failure="it ended with status 1: no data"), "it ended with status 1: no data"),
        (Outcome(math.nan), "it is nan"),
        (Outcome(math.inf), "it is inf"),
    ],
)
def test_where_float32_has_no_metric_it_stops_and_the_run_is_made_again(outcome, why, tmp_path):
    program = Weak(PATHS, ())
    program.run = lambda way, patterns: outcome
    with pytest.raises(AmpError, match=rf"^there is no accuracy in float32 \({why}\)"):
        tuned(program, tmp_path)
    assert tuned(Weak(PATHS, ()), tmp_path).runs == 4


def test_where_nothing_is_converted_it_stops(tmp_path):
    with pytest.raises(ConfigError, match="nothing is converted, so there is nothing to tune"):
        tuned(Weak((), ()), tmp_path)
    Journal(tmp_path / "runs", {"program": "weak", "precision": "bfloat16"})  # the mended command


def test_within_too_few_runs_the_best_set_is_written_and_said_not_to_be_minimal(tmp_path):
    found = tuned(Weak(PATHS, ("m/d/dense/MatMul",)), tmp_path, most_runs=7)
    assert found.patterns is not None
    assert "whether less suffices is not known" in str(found)


@pytest.mark.parametrize(
    ("is_loss", "float32", "limit", "good", "bad"),
    [(False, (0.9, 0.8), 0.7, 0.7, 0.69), (True, (1.0, 1.5), 1.6, 1.6, 1.61)],
)
def test_the_worse_of_both_runs_in_float32_counts(is_loss, float32, limit, good, bad):
    goal = Goal("metric", 0.1, is_loss)
    found = goal.limit(float32)
    assert found == pytest.approx(limit)
    assert goal.is_good(good, found + (1e-9 if is_loss else -1e-9))
    for value in (bad, None, math.nan, math.inf, -math.inf):
        assert not goal.is_good(value, found)
    unlimited = goal.limit(())
    assert goal.is_good(bad, unlimited)
    assert not goal.is_good(math.nan, unlimited)


def test_a_layer_is_one_item_and_not_divided_into_nodes():
    (item,) = find_items(report("m/dense"))
    assert item == Item("m/dense", ("layer:m/dense$",), 2e6 + 1e3)


@pytest.mark.parametrize(
    "paths",
    [
        ("m/block_0/query", "m/block_1/query"),
        ("m/dense", "m/dense_1", "m/dense_1_2"),
        ("m/blk0_1", "m/blk1_1"),
    ],
)
def test_layers_that_are_made_alike_are_one_item(paths):
    (item,) = find_items(report(*paths))
    assert item.name == f"{paths[0]} and {len(paths) - 1} like it"
    assert [part.name for part in item.parts] == list(paths)
    assert len(item.patterns) == len(paths)


def test_layers_of_other_names_or_structures_or_in_float32_are_no_part_of_an_item():
    assert len(find_items(report("m/query_0", "m/key_0"))) == 2
    other = report("m/block_0", "m/block_1", "m/block_2")
    for row in other["graphs"][0]["nodes"]:
        if "block_1" in row["name"]:
            row["op"] = "Conv2D"
        if "block_2" in row["name"]:
            row["precision"] = "float32"
    assert [item.name for item in find_items(other)] == ["m/block_0", "m/block_1"]


def test_nodes_of_a_scope_with_layers_in_it_do_not_take_the_layers_with_them():
    found = report("m/dense")
    found["graphs"][0]["nodes"].append(node("m/add"))
    item = find_items(found)[1]
    assert item.patterns == ("node:m/add",)
    assert keeping.any_matcher(item.patterns)("m/add")
    assert not keeping.any_matcher(item.patterns)("m/dense/MatMul")


def test_a_layer_that_keras_knows_is_one_item_whatever_its_scopes_are():
    names = ("m_1/a_1/MatMul", "m_1/a_1_1/MatMul", "gradient_tape/m_1/a_1/MatMul/MatMul")
    (item,) = find_items({"graphs": [{"nodes": [node(name, layer="m/a.b") for name in names]}]})
    assert item == Item("m/a.b", (r"layer:m/a\.b",), 3e6)


def test_nodes_in_no_scope_are_named_one_by_one():
    (item,) = find_items(
        {"graphs": [{"nodes": [node("MatMul"), node("gradient_tape/MatMul/MatMul")]}]}
    )
    assert item.patterns == ("node:MatMul", "node:gradient_tape/MatMul/MatMul")


def test_names_are_those_before_inlining_and_splitting():
    found = report("m/dense")
    found["graphs"][0]["nodes"] = [
        node("StatefulPartitionedCall/m/dense/Relu-MatMul-0-AmpTfSplit"),
        node("StatefulPartitionedCall/m/dense/Relu-BiasAdd-0-AmpTfSplit", 1e3),
        node("StatefulPartitionedCall/gradient_tape/m/dense/MatMul/MatMul"),
    ]
    assert [node.name for node in find_nodes(found)] == [
        "m/dense/Relu",
        "gradient_tape/m/dense/MatMul/MatMul",
    ]


def test_what_the_comparison_finds_comes_first_in_its_order():
    items = find_items(report("m/a", "m/b", "m/c"))
    found = rank(items, ["m/c/Tanh", "m/b/MatMul"], {})
    assert [item.name for item in found] == ["m/c", "m/b", "m/a"]


def test_then_comes_most_local_error_for_each_operation():
    graph = report("m/a", "m/b", "m/c")
    for row in graph["graphs"][0]["nodes"]:
        if "m/c" in row["name"]:
            row["operations"] = 1e9
    errors = {"m/a/Tanh": 0.01, "m/b/Tanh": 0.02, "m/c/Tanh": 0.1, "m/a/MatMul": math.inf}
    assert [item.name for item in rank(find_items(graph), [], errors)] == ["m/a", "m/b", "m/c"]


def leaf(name, operations=1.0):
    return Item(name, (name,), operations)


def whole(name, parts):
    patterns = itertools.chain(*(part.patterns for part in parts))
    return Item(name, tuple(patterns), sum(part.operations for part in parts), parts)


def leaves(items):
    found = set()
    for item in items:
        if item.parts:
            found |= leaves(item.parts)
        else:
            found.add(item.name)
    return found


class Asked:
    """Answers whether a set holds all leaves that are needed; counts the sets."""

    def __init__(self, needed, most=10_000):
        self.needed, self.most = needed, most
        self.known = {}

    def __call__(self, items):
        key = frozenset(leaves(items))
        if key not in self.known:
            if len(self.known) >= self.most:
                raise OutOfRunsError
            self.known[key] = self.needed <= key
        return self.known[key]


ITEMS = tuple(leaf(f"i{number}") for number in range(31))


@pytest.mark.parametrize("seed", range(20))
def test_any_set_is_found_and_minimal(seed):
    draw = random.Random(seed)
    needed = {f"i{number}" for number in draw.sample(range(31), draw.randint(1, 5))}
    items, is_minimal = find_smallest(ITEMS, Asked(needed))
    assert leaves(items or ()) == needed
    assert is_minimal


def test_an_item_is_divided_into_those_of_its_parts_that_are_needed():
    blocks = []
    for block in ("a", "b", "c"):
        blocks.append(whole(block, tuple(leaf(f"{block}{number}") for number in range(4))))
    items, is_minimal = find_smallest(tuple(blocks), Asked({"b2", "b3", "c0"}))
    assert [item.name for item in items or ()] == ["b2", "b3", "c0"]
    assert is_minimal


@pytest.mark.parametrize("most", range(12))
def test_out_of_runs_the_best_set_so_far_is_given(most):
    needed = {"i2", "i5"}
    items, is_minimal = find_smallest(ITEMS, Asked(needed, most))
    if items is not None:
        assert needed <= leaves(items)
    assert not is_minimal
    assert (items is None) is (most < 4)
