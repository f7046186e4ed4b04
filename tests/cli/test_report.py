"""``amp-tf report`` on what runs wrote, on models and graphs."""

import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.offline.reading import write_graph_file
from amp_tf.reporting import files
from tests.reporting.rendering import shown
from tests.reporting.reported_graphs import traced

FIRST = Path(__file__).parents[1] / "reporting" / "report_version_1.json"
OPTIONS = ("--precision", "bfloat16", "--target", "cpu")


@pytest.fixture
def graph_file(tmp_path):
    graph = traced(lambda x, w: tf.matmul(tf.exp(tf.matmul(x, w)), w), (64, 64), (64, 64))
    write_graph_file(graph, tmp_path / "graph.pb")
    return tmp_path / "graph.pb"


def test_a_page_is_made_of_a_runs_file(tmp_path, tell):
    assert (
        tell("report", FIRST, "--html", tmp_path / "page.html").out
        == "train.py: 50 % of matmul and convolution work in 16 bit, 2 of 7 nodes converted\n"
    )
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_hyphen_is_stdout_and_no_file(tmp_path, tell, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = tell("report", FIRST).out
    assert tell("report", FIRST, "--json", "-").out == printed
    assert json.loads(printed)["schema"] == files.KIND
    page = tell("report", FIRST, "--html", "-", "--json", "data.json").out
    assert page.rstrip() == files.page(files.read("data.json")).rstrip()
    (line,) = tell("report", FIRST, "--html", "-", "--json", "-", status=1).err.splitlines()
    assert "both are to go to stdout" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data.json"]


def test_a_folder_is_all_runs_in_it_side_by_side(tmp_path):
    for number in range(3):
        shutil.copy(FIRST, tmp_path / f"amp_tf_host_{number}_0.json")
    page = tmp_path / "page.html"
    data = tmp_path / "all.json"
    assert main(["report", str(tmp_path), "--html", str(page), "--json", str(data)]) == 0
    assert "3 runs side by side" in shown(page.read_text(encoding="utf-8"))
    assert len(files.read(data)) == 3


def test_a_graph_is_reported_as_it_would_be_converted(graph_file, tell):
    found = json.loads(tell("report", graph_file, *OPTIONS).out)
    assert found["process"]["program"] == str(graph_file)
    assert found["figures"]["products"] == {"f16": 2 * 2 * 64**3, "float32": 0}
    assert found["blockers"][0]["what"] == "Exp"


def test_so_is_a_saved_model_with_its_functions(tmp_path, tell):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((8, 64))])
        def __call__(self, x):
            return tf.matmul(x, tf.ones((64, 64)))

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    found = json.loads(tell("report", tmp_path / "model", *OPTIONS).out)
    assert found["figures"]["products"]["f16"] == 2 * 8 * 64 * 64
    assert any(graph["function"] for graph in found["graphs"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["empty"], "holds no report or model. Name a folder that"),
        (["nothere"], "nothere: cannot be read (No such file or directory). Name a report"),
        (["x" * 300], ": cannot be read (File name too long). Name a report"),
        (["nested"], "is not JSON"),
        ([str(FIRST), "--html", "none/page.html"], "page.html: cannot be written (No such file or"),
    ],
)
def test_what_cannot_be_read_or_written_is_told(arguments, said, tmp_path, tell, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("nested").mkdir()
    Path("nested/amp_tf_1.json").write_text("[" * 100_000)
    (line,) = tell("report", *arguments, status=1).err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("field", "value"), [("figures", 3), ("converted", "many"), ("graphs", 3), ("process", None)]
)
def test_a_report_that_somebody_broke_is_one_error(field, value, tmp_path, tell):
    document = json.loads(FIRST.read_text()) | {field: value}
    (tmp_path / "amp_tf_1.json").write_text(json.dumps(document))
    (line,) = tell("report", tmp_path, "--html", tmp_path / "page.html", status=1).err.splitlines()
    assert line.startswith(f"amp-tf report: {tmp_path}: a report is broken (")


def test_a_terminal_obeys_no_report(tmp_path, tell):
    document = json.loads(FIRST.read_text())
    document["process"]["program"] = "train.py \x1b[2J\x1b]0;owned\x07\x9b31m"
    (tmp_path / "amp_tf_1.json").write_text(json.dumps(document))
    assert tell("report", tmp_path, "--html", tmp_path / "page.html").out.startswith(
        "train.py \\x1b[2J\\x1b]0;owned\\x07\\x9b31m: 50 %"
    )
