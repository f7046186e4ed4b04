"""``amp-tf compare`` on SavedModels."""

import re
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.values import read_pattern_file

ARGUMENTS = ("--precision", "float16", "--target", "cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model") / "saved")
    module = tf.Module()
    module.w = tf.Variable(np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 6), name="x")])
    def serve(x):
        with tf.name_scope("first"):
            hidden = tf.nn.relu(tf.matmul(x, module.w)) * 1e-5
        return {"y": tf.matmul(hidden, module.w)}

    tf.saved_model.save(module, folder, signatures={"serving_default": serve})
    return folder


def _inputs(tmp_path, scale):
    x = np.random.default_rng(1).normal(size=(8, 6)) * scale
    np.savez(tmp_path / "in.npz", x=x.astype(np.float32))
    return str(tmp_path / "in.npz")


def test_one_that_goes_wrong_has_status_1_and_a_file_that_mends_it(model, tmp_path, tell):
    file = tmp_path / "keep.txt"
    command = ["compare", model, "--inputs", _inputs(tmp_path, 1e5), *ARGUMENTS]
    out, err = tell(*command, "--output", file, status=1)
    assert "1. overflow: " in out
    assert "first/MatMul (MatMul" in out
    assert f"{file} is written. AMP_TF_KEEP_FLOAT32=@{file} reads it." in err
    first, second, *lines = file.read_text().splitlines()
    assert re.match(r"# amp-tf compare: saved in float16; 1 batch, [\d-]+$", first)
    assert second.startswith("# fixes all outputs; ")
    assert re.search(r"\n# overflow at \S*first/MatMul: ", file.read_text())
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert f"AMP_TF_KEEP_FLOAT32={','.join(patterns)}\n" in out.replace("'", "")
    # It is healthy by the file alone, so the file has to stay as it is.
    assert (
        f"It was compared with {patterns[0]}"
        in tell(*command, "--output", file, "--keep-float32", f"@{file}").out
    )
    assert "\n# healthy with what is below in float32, as it was compared\n" in file.read_text()
    assert list(read_pattern_file(str(file), where="test")) == patterns


def test_a_healthy_model_has_status_0(model, tmp_path, tell):
    file = tmp_path / "keep.txt"
    command = ["compare", model, "--inputs", _inputs(tmp_path, 1), *ARGUMENTS]
    out = tell(*command, "--output", file).out
    assert "healthy in float16" in out
    assert "1 batch)" in out
    assert "It was compared with" not in out
    assert "\n# healthy, so nothing has to stay in float32\n" in file.read_text()


def test_where_auto_converts_nothing_what_a_gpu_would_run_is_compared(
    model, tmp_path, tell, without_16_bit
):
    inputs = _inputs(tmp_path, 1)
    first, *_, last = tell("compare", model, "--inputs", inputs).out.splitlines()
    assert "healthy in float16" in first
    assert last.startswith(
        "Note: compared in float16 for a GPU (precision float16, target gpu), because auto conver"
    )
    for named in (ARGUMENTS, ["--precision", "bfloat16"], ["--target", "gpu"]):
        assert "Note: " not in tell("compare", model, "--inputs", inputs, *named).out


@pytest.fixture
def wrong_files(tmp_path, monkeypatch):
    """Files of inputs that the model does not take, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    (tmp_path / "text.npz").write_bytes(b"no arrays")
    np.save("one.npy", np.ones(3))
    np.savez("z.npz", z=np.ones(3))
    np.savez("wide.npz", x=np.ones((2, 5), np.float32))
    np.savez("words.npz", x=np.full((2, 6), "a"))
    _inputs(tmp_path, 1e5)


@pytest.mark.usefixtures("wrong_files")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--inputs in.npz --output nowhere/keep.txt", "nowhere/keep.txt: cannot be written"),
        ("--inputs none.npz", "cannot be read (No such file or directory)"),
        ("--inputs empty.npz", "empty.npz: cannot be read ("),
        ("--inputs cut.npz", "cut.npz: cannot be read ("),
        ("--inputs text.npz", "text.npz: cannot be read (it is not a .npz file)."),
        ("--inputs one.npy", "one.npy: cannot be read (it is not a .npz file)."),
        (
            "--inputs z.npz",
            "expected the arrays x, got z. Write it with numpy.savez('inputs.npz', x=…).",
        ),
        (
            "--inputs wide.npz",
            "wide.npz: the array x has the shape [2, 5], and the model takes [None, 6].",
        ),
        (
            "--inputs words.npz",
            "words.npz: the array x has values of type <U1, and the model takes float32.",
        ),
        ("", "there is no file of inputs. Name it with --inputs, or write --"),
        ("more --inputs z.npz", "expected one model"),
        (
            "--inputs in.npz --signature other",
            "the model has no signature 'other'. Choose with --signature: serving_default.",
        ),
    ],
)
def test_misuse_has_another_status_than_a_model_that_goes_wrong(model, tell, options, why):
    out, err = tell("compare", model, *options.split(), *ARGUMENTS, status=2)
    assert why in err
    assert not out  # nothing was compared first


def test_numpys_float64_is_taken_for_float32(model, tmp_path, tell):
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(1).normal(size=(8, 6)))
    out = tell("compare", model, "--inputs", tmp_path / "in.npz", *ARGUMENTS).out
    assert "healthy in float16" in out


def test_a_model_that_tensorflow_cannot_load_is_named(model, tmp_path, tell):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    shutil.rmtree(broken / "variables")
    inputs = _inputs(tmp_path, 1)
    err = tell("compare", broken, "--inputs", inputs, *ARGUMENTS, status=2).err
    assert f"amp-tf compare: {broken}: TensorFlow cannot load the model (" in err


def test_the_setting_that_reads_a_file_is_quoted_for_a_shell(model, tmp_path, tell):
    file = tmp_path / "a model's keep.txt"
    command = ["compare", model, "--inputs", _inputs(tmp_path, 1e5), "--output", file, *ARGUMENTS]
    err = tell(*command, status=1).err
    setting = err.partition(" is written. ")[2].partition(" reads it.")[0]
    assert shlex.split(setting) == [f"AMP_TF_KEEP_FLOAT32=@{file}"]
    assert shlex.quote("@a model's keep.txt") in file.read_text()
