"""The line at exit: what was converted, or why nothing was."""

import keras
import pytest

import _amp_tf_start
import amp_tf
from amp_tf.hooks import state as process_state
from amp_tf.hooks import summary
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport, Totals
from amp_tf.rewriting.pipeline import rewrite
from tests.as_cpu import onednn
from tests.hooks import running
from tests.reporting.reported_graphs import use_own_ledger
from tests.small_graphs import graph

of_this_cpu = pytest.mark.cpu_dependent

PRODUCT = "f = tf.function(lambda x: tf.nn.relu(x @ x) @ x); f(tf.ones((32, 32)))"
PLUGIN = "amp_tf.hooks.plugin"
XLA = "amp_tf.hooks.xla"
PROGRAMS = {
    "eager": (
        "tf.ones((32, 32)) @ tf.ones((32, 32))",
        {},
        "TensorFlow ran no graph of four nodes or more",
    ),
    "no op for 16 bit": (
        "tf.function(lambda x: tf.sin(tf.exp(x) + x) * x)(tf.ones((32, 32)))",
        {},
        "allow list",
    ),
    "kept for a need": (
        "tf.function(lambda x: tf.linalg.inv(x @ x + 40 * tf.eye(32)))(tf.ones((32, 32)))",
        {},
        Rule.DECOMPOSED.words.partition(":")[0],
    ),
    "excluded": (PRODUCT, {"AMP_TF_KEEP_FLOAT32": ".*"}, "keep_float32"),
}


@of_this_cpu
@pytest.mark.parametrize("case", PROGRAMS)
def test_nothing_converted_comes_with_the_reason(case, site_folder):
    code, variables, reason = PROGRAMS[case]
    ended = running.run(
        ["-c", f"import tensorflow as tf; {code}"],
        site_folder,
        {**running.switched_on(), **variables},
    )
    assert ended.converted == 0
    assert reason in ended.summary[6]
    assert ended.warnings == []


# oneDNN fuses a swish with a convolution, and of that node amp_tf does not know the parts. No CPU
# has a fused kernel in float16.
SWISH = """
def swish(x):
    biased = tf.nn.bias_add(tf.nn.conv2d(x, tf.ones((3, 3, 8, 8)) / 72, 1, "SAME"), tf.ones(8))
    return biased * tf.sigmoid(biased)
"""


@of_this_cpu
@pytest.mark.parametrize(
    ("result", "is_converted", "text"),
    [
        ("swish(x)", False, f"the commonest reason of one: {Rule.NO_FUSED_KERNEL.words}"),
        (
            "tf.reshape(swish(x), (64, 8)) @ tf.ones((8, 8))",
            True,
            f"; 1 fused op left in float32: {summary.FUSED}",
        ),
    ],
)
def test_fused_products_that_are_left_are_counted_with_the_reason(
    result, is_converted, text, site_folder
):
    code = (
        f"import tensorflow as tf{SWISH}tf.function(lambda x: "
        f"tf.exp({result}))(tf.random.normal((1, 8, 8, 8)))"
    )
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    if not onednn.is_on():
        variables["TF_ENABLE_ONEDNN_OPTS"] = "1"
    ended = running.run(
        ["-c", f"{code}; import amp_tf; print(amp_tf.report())"], site_folder, variables
    )
    assert (ended.converted > 0) is is_converted
    assert text in ended.summary[6]
    assert "1 node (1 _FusedConv2D)" in ended.out
    assert Rule.NO_FUSED_KERNEL.words in ended.out


NOTEBOOK = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
x = np.ones((8, 8), np.float32)
concrete = tf.function(lambda x: tf.nn.relu(x @ x)).get_concrete_function(tf.constant(x))
for cell in "before", "after":
    concrete(tf.constant(x))
    if cell == "after":
        print(amp_tf.report())
    model.fit(x, np.ones((8, 4), np.float32), verbose=0)
    if cell == "before":
        import amp_tf
        amp_tf.enable(precision="bfloat16")
print(amp_tf.report().converted)
"""


def test_what_ran_before_amp_tf_was_on_is_traced_anew_but_for_concrete_functions(site_folder):
    ended = running.run(["-c", NOTEBOOK], site_folder, {})
    before, *_, converted = ended.out.splitlines()
    assert before.startswith("nothing was converted: TensorFlow ran no new graph since amp_tf was ")
    assert "concrete functions" in before
    assert int(converted) > 0


def test_a_process_without_tensorflow_says_nothing(site_folder):
    ended = running.run(
        ["-c", "import amp_tf; amp_tf.enable()"], site_folder, running.switched_on()
    )
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_the_line_is_held_back_where_the_user_asked_for_errors_only(site_folder):
    code = "from absl import logging; logging.set_verbosity(logging.{}); import tensorflow"
    on = running.switched_on()
    assert "amp_tf" not in running.run(["-c", code.format("ERROR")], site_folder, on).err
    assert "amp_tf" in running.run(["-c", code.format("WARNING")], site_folder, on).err


@pytest.fixture
def nothing_seen(monkeypatch):
    """As in a process that has just begun."""
    monkeypatch.setattr(
        _amp_tf_start, "_follower", lambda name: None
    )  # other tests of this process may have one
    monkeypatch.setattr(process_state, "_runtime", process_state.Runtime())
    use_own_ledger(monkeypatch)
    # Functions of other tests may be alive.
    monkeypatch.setattr(process_state, "function_names", set)


@pytest.mark.usefixtures("nothing_seen")
def test_the_report_begins_with_the_line_at_exit_and_says_that_amp_tf_is_off(monkeypatch):
    off = "nothing was converted: amp_tf is off: "
    assert str(amp_tf.report()) == amp_tf.report().to_dict()["summary"] == summary.line()
    assert (
        str(amp_tf.report()) == f"{off}set {running.SWITCH}=1 or call amp_tf.enable() to turn it on"
    )
    monkeypatch.setenv(running.SWITCH, "1")
    assert str(amp_tf.report()).startswith(f"{off}this Python did not read amp_tf.pth")
    monkeypatch.setenv("AMP_TF_DISABLE", "1")
    assert str(amp_tf.report()) == f"{off}AMP_TF_DISABLE is set"
    monkeypatch.setenv("AMP_TF_DISABLE", "perhaps")
    assert (
        str(amp_tf.report())
        == f"{off}AMP_TF_DISABLE: 'perhaps' is not a valid value. Valid values: 1, true, 0, false"
    )


@pytest.mark.usefixtures("nothing_seen")
def test_the_report_tells_failures_hooks_that_are_missing_and_what_else_the_line_has():
    process_state.note(off="")
    for text in ("first.\nmore", "second"):
        process_state.count_failure(ValueError(text))
    process_state.note_install(XLA, "OSError: no")
    summary.add_part(lambda: "loss scale 32,768")
    assert str(amp_tf.report()) == (
        f"nothing was converted: {summary.ALL_FAILED}; 2 rewrites failed, and the graphs stayed "
        "in float32 "
        f"(ValueError: first.); not installed: {XLA} (OSError: no); loss scale 32,768"
    )


@pytest.mark.usefixtures("nothing_seen")
def test_graphs_that_were_seen_before_amp_tf_was_turned_off_keep_their_own_reason():
    seen = rewrite(graph("x = Placeholder()\ne = Exp(x)"), hardware=Hardware(cpu_has_bf16=True))
    reports.record(seen.report, way="grappler")
    process_state.note(off="amp_tf is off: amp_tf.disable() was called")
    assert summary.line() == (
        "1 graph, 0 of 2 nodes converted, 0 casts: the graph has no node that the allow list "
        "converts; by now amp_tf "
        "is off: amp_tf.disable() was called"
    )
    process_state.note(policy="mixed_bfloat16")
    process_state.note(off="")
    assert summary.line().endswith(
        ": Keras' own policy 'mixed_bfloat16' has its layers compute in 16 bit, and left nothing "
        "to convert"
    )


@pytest.mark.usefixtures("nothing_seen")
def test_where_no_device_is_converted_the_line_ends_with_the_command_that_looks_at_a_gpu():
    product = rewrite(graph("x = Placeholder()\nm = MatMul(x, x)"), hardware=Hardware()).report
    reports.record(product, way="grappler")
    process_state.note(off="")
    summary.add_part(lambda: "loss scale 32,768")
    assert summary.line().endswith(
        "TensorFlow sees no GPU); loss scale 32,768; to see its accuracy on a GPU: amp-tf compare "
        "--precision float16 "
        "--target gpu -- python train.py"
    )
    process_state.note(idle="another plugin is loaded")
    assert "amp-tf compare" not in summary.line()


@pytest.mark.parametrize(("code", "is_told"), [("", False), (f"{PRODUCT}; ", True)])
def test_after_a_traceback_of_the_program_the_line_comes_only_if_something_was_done(
    code, is_told, site_folder
):
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    ended = running.run(
        ["-c", f"import tensorflow as tf; {code}1 / 0"], site_folder, variables, status=1
    )
    assert ("amp_tf: " in ended.err) is is_told


TRACED = ("__inference_step_12",)


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize(
    ("graphs", "seen", "reason"),
    [
        ({}, {"off": "amp_tf is off"}, "amp_tf is off"),
        ({"grappler": 3}, {"idle": "another plugin is loaded"}, "another plugin is loaded"),
        ({"grappler": 2}, {"xla_graphs": 2}, summary.ONLY_XLA),
        ({}, {"failures": 2}, summary.ALL_FAILED),
        ({}, {}, summary.EAGER),
        ({}, {"traced": TRACED}, summary.TRACED_BEFORE.format(count=1, example="step")),
        ({"grappler": 1}, {"traced": TRACED}, "no graph has a matmul or convolution"),
        ({}, {"not_installed": {PLUGIN: "OSError: no"}}, summary.NO_PLUGIN),
        ({}, {"not_installed": {XLA: "OSError: no"}}, summary.EAGER),
    ],
)
def test_the_state_tells_why(graphs, seen, reason, monkeypatch):
    # Other tests may have run and traced such in this process.
    monkeypatch.setattr(summary, "_has_pipelines", lambda: False)
    monkeypatch.setattr(process_state, "traced_functions", list)
    state = process_state.Runtime(**seen)
    assert summary.why_nothing(RewriteReport(), Totals(graphs=graphs), state) == reason


@pytest.mark.usefixtures("nothing_seen")
def test_another_backend_of_keras_is_named(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    why = summary.why_nothing(RewriteReport(), Totals(), process_state.Runtime())
    assert why == "Keras runs on jax, and amp_tf converts nothing but TensorFlow's graphs"


@pytest.mark.parametrize(("home", "reason"), [(PLUGIN, f": {summary.NO_PLUGIN}"), (XLA, "")])
def test_a_hook_that_failed_to_install_is_named_with_its_error(home, reason, site_folder):
    broken = f"import {home} as hook; hook.install = None; import tensorflow as tf; {PRODUCT}"
    ended = running.run(
        ["-c", broken], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    )
    error = "TypeError: 'NoneType' object is not callable"
    assert ended.summary[6] == f"{reason}; not installed: {home} ({error})"
    assert (ended.converted > 0) is (home == XLA)
    (warning,) = ended.warnings
    assert f"a hook was not installed ({error})" in warning
