"""``amp-tf report`` on what runs wrote, on models, graphs and log folders."""

import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.cli.main import main
from amp_tf.offline.reading import write_graph_file
from amp_tf.reporting import files
from tests.hooks import running
from tests.reporting.rendering import shown
from tests.reporting.reported_graphs import BF16_CPU, traced

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


@pytest.fixture
def logging(tmp_path):
    """Rewrites as a program does whose log folder is tmp_path / "log"."""
    config = amp_tf.AmpConfig(precision="bfloat16", log_path=str(tmp_path / "log"))
    return lambda graph: amp_tf.rewrite(graph, config, hardware=BF16_CPU).graph


def test_so_are_the_graphs_of_a_log_folder_by_the_settings_of_the_command(
    graph_file, logging, tmp_path, tell
):
    graph = tf.compat.v1.GraphDef.FromString(graph_file.read_bytes())
    logging(graph)
    folder = str(tmp_path / "log")
    for options, share in ((OPTIONS, 1), ((*OPTIONS, "--keep-float32", "MatMul"), 0)):
        told = tell("report", folder, *options)
        found = json.loads(told.out)
        assert found["figures"]["products_share_f16"] == share
        settings = {row["field"]: (row["value"], row["from"]) for row in found["settings"]}
        assert settings["precision"] == ("bfloat16", "amp-tf report")
        assert settings["level"][1] == "default"
        assert told.err.startswith(f"{folder}: its graphs are decided again, by the settings of ")
        assert "(precision bfloat16, target cpu)" in told.err


RETRACED = """
import tensorflow as tf
f = tf.function(lambda x: tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, x)), x)) + 1.0)
f(tf.ones((64, 64)))
f(tf.ones((32, 32)))
"""


@pytest.mark.parametrize("keep", ["", "."])
def test_what_tensorflow_passes_to_its_optimizers_twice_counts_once(keep, tmp_path, tell):
    """Both if the program converted something and if not."""
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": "bfloat16",
        "AMP_TF_KEEP_FLOAT32": keep,
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH": str(tmp_path / "log"),
    }
    (tmp_path / "site").mkdir()
    ended = running.run(["-c", RETRACED], tmp_path / "site", variables)
    assert (ended.converted > 0) is not bool(keep)
    found = json.loads(tell("report", tmp_path / "log", *OPTIONS).out)
    assert [str(len(found["graphs"])), str(found["total"])] == [ended.summary[1], ended.summary[3]]
    assert all(graph["converted"] for graph in found["graphs"])


def test_of_a_graph_that_was_converted_before_nothing_is_shown_again(
    graph_file, logging, tmp_path, tell
):
    logging(logging(tf.compat.v1.GraphDef.FromString(graph_file.read_bytes())))
    assert len(json.loads(tell("report", tmp_path / "log", *OPTIONS).out)["graphs"]) == 1


XLA = """
import tensorflow as tf
w = tf.ones((64, 64))
inner = tf.function(lambda x: tf.matmul(x, w))
f = tf.function(lambda x: inner(tf.nn.relu(tf.matmul(x, w))), jit_compile=True)
f(tf.ones((64, 64)))
"""


def test_functions_for_xla_are_logged_whole_and_decided_again_for_xla(tmp_path, tell):
    log = tmp_path / "log"
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": "bfloat16",
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH": str(log),
    }
    (tmp_path / "site").mkdir()
    running.run(["-c", XLA], tmp_path / "site", variables)
    decided = set()
    for path in log.glob("reasons_*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            precision, op, function, name, _ = line.split("\t")
            if op == "MatMul":
                decided.add((function, name, precision))
    assert {precision for _, _, precision in decided} == {"bfloat16"}
    found = json.loads(tell("report", log, *OPTIONS).out)
    products = set()
    for graph in found["graphs"]:
        for node in graph["nodes"]:
            if node["op"] == "MatMul":
                assert graph["way"] == "xla"
                products.add((graph["function"], node["name"], node["precision"]))
    assert products == decided
    assert len(products) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["empty"], "holds no report, model or log files of amp_tf"),
        (["nothere"], "nothere: there is no such file or folder. Name a report"),
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
