"""Weights of a converted SavedModel in 16 bit: which, what the model then answers, and what it says
when trained.
"""

import io
import json
import re
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.python.tools import saved_model_cli

import amp_tf
from amp_tf.cli.main import main
from amp_tf.offline.reading import Checkpoint
from amp_tf.offline.saved_model import convert_saved_model, rewrite_saved_model
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
    return model.serve(tf.constant(values)).numpy()


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


def test_a_keras_model_is_half_the_size_and_answers_as_it_did_with_float32_weights(exported):
    folder, report = exported
    sizes = [
        sum(file.stat().st_size for file in (folder / name / "variables").iterdir())
        for name in ("f32", "stored")
    ]
    # The rest are biases and normalization, and the index of the checkpoint.
    assert sizes[1] < 0.56 * sizes[0]
    models = [tf.saved_model.load(str(folder / name)) for name in ("f32", "converted", "stored")]
    signatures = [model.signatures["serving_default"] for model in models]
    original, converted, stored = (
        signature(tf.constant(IDS))["output_0"].numpy() for signature in signatures
    )
    assert (converted != original).any()
    np.testing.assert_array_equal(stored, converted)
    assert stored.dtype == np.float32
    assert signatures[2].structured_input_signature == signatures[0].structured_input_signature
    assert {
        v.name: v.dtype.name
        for v in models[2].variables
        if "bias" not in v.name and "norm" not in v.name
    } == {
        "embedding/embeddings:0": "bfloat16",
        "wide/kernel:0": "bfloat16",
        "narrow/kernel:0": "bfloat16",
    }
    values = dict(zip([v.name for v in models[0].variables], models[0].variables, strict=True))
    for variable in models[2].variables:  # rounded to nearest, or as they were
        np.testing.assert_array_equal(
            variable.numpy(), values[variable.name].numpy().astype(variable.numpy().dtype)
        )
    assert report.weights.stored
    assert str(report).splitlines()[-2:] == str(report.weights).splitlines()[-2:]


def test_the_report_says_what_stays_in_float32_and_why(exported):
    _, report = exported
    first, *rest = str(report.weights).splitlines()
    assert first.startswith("weights: ")
    assert "variables stored in bfloat16, 0.1 MB become 0.0" in first
    (line,) = (line for line in rest if "is read in float32 by" in line)
    assert line.startswith("  ")
    assert " MB) in float32, such as '" in line
    assert line.partition(" is read in float32 by ")[2].startswith("'__inference___call__")
    rows = report.to_dict()["weights"]
    assert [row["why"] == "" for row in rows] == [row["precision"] == "bfloat16" for row in rows]
    assert rows[0]["shape"] == [500, 16]


def test_tensorflows_loader_in_cpp_runs_it(exported, tmp_path):
    folder, _ = exported
    saved_model_cli.run_saved_model_with_feed_dict(
        str(folder / "stored"),
        "serve",
        "serving_default",
        {"ids": IDS},
        str(tmp_path),
        overwrite_flag=False,
    )
    np.testing.assert_array_equal(
        np.load(tmp_path / "output_0.npy"), _serve(folder / "stored", IDS)
    )


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


def test_a_copy_in_place_leaves_nothing_of_the_old_checkpoint(exported, tmp_path):
    folder, _ = exported
    shutil.copytree(folder / "f32", tmp_path / "model")
    (tmp_path / "model" / "variables" / "note.txt").write_text("kept")
    convert_saved_model(
        tmp_path / "model", tmp_path / "model", BFLOAT16, weights="f16", replace=True
    )
    names = sorted(file.name for file in (tmp_path / "model" / "variables").iterdir())
    assert names == ["note.txt", "variables.data-00000-of-00001", "variables.index"]
    np.testing.assert_array_equal(_serve(tmp_path / "model", IDS), _serve(folder / "stored", IDS))


class Nested(tf.Module):
    """One weight in a call, a loop, a branch and a choice, others in one of them, and a table that
    is gathered from.
    """

    def __init__(self):
        self.shared, self.same = (
            tf.Variable(0.3 * _random(8, 8), name=name) for name in ("w", "w")
        )
        self.table = tf.Variable(_random(50, 8), name="table")

    @tf.function
    def called(self, x):
        return tf.nn.relu(tf.matmul(x, self.shared))

    @tf.function(input_signature=[tf.TensorSpec((4, 8)), tf.TensorSpec((4,), tf.int32)])
    def __call__(self, x, ids):
        y = self.called(x)
        for _ in tf.range(2):
            y = tf.tanh(tf.matmul(y, self.shared))
        y = tf.matmul(y, self.shared) if tf.reduce_sum(y) > 100.0 else tf.matmul(y + 1.0, self.same)
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


@pytest.mark.parametrize(
    ("use", "shapes", "kept"),
    [
        (lambda w, x: tf.matmul(x, w), [(None, 8)], None),
        (lambda w, x: x * tf.reduce_sum(tf.exp(w)), [(None, 8)], Kept.READ),
        (lambda w: w.read_value(), [], Kept.READ),
        (lambda w, value: (w.assign(value), value)[1], [(8, 8)], Kept.WRITTEN),
        (lambda w, value: (w.assign_add(value), value)[1], [(8, 8)], Kept.WRITTEN),
        (_product_of_each, [], Kept.HANDED_ON),
    ],
)
def test_what_else_uses_a_weight_keeps_it_in_float32(use, shapes, kept, tmp_path):
    model = Tied()
    model.other = tf.function(
        lambda *given: use(model.w, *given), input_signature=list(map(tf.TensorSpec, shapes))
    )
    tf.saved_model.save(model, str(tmp_path / "f32"))
    _, report = rewrite_saved_model(tmp_path / "f32", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept, "idle": Kept.UNREAD}


class Saving(Tied):
    """Writes checkpoints as TensorFlow did before 2.13: a function gets the values."""

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)])
    def other(self, path):
        @tf.function
        def write(path, value):
            saved = tf.raw_ops.SaveV2(
                prefix=path, tensor_names=["w"], shape_and_slices=[""], tensors=[value]
            )
            with tf.control_dependencies([saved]):
                return tf.identity(path)

        return write(path, tf.identity(self.w))


def test_a_function_that_saves_a_weight_gets_it_in_16_bit(tmp_path):
    weights, _, stored = _convert(Saving(), tmp_path)
    assert _kept(weights)["w"] is None
    stored.other(str(tmp_path / "checkpoint"))
    assert dict(
        tf.train.load_checkpoint(str(tmp_path / "checkpoint")).get_variable_to_dtype_map()
    ) == {"w": tf.bfloat16}


@pytest.mark.parametrize(("is_resource", "kept"), [(True, None), (False, Kept.REFERENCE)])
def test_a_model_of_tensorflow_1_is_stored_if_its_variables_are_resources(
    is_resource, kept, tmp_path
):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        y = tf.exp(tf.matmul(x, v1.get_variable("w", (8, 8), use_resource=is_resource)), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "f32"), {"x": x}, {"y": y})
    convert_saved_model(tmp_path / "f32", tmp_path / "converted", BFLOAT16)
    report = convert_saved_model(tmp_path / "f32", tmp_path / "stored", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept}
    answers = []
    for name in ("converted", "stored"):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.saved_model.load(session, ["serve"], str(tmp_path / name))
            answers.append(session.run("y:0", {"x:0": _random(2, 8)}))
            session.run(v1.global_variables_initializer())  # whose values are cast
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(("use", "kept"), [(tf.matmul, None), (tf.add, Kept.READ)])
def test_all_graphs_of_a_model_count(use, kept, tmp_path):
    """Two MetaGraphs share the variables."""
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(tmp_path / "f32"))
    for tag, function in (("train", use), ("serve", tf.matmul)):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", (8, 8), use_resource=True)
            tf.exp(function(v1.placeholder(tf.float32, (8, 8), name="x"), w), name="y")
            session.run(v1.global_variables_initializer())
            if tag == "train":
                builder.add_meta_graph_and_variables(session, [tag])
            else:
                builder.add_meta_graph([tag])
    builder.save()
    report = convert_saved_model(tmp_path / "f32", tmp_path / "stored", BFLOAT16, weights="f16")
    assert _kept(report.weights) == {"w": kept}
    for tag in ("train", "serve"):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.saved_model.load(session, [tag], str(tmp_path / "stored"))
            session.run("y:0", {"x:0": _random(8, 8)})


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
        self.small, self.large, self.last = (
            tf.Variable(_random(8, 8), name=name) for name in ("small", "large", "last")
        )
        self.bias = tf.Variable(_random(8), name="bias")
        self.large.assign(tf.tensor_scatter_nd_update(self.large, [[0, 0]], [1e5]))
        self.bias.assign(tf.tensor_scatter_nd_update(self.bias, [[1]], [-1e6]))

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


def test_what_reads_a_weight_that_16_bit_makes_infinite_stays_in_float32(wide):
    folder, (weights, *copies) = wide
    assert _kept(weights) == {"small": None, "large": Kept.RANGE, "last": None, "bias": Kept.RANGE}
    assert "such as 'large': holds values that 16 bit makes infinite" in str(weights)
    x = _random(4, 8)
    original = tf.saved_model.load(str(folder / "f32"))
    expected = original.serve(x)["y"].numpy()
    for copy in copies:
        np.testing.assert_allclose(
            copy.serve(x)["y"], expected, rtol=0, atol=2e-2
        )  # two products of 8 terms
    stored = copies[1]
    assert {stored.small.dtype, stored.last.dtype} == {tf.float16}
    assert {stored.large.dtype, stored.bias.dtype} == {tf.float32}


def test_explain_and_report_say_the_same(wide, capsys):
    source = str(wide[0] / "f32")
    options = ["--precision", "float16", "--target", "gpu"]
    assert main(["report", source, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["converted"] < 8
    rows = []
    for graph in report["graphs"]:
        for node in graph["nodes"]:
            if node["op"] == "MatMul":
                rows.append((graph["function"], node["name"], node["rule"]))
    function, kept, _ = next(row for row in rows if row[2] == "BEYOND_RANGE")
    rules = [rule for other, _, rule in rows if other != function]
    assert {*rules} <= {"ALLOW_LIST", "BEYOND_RANGE"}
    assert rules.count("ALLOW_LIST") == 2
    assert main(["explain", source, kept, "--function", function, *options]) == 0
    said = capsys.readouterr().out
    assert (
        "computes in float32: it uses a constant or weight that 16 bit would make infinite, zero "
        "or one: " in said
    )


def test_a_weight_beyond_float16_is_no_matter_to_bfloat16(tmp_path):
    assert _kept(_convert(Wide(), tmp_path)[0])["large"] is None


def test_a_check_says_which_values_became_infinite(tmp_path, capsys):
    tf.saved_model.save(Tied(), str(tmp_path / "f32"))
    source, copy, inputs = (str(tmp_path / name) for name in ("f32", "out", "inputs.npz"))
    np.savez(inputs, x=np.full((4, 8), 1e5, "f"))
    options = ["--precision", "float16", "--target", "gpu", "--weights", "f16", "--check", inputs]
    assert main(["rewrite", source, copy, *options]) == 1
    err = capsys.readouterr().err
    assert (
        f"{copy}: it is written, and 32 of 32 values of output_0 are inf or nan, which they were "
        "not. What to" in err
    )
    assert err.endswith(f"amp-tf compare {source} --inputs {inputs} --precision float16.\n")


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_killed_midway_leaves_nothing_that_a_loader_takes_for_a_model(
    exported, tmp_path, monkeypatch, is_there
):
    out = tmp_path / "out"
    seen = []
    if is_there:
        out.mkdir()
    original = Checkpoint.write

    def write(*args):
        original(*args)
        seen.append((out.exists(), list(tmp_path.rglob("saved_model.pb"))))

    monkeypatch.setattr(Checkpoint, "write", write)
    convert_saved_model(exported[0] / "f32", out, BFLOAT16, weights="f16")
    assert seen == [(is_there, [])]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert _serve(out, IDS).shape == (4, 8)


def _write_header(path):
    """An array of 256 TiB, as its header says."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i4", "fortran_order": False, "shape": (1 << 46,)}
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("ids.npy", header.getvalue())


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda path: np.savez(path, x=IDS), "expected the arrays ids, got x"),
        (lambda path: np.savez(path, ids=IDS[:, :2]), "the model does not take its arrays ("),
        (
            lambda path: np.savez(path, ids=np.array([["a", "b", "c"]])),
            "the model does not take its arrays (",
        ),
        (_write_header, "cannot be read ("),
        (lambda path: None, "cannot be read (No such file or directory)"),
    ],
)
def test_inputs_for_the_check_are_looked_at_before_anything_is_written(
    exported, tmp_path, capsys, write, what
):
    inputs = tmp_path / "inputs.npz"
    write(inputs)
    command = [
        "rewrite",
        str(exported[0] / "f32"),
        str(tmp_path / "out"),
        "--precision",
        "bfloat16",
    ]
    assert main([*command, "--check", str(inputs)]) == 1
    told = capsys.readouterr()
    assert f"amp-tf rewrite: {inputs}: {what}" in told.err
    assert told.err.count("\n") == 1
    assert not told.out
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_replaced_is_checked_against_what_it_was(exported, tmp_path, capsys):
    np.savez(tmp_path / "inputs.npz", ids=IDS)
    shutil.copytree(exported[0] / "f32", tmp_path / "model")
    command = [
        "rewrite",
        str(tmp_path / "model"),
        str(tmp_path / "model"),
        "--force",
        "--precision",
        "bfloat16",
    ]
    assert main([*command, "--check", str(tmp_path / "inputs.npz")]) == 0
    told = capsys.readouterr()
    assert float(re.search("output_0: error at most ([^,]+),", told.out)[1]) > 0
    assert told.err.endswith(f"{tmp_path / 'model'} is written.\n")


def test_wrong_weights_are_refused(tmp_path):
    with pytest.raises(
        amp_tf.ConfigError, match=r"^convert_saved_model\(weights\): 'half' is not a valid value"
    ):
        convert_saved_model(tmp_path, tmp_path / "out", weights="half")


def test_the_command_stores_weights_and_checks_the_copy(exported, tmp_path, capsys):
    folder, _ = exported
    np.savez(tmp_path / "inputs.npz", ids=IDS)
    command = [
        "rewrite",
        str(folder / "f32"),
        str(tmp_path / "out"),
        "--precision",
        "bfloat16",
        "--target",
        "cpu",
    ]
    assert main([*command, "--weights", "f16", "--check", str(tmp_path / "inputs.npz")]) == 0
    *_, title, line = capsys.readouterr().out.splitlines()
    assert title == "check:"
    assert line.startswith("  output_0: error at most 0.0")
    assert line.endswith(" on average")
    original = _serve(folder / "f32", IDS)
    off = np.abs(original - _serve(tmp_path / "out", IDS))
    assert f"{off.max():.3g}, {off.max() / np.abs(original).max():.2%} of the largest value" in line


@pytest.mark.parametrize("option", [["--weights", "f16"], ["--check", "inputs.npz"]])
def test_these_options_are_for_models(option, tmp_path, capsys):
    assert main(["rewrite", str(tmp_path / "graph.pb"), str(tmp_path / "out.pb"), *option]) == 1
    assert capsys.readouterr().err == (
        f"amp-tf rewrite: {option[0]}: is for models, and this is a GraphDef file. Name a "
        "SavedModel's folder or a "
        "Keras file, or leave it out.\n"
    )


def test_nothing_but_types_and_gates_changes(exported):
    """Names, ops and edges of the graphs stay; casts of weights become gates."""
    converted, stored = (
        SavedModel.FromString((exported[0] / name / "saved_model.pb").read_bytes())
        .meta_graphs[0]
        .graph_def
        for name in ("converted", "stored")
    )
    pairs = [(converted.node, stored.node)]
    pairs += [
        (a.node_def, b.node_def)
        for a, b in zip(converted.library.function, stored.library.function, strict=True)
    ]
    changed = set()
    for before, after in pairs:
        for a, b in zip(before, after, strict=True):
            assert a.name == b.name
            assert [text.partition(":")[0] for text in a.input] == [
                text.partition(":")[0] for text in b.input
            ]
            changed.add((a.op, b.op) if a.op != b.op else None)
    assert changed == {None, ("Cast", "PreventGradient")}
