"""Weights of a converted SavedModel in 16 bit: which, what the model then answers, and what it says
when trained.
"""

import re
import shlex
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.cli.commands import parser
from amp_tf.cli.main import main
from amp_tf.offline.reading import Checkpoint
from amp_tf.offline.saved_model import convert_saved_model, rewrite_saved_model
from amp_tf.reporting.weights import Kept
from tests.offline.stored import BFLOAT16, Tied, convert, random_values, reasons_kept, serve


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
    stored = serve(folder / "stored", IDS)
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, serve(folder / "converted", IDS))
    assert (stored != serve(folder / "f32", IDS)).any()
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
    kept = reasons_kept(report.weights)
    assert kept["lstm/lstm_cell/kernel"] is kept["lstm/lstm_cell/recurrent_kernel"] is None


FLOAT16 = amp_tf.AmpConfig(precision="float16", target="gpu")


class Wide(tf.Module):
    """Products with weights of which one, or a bias, has a value that float16 has not."""

    def __init__(self):
        self.small = tf.Variable(random_values(8, 8), name="small")
        self.large = tf.Variable(random_values(8, 8), name="large")
        self.large[0, 0].assign(1e5)
        self.last = tf.Variable(random_values(8, 8), name="last")
        self.bias = tf.Variable(random_values(8), name="bias")
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
    return folder, convert(model, folder, FLOAT16, signatures=model.serve)


def test_what_reads_a_weight_that_16_bit_makes_infinite_stays_in_float32(wide, capsys):
    folder, (weights, *copies) = wide
    assert reasons_kept(weights) == {
        "small": None,
        "large": Kept.RANGE,
        "last": None,
        "bias": Kept.RANGE,
    }
    assert "such as 'large': holds values that 16 bit makes infinite" in str(weights)
    x = random_values(4, 8)
    expected = serve(folder / "f32", x)["y"]
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
    assert reasons_kept(convert(Wide(), tmp_path)[0])["large"] is None


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
    assert serve(out, IDS).shape == (4, 8)


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
    stored = serve(model, IDS)
    np.testing.assert_array_equal(stored, serve(exported[0] / "stored", IDS))
    expected = serve(original, IDS)
    off = np.abs(expected - stored).max()
    *_, title, line = out.splitlines()
    assert title == "check:"
    share = off / np.abs(expected).max()
    assert line.startswith(
        f"  output_0: error at most {off:.3g}, {100 * share:.2f} % of the largest value"
    )
    assert line.endswith(" on average")
