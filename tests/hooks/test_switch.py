from __future__ import annotations

import importlib
import inspect

import pytest

from amp_tf import config
from amp_tf.hooks import state as process_state
from amp_tf.hooks import switch, workers
from amp_tf.hooks.patches import Patches
from tests.hooks import running


def test_enable_raises_on_a_bad_value(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "float8")
    with pytest.raises(config.ConfigError, match="AMP_TF_PRECISION: 'float8' is not a valid value"):
        switch.enable()
    assert not switch.is_enabled()


@pytest.fixture
def off_afterwards():
    yield
    switch.disable()


# One patches nothing, and all patches of the other stay.
OTHERS = ("amp_tf.hooks.report_files", "amp_tf.hooks.input_pipelines")


@pytest.mark.parametrize("home", [hook.home for hook in switch.HOOKS if hook.home not in OTHERS])
def test_a_hook_patches_once_and_puts_everything_back(home, monkeypatch):
    """All libraries are patched here, and test_patches.py shows what happens where others patch the
    same.
    """
    for library in ("tensorflow", "keras", "tf_keras"):
        importlib.import_module(library)
    put = Patches.put
    before = {}
    below = []  # patches that are on again, below one that stays

    def recording(self, owner, name, *ours):
        was = inspect.getattr_static(owner, name, None)
        is_new = put(self, owner, name, *ours)
        # Rewritten functions are given in their original form even once amp_tf is off.
        if is_new and self is process_state.patches(home):
            if inspect.getattr_static(owner, name) is was:
                below.append(name)
            else:
                before[owner, name] = was
        return is_new

    def now():
        return {(owner, name): inspect.getattr_static(owner, name, None) for owner, name in before}

    monkeypatch.setattr(Patches, "put", recording)
    settings = config.AmpConfig(precision="float16", allreduce="float16")
    process_state.note(config=settings, switches=switch.EVERYTHING)
    switch.uninstall(home)  # amp_tf.scope, once called, leaves its own in place
    switch.install(home)
    try:
        first = now()
        assert first or below
        assert all(first[key] is not was for key, was in before.items())
        switch.install(home)
        assert now() == first
    finally:
        switch.uninstall(home)
        switch.uninstall(home)
        process_state.note(switches=config.Switches())
    assert now() == before


@pytest.mark.usefixtures("off_afterwards")
def test_a_handle_says_what_it_turned_on_and_whether_it_is_on():
    first = switch.enable(precision="bfloat16", keep_float32=["loss"])
    settings = "precision='bfloat16', keep_float32=('loss',)"
    assert repr(first) == f"<amp_tf.Handle({settings}), on>"
    second = switch.enable(precision="fp16")
    assert (repr(first), repr(second)) == (
        f"<amp_tf.Handle({settings}), under later settings>",
        "<amp_tf.Handle(precision='float16'), on>",
    )
    second.uninstall()
    assert (repr(first)[-4:], repr(second)[-5:]) == (" on>", " off>")


@pytest.mark.parametrize(
    "wrong", ["bfloat16", {"precision": "bfloat16"}, 1, config.Switches(), False], ids=repr
)
def test_what_is_no_configuration_is_refused(wrong):
    with pytest.raises(config.ConfigError) as caught:
        switch.enable(wrong)
    assert str(caught.value) == (
        f"amp_tf.enable(config): expected an AmpConfig, got {wrong!r}. Write "
        'amp_tf.enable(precision="bfloat16"), or '
        'amp_tf.enable(amp_tf.AmpConfig(precision="bfloat16")).'
    )
    assert not switch.is_enabled()


@pytest.mark.usefixtures("off_afterwards")
def test_settings_change_what_the_environment_or_a_configuration_says(monkeypatch):
    monkeypatch.setenv("AMP_TF_KEEP_FLOAT32", "logits")
    handle = switch.enable(precision="bfloat16", deny_add=["Relu"])
    assert handle.config == config.AmpConfig(
        precision="bfloat16", deny_add=("Relu",), keep_float32=("logits",)
    )
    given = config.AmpConfig(target="gpu")
    assert switch.enable(given, precision="float16").config == config.AmpConfig(
        target="gpu", precision="float16"
    )
    assert switch.enable(given).config is given
    with pytest.raises(
        config.ConfigError,
        match=r"^amp_tf\.enable: there is no setting 'precison'\. Did you mean '",
    ):
        switch.enable(precison="bfloat16")
    with pytest.raises(
        config.ConfigError, match=r"^AmpConfig\.precision: 'half' is not a valid value"
    ):
        switch.enable(precision="half")


def what_is_on():
    return switch._active().config.precision if switch._active() else None


@pytest.mark.usefixtures("off_afterwards")
def test_a_handle_restores_what_was_on_before():
    with switch.enable(precision="bfloat16"):
        with switch.enable(precision="float16") as inner:
            assert what_is_on() == "float16"
        assert what_is_on() == "bfloat16"
        inner.uninstall()
        assert what_is_on() == "bfloat16"
    assert what_is_on() is None
    first, second, third = (
        switch.enable(precision=name) for name in ("float16", "auto", "bfloat16")
    )
    second.uninstall()
    assert what_is_on() == "bfloat16"
    third.uninstall()
    assert what_is_on() == "float16"
    switch.enable(precision="bfloat16")
    switch.disable()
    first.uninstall()
    assert what_is_on() is None


@pytest.mark.usefixtures("off_afterwards")
@pytest.mark.parametrize("was_on", [False, True])
def test_an_interrupt_while_it_is_turned_on_leaves_what_was_before(was_on, monkeypatch):
    """Ctrl-C comes between two hooks, as in a notebook, which goes on."""
    importlib.import_module("tensorflow")
    switch.disable()
    before = config.Switches()
    if was_on:
        below = switch.enable(precision="bfloat16")
        before = process_state.current().switches

    def interrupted(patches):
        if process_state.settings().precision == "float16":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(workers, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            switch.enable(precision="float16")
    state = process_state.current()
    assert switch.is_enabled() is was_on
    assert state.switches == before
    assert bool(process_state.patches("amp_tf.hooks.xla")) is was_on
    assert state.off == ("" if was_on else switch.BY_INTERRUPT)
    if was_on:
        assert state.stack == [below]
        assert process_state.settings().precision == "bfloat16"


@pytest.mark.usefixtures("off_afterwards")
def test_a_handle_restores_what_the_environment_says_by_then(monkeypatch):
    monkeypatch.setenv(config.ENABLE_VAR, "1")
    switch.obey_environment()
    with switch.enable(precision="float16"):
        assert what_is_on() == "float16"
    assert what_is_on() == "auto"
    with switch.enable(precision="float16"):
        monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert what_is_on() == "bfloat16"
    with switch.enable(precision="float16"):
        monkeypatch.setenv(config.ENABLE_VAR, "0")
        switch.obey_environment(config.ENABLE_VAR)
        assert what_is_on() == "float16"
    assert what_is_on() is None


@pytest.mark.usefixtures("off_afterwards")
@pytest.mark.parametrize("changed", [None, config.ENABLE_VAR], ids=["TensorFlow", "variable"])
def test_the_environment_stands_below_settings_that_came_before_it(changed, monkeypatch):
    handle = switch.enable(precision="float16")
    switch.obey_environment(changed)
    assert [*process_state.current().stack] == [handle]
    monkeypatch.setenv(config.ENABLE_VAR, "1")
    switch.obey_environment(changed)
    assert what_is_on() == "float16"
    handle.uninstall()
    assert what_is_on() == "auto"
    switch.disable()
    with switch.enable(precision="float16"):
        monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
        switch.obey_environment("AMP_TF_PRECISION")
    assert what_is_on() is None


@pytest.mark.usefixtures("off_afterwards")
def test_the_summary_says_why_amp_tf_is_off_and_takes_it_back():
    handle = switch.enable(precision="bfloat16")
    assert process_state.current().off == ""
    handle.uninstall()
    assert process_state.current().off == switch.BY_HANDLE
    switch.enable(precision="bfloat16")
    switch.disable()
    assert process_state.current().off == switch.BY_CALL


ON = {config.ENABLE_VAR: "1"}
WITHOUT_REWRITE = {config.GRAPH_REWRITE_VAR: "0"}
SCALED_ALONE = "the graph rewrite is off ({}): only losses are scaled"


@pytest.mark.usefixtures("off_afterwards")
@pytest.mark.parametrize(
    ("variables", "changed", "off"),
    [
        (
            ON | WITHOUT_REWRITE,
            config.ENABLE_VAR,
            SCALED_ALONE.format(f"{config.GRAPH_REWRITE_VAR} is 0"),
        ),
        (
            {config.LOSS_SCALING_VAR: "1"},
            config.GRAPH_REWRITE_VAR,
            SCALED_ALONE.format(f"{config.ENABLE_VAR} is not set"),
        ),
        (
            WITHOUT_REWRITE | {config.LOSS_SCALING_VAR: "0"},
            config.GRAPH_REWRITE_VAR,
            f"amp_tf is off: the program itself set {config.GRAPH_REWRITE_VAR}=0; ",
        ),
        (
            ON | {"AMP_TF_PRECISION": "half"},
            config.ENABLE_VAR,
            "amp_tf is off: AMP_TF_PRECISION is not valid, as a warning said",
        ),
        (ON | {config.DISABLE_VAR: "1"}, config.DISABLE_VAR, switch.BY_VARIABLE),
    ],
)
def test_it_says_what_of_the_environment_turned_it_off(variables, changed, off, monkeypatch):
    monkeypatch.setenv(config.ENABLE_VAR, "1")
    switch.obey_environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if config.ENABLE_VAR not in variables:  # last: each change may be obeyed at once
        monkeypatch.delenv(config.ENABLE_VAR)
    switch.obey_environment(changed)
    assert str(process_state.current().off).startswith(off)


@pytest.mark.usefixtures("off_afterwards")
@pytest.mark.parametrize("by_call", [True, False])
def test_a_misspelt_variable_is_told_once(by_call, monkeypatch, caplog):
    monkeypatch.setenv("AMP_TF_PRECISON", "bfloat16")
    monkeypatch.setenv("AMP_TF_QQQQQQQQQQQQQQQQQ", "1")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LVEL", "DEFAULT")
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE", "1")  # not ours
    monkeypatch.setenv("AMP_TF_BANNER", "0")  # the container's
    monkeypatch.setenv(
        config.ENABLE_VAR, "1"
    )  # last: it is obeyed at once where TensorFlow is there
    for _ in range(2):
        switch.enable() if by_call else switch.obey_environment()
    assert [record.getMessage() for record in caplog.records] == [
        "amp_tf: AMP_TF_PRECISON: this is not a variable of amp_tf. Write AMP_TF_PRECISION, if "
        "that is meant.",
        "amp_tf: AMP_TF_QQQQQQQQQQQQQQQQQ: this is not a variable of amp_tf. docs/variables.md "
        "lists the variables.",
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LVEL: this is not a variable of amp_tf. "
        "Write "
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL, if that is meant.",
    ]


@pytest.mark.cpu_dependent
def test_on_and_off_before_and_after_tensorflow_is_imported(site_folder):
    """One process: each step runs a new function and says whether it was computed in bfloat16."""
    code = """
import numpy as np
import amp_tf
config = amp_tf.AmpConfig(precision="bfloat16")
before = amp_tf.enable(config)
assert amp_tf.is_enabled()
import tensorflow as tf
x = np.random.default_rng(1).normal(size=(32, 32)).astype("float32")
exact = np.maximum(x.astype("float64") @ x, 0) @ x
def is_converted():
    got = tf.function(lambda x: tf.nn.relu(x @ x) @ x)(tf.constant(x)).numpy()
    return bool(np.abs(got - exact).max() / np.abs(exact).max() > 1e-4)
assert is_converted(), "enabled before the import"
kept = tf.function(lambda x: tf.nn.relu(x @ x) @ x)
first = kept(tf.constant(x)).numpy()
concrete = kept.get_concrete_function(tf.constant(x))
before.uninstall()
before.uninstall()
assert not is_converted() and not amp_tf.is_enabled(), "uninstalled"
assert (concrete(tf.constant(x)).numpy() == first).all(), "what ran already"
alone = kept(tf.constant(x)).numpy()
assert np.abs(alone - exact).max() < 1e-4 * np.abs(exact).max(), "traced anew without it"
older, newer = amp_tf.enable(config), amp_tf.enable(config)
older.uninstall()
assert is_converted() and amp_tf.is_enabled(), "the older handle does not count"
newer.uninstall()
with amp_tf.enable(config) as handle:
    assert is_converted() and handle.config is config, "in a with block"
    assert (kept(tf.constant(x)).numpy() == first).all(), "its trace with amp_tf"
assert not is_converted(), "after the block"
traced = lambda: kept.experimental_get_tracing_count()
with amp_tf.enable(precision="bfloat16"):
    count = traced()
    assert (kept(tf.constant(x)).numpy() == first).all() and traced() == count, "equal settings"
    with amp_tf.enable(precision="bfloat16", keep_float32=["."]):
        alone = kept(tf.constant(x)).numpy()
        assert np.abs(alone - exact).max() < 1e-4 * np.abs(exact).max(), "under other settings"
    assert (kept(tf.constant(x)).numpy() == first).all() and traced() == count + 1, "as before"
amp_tf.disable()
"""
    ended = running.run(["-c", code], site_folder, {})
    assert ended.converted > 0  # the line at exit comes, though amp_tf is off by then
