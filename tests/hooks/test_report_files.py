"""AMP_TF_REPORT with unchanged programs, each in a process of its own."""

import json
import sys
from importlib import resources

import jsonschema
import pytest

from amp_tf.config import variable_of
from amp_tf.reporting import files
from tests import processes
from tests.hooks import running

PRODUCT = (
    "import tensorflow as tf; f = tf.function(lambda x: tf.nn.relu(x @ x) @ x); f(tf.ones((64, "
    "64)))"
)
KEPT = {"AMP_TF_PRECISION": "bfloat16"}


def one_report(folder):
    (file,) = folder.iterdir()
    (document,) = files.read(file)
    schema = json.loads(
        resources.files("amp_tf.reporting")
        .joinpath("report-1.schema.json")
        .read_text(encoding="utf-8")
    )
    jsonschema.validate(document, schema)
    return document


def test_an_unchanged_keras_script_leaves_one_file(site_folder, tmp_path):
    folder = tmp_path / "made" / "by amp_tf"
    program = str(running.PROGRAMS / "keras_fit.py")
    ended = running.run(
        [program], site_folder, {**running.switched_on(), **KEPT, "AMP_TF_REPORT": str(folder)}
    )
    found = one_report(folder)
    assert found["summary"] == ended.summary[0].removeprefix("amp_tf: ")
    assert found["process"]["program"] == program
    assert found["process"]["ended"] == ""
    assert found["totals"]["converted"] == ended.converted
    assert found["figures"]["products_share_f16"] > 0.9
    sources_of = {row["field"]: row["from"] for row in found["settings"]}
    assert (sources_of["precision"], sources_of["report_path"]) == (
        "AMP_TF_PRECISION",
        "AMP_TF_REPORT",
    )
    assert sources_of["level"] == "default"


def test_a_folder_is_relative_to_where_the_program_began(tmp_path):
    code = (
        "import os, tensorflow as tf; f = tf.function(lambda x: tf.nn.relu(x @ x) @ x + 1.0)\n"
        "f(tf.ones((16, 16))); os.mkdir('elsewhere'); os.chdir('elsewhere')"
    )
    settings = {"AMP_TF_REPORT": "reports", variable_of("log_path"): "logs"}
    running.run(["-c", code], tmp_path, {**running.switched_on(), **settings})
    settings_of = {row["field"]: row for row in one_report(tmp_path / "reports")["settings"]}
    assert settings_of["report_path"]["from"] == "AMP_TF_REPORT"
    assert [*(tmp_path / "logs").iterdir()]
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("when", ["before", "after"])
def test_variables_are_meant_from_where_the_program_began(when, tmp_path):
    """Whether it leaves that folder before TensorFlow is imported, or between two readings."""
    lines = ["import os, tensorflow as tf", "os.mkdir('elsewhere'); os.chdir('elsewhere')"]
    if when == "before":
        lines = ["import os", *reversed(lines)]
    code = "\n".join([*lines, "f = tf.function(lambda x: tf.nn.relu(x @ x) @ x + 1.0)"])
    code += "\nos.environ['AMP_TF_PRECISION'] = 'bf16'; f(tf.ones((16, 16)))"
    (tmp_path / "keep.txt").write_text("^MatMul_1$\n")
    settings = {"AMP_TF_REPORT": "reports", "AMP_TF_KEEP_FLOAT32": "@keep.txt"}
    ended = running.run(["-c", code], tmp_path, {**running.switched_on(), **settings})
    assert "cannot be read" not in ended.err
    found = one_report(tmp_path / "reports")
    settings_of = {row["field"]: row for row in found["settings"]}
    assert settings_of["keep_float32"] == {
        "field": "keep_float32",
        "value": ["^MatMul_1$"],
        "from": "AMP_TF_KEEP_FLOAT32",
    }
    assert settings_of["precision"]["from"] == "AMP_TF_PRECISION"
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_functions_that_xla_compiles_have_the_sizes_of_their_trace(site_folder, tmp_path):
    """Nodes of a FunctionDef carry no shapes, and what a variable looks like only its graph in
    Python knows.
    """
    code = (
        "import tensorflow as tf; w = tf.Variable(tf.ones((64, 32)))\n"
        "f = tf.function(lambda x: tf.nn.relu(x @ w) @ tf.transpose(w), jit_compile=True); "
        "f(tf.ones((16, 64)))"
    )
    running.run(
        ["-c", code],
        site_folder,
        {running.SWITCH: "1", **KEPT, "AMP_TF_REPORT": str(tmp_path / "out")},
    )
    found = one_report(tmp_path / "out")
    assert found["figures"]["products"] == {"f16": 2 * (2 * 16 * 64 * 32), "float32": 0}
    assert found["figures"]["estimated_ms"] is None, "the cost model knows nothing of XLA"
    assert "xla" in {graph["way"] for graph in found["graphs"]}


def test_a_float16_run_has_its_loss_scale_over_time(site_folder, tmp_path):
    program = str(running.PROGRAMS / "keras_fit.py")
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": "float16",
        "AMP_TF_REPORT": str(tmp_path / "out"),
    }
    running.run([program], site_folder, variables)
    (curve,) = one_report(tmp_path / "out")["loss_scales"]
    assert curve["steps"] == 24
    assert curve["points"][-1] == [24, curve["scale"], curve["skipped"]]
    assert [step for step, _, _ in curve["points"]] == sorted({8, 10, 16, 20, 24})


def test_a_program_that_an_error_ends_leaves_its_report(site_folder, tmp_path):
    code = f"{PRODUCT}; raise ValueError('its own')"
    variables = {**running.switched_on(), **KEPT, "AMP_TF_REPORT": str(tmp_path / "out")}
    ended = running.run(["-c", code], site_folder, variables, status=1)
    assert "its own" in ended.err
    found = one_report(tmp_path / "out")
    assert found["process"]["ended"] == "by ValueError"
    assert found["converted"] > 0


def test_a_signal_that_the_program_makes_an_exit_leaves_a_report_and_children_leave_none(
    site_folder, tmp_path
):
    code = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
{PRODUCT}
if not (child := os.fork()):
    sys.exit(0)
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGTERM)
"""
    variables = {**running.switched_on(), **KEPT, "AMP_TF_REPORT": str(tmp_path / "out")}
    environ = running.environment(site_folder, variables)
    ended = processes.run([sys.executable, "-c", code], env=environ, cwd=site_folder, timeout=120)
    assert ended.returncode == 7
    assert one_report(tmp_path / "out")["converted"] > 0


def test_a_folder_that_cannot_be_written_is_one_line_and_the_run_goes_on(site_folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    variables = {**running.switched_on(), **KEPT, "AMP_TF_REPORT": str(tmp_path / "file")}
    ended = running.run(["-c", PRODUCT], site_folder, variables)
    assert ended.converted > 0
    (line,) = ended.warnings
    assert "AMP_TF_REPORT: cannot write to" in line
    assert (tmp_path / "file").read_text() == "in the way"


UNINSTALL = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "amp_tf":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
"""
FIT = """
import keras
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = keras.ops.ones((8, 8))
model.fit(x, x[:, :1], verbose=0)
"""


@pytest.mark.parametrize(("work", "graphs"), [(FIT, True), ("import tensorflow", False)])
def test_the_line_and_the_report_are_there_where_the_package_is_gone_by_then(
    tmp_path, work, graphs
):
    (tmp_path / "train.py").write_text(work + UNINSTALL)
    (tmp_path / "reports").mkdir()
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16", "AMP_TF_REPORT": "reports"}
    ended = running.run(["train.py"], tmp_path, variables)
    assert (ended.converted > 0) is graphs
    assert not [line for line in ended.warnings if "skipped 1 step" not in line]
    (report,) = (tmp_path / "reports").iterdir()
    assert (json.loads(report.read_text())["converted"] > 0) is graphs
