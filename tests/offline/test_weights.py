"""Weights of a converted SavedModel in 16 bit: which, what the model then answers, and what it says
when trained.
"""

import re
import shlex
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.cli.commands import parser
from amp_tf.cli.main import main
from amp_tf.graph import view
from amp_tf.offline.reading import Checkpoint, read_saved_model
from amp_tf.offline.saved_model import convert_saved_model, rewrite_saved_model
from amp_tf.offline.variables import search_variables
from amp_tf.reporting.weights import Kept

BFLOAT16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


def _random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("f")


def _convert(model, folder, config=BFLOAT16, **options):
    """The report of a model that is stored in 16 bit, and both converted models, the other with
    float32 weights.
    """
    tf.saved_model.save(model, str(folder / "f32"), **options)
    convert_saved_model(folder / "f32", folder / "converted", config)
    report = convert_saved_model(folder / "f32", folder / "stored", config, weights="f16")
    return report.weights, *(
        tf.saved_model.load(str(folder / name)) for name in ("converted", "stored")
    )


def _serve(folder, values):
    """Returns the answer of a folder's model."""
    model = tf.saved_model.load(str(folder))  # whose variables live as long as it does
    return tf.nest.map_structure(np.asarray, model.serve(tf.constant(values)))


def _kept(weights):
    return {variable.name: variable.kept for variable in weights.variables}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a Keras model in float32, converted, and stored in 16 bit; and the last one's
    report.
    """
    folder = tmp_path_factory.mktemp("keras")
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int32", name="ids")
    layers = keras.layers
    table = layers.Embedding(500, 16, name="embedding")
    x = layers.Dense(64, "relu", name="wide")(layers.Flatten()(table(ids)))
    x = layers.Dense(8, name="narrow")(layers.BatchNormalization(name="norm")(x))
    keras.Model(ids, x).export(str(folder / "f32"), verbose=False)
    convert_saved_model(folder / "f32", folder / "converted", BFLOAT16)
    return folder, convert_saved_model(folder / "f32", folder / "stored", BFLOAT16, weights="f16")


IDS = np.arange(12, dtype="i4").reshape(4, 3)


def _bytes_of(folder):
    return sum(file.stat().st_size for file in (folder / "variables").iterdir())


def test_a_keras_model_is_half_the_size_and_answers_as_it_did_with_float32_weights(exported):
    folder, report = exported
    # The rest are biases and normalization, and the index of the checkpoint.
    assert _bytes_of(folder / "stored") < 0.56 * _bytes_of(folder / "f32")
    stored = _serve(folder / "stored", IDS)
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, _serve(folder / "converted", IDS))
    assert (stored != _serve(folder / "f32", IDS)).any()
    before = tf.saved_model.load(str(folder / "f32"))
    after = tf.saved_model.load(str(folder / "stored"))
    values = {variable.name: variable.numpy() for variable in before.variables}
    for variable in after.variables:
        if "kernel" in variable.name or "embeddings" in variable.name:
            assert variable.dtype == tf.bfloat16
        # Rounded to nearest, or as it was.
        rounded = values[variable.name].astype(variable.numpy().dtype)
        np.testing.assert_array_equal(variable.numpy(), rounded)
    assert str(report.weights) in str(report)


def test_the_report_says_what_stays_in_float32_and_why(exported):
    _, report = exported
    text = str(report.weights)
    assert re.match(
        r"weights: .* variables stored in bfloat16, (\d\d\.\d) kB become (\d\d\.\d) kB\n"
        r"  .* kB\) in float32, such as '.* is read in float32 by '__inference___call__",
        text,
    )
    rows = report.to_dict()["weights"]
    assert [row["why"] == "" for row in rows] == [row["precision"] == "bfloat16" for row in rows]
    assert rows[0]["shape"] == [500, 16]


def test_who_trains_it_is_told_what_to_do(exported):
    model = tf.saved_model.load(str(exported[0] / "stored"))
    told = (
        "amp_tf stored these weights in bfloat16, for inference\\. To train, take the model that "
        "was converted"
    )
    with pytest.raises(LookupError, match=told), tf.GradientTape():
        model.serve(tf.constant(IDS))
    weight = tf.Variable(tf.ones((8, 1)))
    with tf.GradientTape() as tape:  # as the message says
        with tape.stop_recording():
            features = model.serve(tf.constant(IDS))
        loss = tf.reduce_sum(features @ weight)
    assert np.abs(tape.gradient(loss, weight)).max() > 0


def test_it_can_be_saved_loaded_and_converted_again(exported, tmp_path):
    folder, _ = exported
    model = tf.saved_model.load(str(folder / "stored"))
    tf.saved_model.save(model, str(tmp_path / "again"), signatures=dict(model.signatures))
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(again.serve(tf.constant(IDS)), model.serve(tf.constant(IDS)))
    report = convert_saved_model(folder / "stored", tmp_path / "twice", BFLOAT16, weights="f16")
    assert not report.converted
    assert not report.weights.stored


class Nested(tf.Module):
    """One weight in a call, a loop, a branch and a choice, others in one of them, and a table that
    is gathered from.
    """

    def __init__(self):
        self.shared = tf.Variable(0.3 * _random(8, 8), name="w")
        self.same = tf.Variable(0.3 * _random(8, 8), name="w")
        self.table = tf.Variable(_random(50, 8), name="table")

    @tf.function
    def called(self, x):
        return tf.nn.relu(tf.matmul(x, self.shared))

    @tf.function(input_signature=[tf.TensorSpec((4, 8)), tf.TensorSpec((4,), tf.int32)])
    def __call__(self, x, ids):
        y = self.called(x)
        for _ in tf.range(2):
            y = tf.tanh(tf.matmul(y, self.shared))
        if tf.reduce_sum(y) > 100.0:
            y = tf.matmul(y, self.shared)
        else:
            y = y + 1.0
            y = tf.matmul(y, self.same)
        z = tf.matmul(tf.nn.embedding_lookup(self.table, ids), self.shared)
        return tf.switch_case(tf.constant(1), [lambda: y, lambda: tf.matmul(y + z, self.shared)])


def test_weights_are_followed_through_calls_loops_branches_and_gathers(tmp_path):
    weights, converted, stored = _convert(Nested(), tmp_path)
    assert _kept(weights) == {"w": None, "table": None}
    assert len(weights.stored) == 3
    x = _random(4, 8)
    ids = np.arange(4, dtype="i4")
    np.testing.assert_array_equal(stored(x, ids), converted(x, ids))
    assert stored.table.dtype == tf.bfloat16


class Tied(tf.Module):
    """A weight, and something else that uses it."""

    def __init__(self):
        self.w = tf.Variable(_random(8, 8), name="w")
        self.idle = tf.Variable(_random(2), name="idle")

    @tf.function(input_signature=[tf.TensorSpec((None, 8))])
    def __call__(self, x):
        return tf.matmul(x, self.w)


def _product_of_each(w):
    return (
        tf.data.Dataset.range(3)
        .map(lambda i: tf.cast(i, tf.float32) * w)
        .reduce(0.0, lambda a, b: a + b)
    )


v1 = tf.compat.v1


def _answer_of_v1(folder, tag):
    """Loads a model of TensorFlow 1, runs it, and then its initializers, whose values are cast."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.saved_model.load(session, [tag], str(folder))
        answer = session.run("y:0", {"x:0": _random(8, 8)})
        session.run(v1.global_variables_initializer())
        return answer


def _check_v1(folder, kept, use, *, is_resource=True):
    """Saves what uses a weight in TensorFlow 1, converts it, and checks why the weight stays."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        w = v1.get_variable("w", (8, 8), use_resource=is_resource)
        y = tf.identity(use(w, x), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "f32"), {"x": x}, {"y": y})
    convert_saved_model(folder / "f32", folder / "converted", BFLOAT16)
    report = convert_saved_model(folder / "f32", folder / "stored", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept}
    expected = _answer_of_v1(folder / "converted", "serve")
    np.testing.assert_array_equal(_answer_of_v1(folder / "stored", "serve"), expected)


def _product(w, x):
    return tf.matmul(x, w)


def _exponential(w, x):
    return x * tf.reduce_sum(tf.exp(w))


def _whole(w, x):
    return w.read_value()


def _written(w, x):
    w.assign_add(tf.matmul(x, x, transpose_a=True))
    return x


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        (_product, None),
        (_exponential, Kept.READ),
        (_whole, Kept.READ),
        (_written, Kept.WRITTEN),
        (lambda w, x: _product_of_each(w), Kept.HANDED_ON),
    ],
)
def test_what_else_uses_a_weight_keeps_it_in_float32(use, kept, tmp_path):
    model = Tied()
    model.other = tf.function(lambda x: use(model.w, x), input_signature=[tf.TensorSpec((None, 8))])
    tf.saved_model.save(model, str(tmp_path / "f32"))
    _, report = rewrite_saved_model(tmp_path / "f32", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept, "idle": Kept.UNREAD}


@pytest.mark.parametrize(("is_resource", "kept"), [(True, None), (False, Kept.REFERENCE)])
def test_a_model_of_tensorflow_1_is_stored_if_its_variables_are_resources(
    is_resource, kept, tmp_path
):
    _check_v1(tmp_path, kept, lambda w, x: tf.exp(tf.matmul(x, w)), is_resource=is_resource)


def _steps_of_search(count, folder):
    """Counts the steps of Python in the view while the variables of a model are searched."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        y = x = v1.placeholder(tf.float32, (4, 4))
        for number in range(count):
            y = tf.matmul(y, v1.get_variable(f"w{number}", (4, 4), use_resource=True))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / f"{count}"), {"x": x}, {"y": y})
    model = read_saved_model(folder / f"{count}")
    checkpoint = Checkpoint(folder / f"{count}")
    steps = 0

    def count_steps(frame, event, _):
        nonlocal steps
        if frame.f_code.co_filename != view.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count_steps

    before = sys.gettrace()
    sys.settrace(count_steps)
    try:
        search_variables(model, checkpoint, [frozenset()])
    finally:
        sys.settrace(before)
    return steps


def test_the_search_for_variables_takes_as_many_steps_for_each_however_many_there_are(tmp_path):
    few = _steps_of_search(25, tmp_path)
    assert _steps_of_search(200, tmp_path) < 10 * few  # 36 times with a pass over all for each


@pytest.mark.parametrize("on", [_product, _exponential])
@pytest.mark.parametrize("off", [_product, _exponential])
def test_both_branches_of_a_condition_of_tensorflow_1_read_a_weight_that_was_read_before(
    off, on, tmp_path
):
    def choose(w, x):
        is_on = v1.placeholder_with_default(True, (), name="is_on")
        value_off, value_on = tf.raw_ops.Switch(data=w.read_value(), pred=is_on)
        return tf.raw_ops.Merge(inputs=[off(value_off, x), on(value_on, x)])[0]

    _check_v1(tmp_path, None if off is on is _product else Kept.READ, choose)


@pytest.mark.parametrize(("use", "kept"), [(tf.matmul, None), (tf.add, Kept.READ)])
def test_all_graphs_of_a_model_count(use, kept, tmp_path):
    """Two MetaGraphs share the variables."""
    builder = v1.saved_model.Builder(str(tmp_path / "f32"))
    for tag, function in (("train", use), ("serve", tf.matmul)):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", (8, 8), use_resource=True)
            tf.exp(function(v1.placeholder(tf.float32, (None, 8), name="x"), w), name="y")
            session.run(v1.global_variables_initializer())
            if tag == "train":
                builder.add_meta_graph_and_variables(session, [tag])
            else:
                builder.add_meta_graph([tag])
    builder.save()
    report = convert_saved_model(tmp_path / "f32", tmp_path / "stored", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept}
    for tag in ("train", "serve"):
        _answer_of_v1(tmp_path / "stored", tag)


def test_a_damaged_checkpoint_is_named(exported, tmp_path):
    shutil.copytree(exported[0] / "f32", tmp_path / "model")
    folder = tmp_path / "model" / "variables"
    for name, what in (("variables.data-00000-of-00001", b""), ("variables.index", b"no table")):
        (folder / name).write_bytes(what)
        with pytest.raises(
            amp_tf.FileError, match=rf"{folder}/variables: the checkpoint cannot be read \("
        ):
            convert_saved_model(tmp_path / "model", tmp_path / "out", BFLOAT16, weights="f16")
    assert not (tmp_path / "out").exists()


def test_tf_keras_hands_the_weights_of_an_lstm_to_a_loop_by_value(tmp_path):
    tf_keras = pytest.importorskip("tf_keras")
    keras.utils.set_random_seed(1)
    model = tf_keras.Sequential(
        [tf_keras.Input((5, 8)), tf_keras.layers.LSTM(16), tf_keras.layers.Dense(4)]
    )
    model.save(str(tmp_path / "f32"), save_format="tf")
    _, report = rewrite_saved_model(tmp_path / "f32", BFLOAT16, weights="f16")
    kept = _kept(report.weights)
    assert kept["lstm/lstm_cell/kernel"] is kept["lstm/lstm_cell/recurrent_kernel"] is None


FLOAT16 = amp_tf.AmpConfig(precision="float16", target="gpu")


class Wide(tf.Module):
    """Products with weights of which one, or a bias, has a value that float16 has not."""

    def __init__(self):
        self.small = tf.Variable(_random(8, 8), name="small")
        self.large = tf.Variable(_random(8, 8), name="large")
        self.large[0, 0].assign(1e5)
        self.last = tf.Variable(_random(8, 8), name="last")
        self.bias = tf.Variable(_random(8), name="bias")
        self.bias[1].assign(-1e6)

    @tf.function
    def inner(self, x):
        return tf.matmul(x, self.large)

    @tf.function(input_signature=[tf.TensorSpec((None, 8))])
    def serve(self, x):
        x = tf.tanh(tf.matmul(x, self.small))
        x = tf.tanh(self.inner(x) + self.bias)
        return {"y": tf.matmul(x, self.last)}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    model = Wide()
    return folder, _convert(model, folder, FLOAT16, signatures=model.serve)


def test_what_reads_a_weight_that_16_bit_makes_infinite_stays_in_float32(wide, capsys):
    folder, (weights, *copies) = wide
    assert _kept(weights) == {"small": None, "large": Kept.RANGE, "last": None, "bias": Kept.RANGE}
    assert "such as 'large': holds values that 16 bit makes infinite" in str(weights)
    x = _random(4, 8)
    expected = _serve(folder / "f32", x)["y"]
    for copy in copies:
        # Two products of 8 terms.
        np.testing.assert_allclose(copy.serve(x)["y"], expected, rtol=0, atol=2e-2)
    stored = copies[1]
    assert {stored.small.dtype, stored.last.dtype} == {tf.float16}
    assert {stored.large.dtype, stored.bias.dtype} == {tf.float32}
    options = ["--precision", "float16", "--target", "gpu"]
    assert main(["explain", str(folder / "f32"), "--all", "--op", "MatMul", *options]) == 0
    told = capsys.readouterr().out
    assert "\tit uses a constant or weight that 16 bit would make infinite, zero or one: " in told


def test_a_weight_beyond_float16_is_no_matter_to_bfloat16(tmp_path):
    assert _kept(_convert(Wide(), tmp_path)[0])["large"] is None


@pytest.mark.parametrize("is_option", [True, False])
def test_a_check_says_which_values_became_infinite_and_how_to_compare_under_the_same_settings(
    tmp_path, capsys, monkeypatch, is_option
):
    tf.saved_model.save(Tied(), str(tmp_path / "my f32"))
    source, copy, inputs = (str(tmp_path / name) for name in ("my f32", "out", "inputs.npz"))
    np.savez(inputs, x=np.full((4, 8), 1e5, "f"))
    options = ["--target", "gpu", "--keep-float32", "^none$|^nobody$"]
    if is_option:
        options += ["--precision", "float16"]
    else:
        monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    command = ["rewrite", source, copy, *options, "--weights", "f16", "--check", inputs]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert (
        f"{copy}: it is written, and 32 of 32 values of output_0 are inf or nan, which they were "
        "not. What to" in err
    )
    advice = shlex.split(err.strip().removesuffix(".").partition("float32: ")[2])
    assert advice[:5] == ["amp-tf", "compare", source, "--inputs", inputs]
    given = parser().parse_args(advice[1:])
    assert (given.target, given.keep_float32) == ("gpu", ["^none$|^nobody$"])
    assert given.precision == ("float16" if is_option else None)


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_killed_midway_leaves_nothing_that_a_loader_takes_for_a_model(
    exported, tmp_path, monkeypatch, is_there
):
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    original = Checkpoint.write

    def write(*args):
        original(*args)
        assert out.exists() is is_there
        assert list(tmp_path.rglob("saved_model.pb")) == []

    monkeypatch.setattr(Checkpoint, "write", write)
    convert_saved_model(exported[0] / "f32", out, BFLOAT16, weights="f16")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert _serve(out, IDS).shape == (4, 8)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"x": IDS}, "expected the arrays ids, got x"),
        ({"ids": IDS[:, :2]}, "the array ids has the shape [4, 2], and the model takes [None, 3]"),
        ({"ids": IDS + 1_000_000}, "the model does not take its arrays ("),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_inputs_for_the_check_are_looked_at_before_anything_is_written(
    exported, tmp_path, capsys, arrays, what
):
    inputs = tmp_path / "inputs.npz"
    if arrays:
        np.savez(inputs, **arrays)
    command = ["rewrite", str(exported[0] / "f32"), str(tmp_path / "out")]
    assert main([*command, "--precision", "bfloat16", "--check", str(inputs)]) == 1
    told = capsys.readouterr()
    assert f"amp-tf rewrite: {inputs}: {what}" in told.err
    assert told.err.count("\n") == 1
    assert not told.out
    assert not (tmp_path / "out").exists()


def test_wrong_weights_are_refused(tmp_path):
    with pytest.raises(
        amp_tf.ConfigError, match=r"^convert_saved_model\(weights\): 'half' is not a valid value"
    ):
        convert_saved_model(tmp_path, tmp_path / "out", weights="half")


def test_the_command_replaces_a_model_stores_its_weights_and_checks_it_against_what_it_was(
    exported, tmp_path, capsys
):
    original = exported[0] / "f32"
    model = tmp_path / "model"
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, ids=IDS)
    shutil.copytree(original, model)
    (model / "variables" / "note.txt").write_text("kept")
    options = ["--precision", "bfloat16", "--target", "cpu", "--weights", "f16"]
    command = ["rewrite", str(model), str(model), "--force", "--check", str(inputs)]
    assert main([*command, *options]) == 0
    out, err = capsys.readouterr()
    assert err.endswith(f"{model} is written.\n")
    names = sorted(file.name for file in (model / "variables").iterdir())
    assert names == ["note.txt", "variables.data-00000-of-00001", "variables.index"]
    stored = _serve(model, IDS)
    np.testing.assert_array_equal(stored, _serve(exported[0] / "stored", IDS))
    expected = _serve(original, IDS)
    off = np.abs(expected - stored).max()
    *_, title, line = out.splitlines()
    assert title == "check:"
    share = off / np.abs(expected).max()
    assert line.startswith(
        f"  output_0: error at most {off:.3g}, {100 * share:.2f} % of the largest value"
    )
    assert line.endswith(" on average")
