"""``amp-tf compare`` on SavedModels."""

import re

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.cli.main import main

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
    np.savez(
        tmp_path / "in.npz",
        x=np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32) * np.float32(scale),
    )
    return str(tmp_path / "in.npz")


def test_a_healthy_model_has_status_0(model, tmp_path, capsys):
    assert main(["compare", model, "--inputs", _inputs(tmp_path, 1), *ARGUMENTS]) == 0
    assert "healthy in float16" in (out := capsys.readouterr().out)
    assert "1 batch)" in out


def test_one_that_goes_wrong_has_status_1_and_the_line(model, tmp_path, capsys):
    inputs = _inputs(tmp_path, 1e5)
    assert main(["compare", model, "--inputs", inputs, *ARGUMENTS]) == 1
    out = capsys.readouterr().out
    assert "1. overflow: " in out
    assert "first/MatMul (MatMul" in out
    file = tmp_path / "keep.txt"
    output = ["--output", str(file)]
    assert main(["compare", model, "--inputs", inputs, *ARGUMENTS, *output]) == 1
    out, err = capsys.readouterr()
    assert f"{file} is written. AMP_TF_KEEP_FLOAT32=@{file} reads it." in err
    text = file.read_text()
    assert re.match(
        r"# amp-tf compare: saved in float16; 1 batch, [\d-]+\n# fixes all outputs; ", text
    )
    assert re.search(r"\n# overflow at \S*first/MatMul: ", text)
    patterns = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert f"AMP_TF_KEEP_FLOAT32={','.join(patterns)}\n" in out.replace("'", "")
    kept = ["--keep-float32", f"@{file}"]
    assert main(["compare", model, "--inputs", inputs, *ARGUMENTS, *kept, *output]) == 0
    assert file.read_text().startswith("# amp-tf compare: saved in float16; 1 batch, ")
    assert "\n# healthy, so nothing has to stay in float32\n" in file.read_text()


def test_where_auto_converts_nothing_what_a_gpu_would_run_is_compared(
    model, tmp_path, capsys, without_16_bit
):
    inputs = _inputs(tmp_path, 1)
    assert main(["compare", model, "--inputs", inputs]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "healthy in float16" in first
    assert last.startswith(
        "Note: compared in float16 for a GPU (precision float16, target gpu), because auto conver"
    )
    for named in (ARGUMENTS, ["--precision", "bfloat16"], ["--target", "gpu"]):
        assert main(["compare", model, "--inputs", inputs, *named]) == 0
        assert "Note: " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--steps", "0"], "0 is not a number of batches"),
        (["--output", "nowhere/keep.txt", *ARGUMENTS], "nowhere/keep.txt: cannot be written"),
        (["--inputs", "none.npz"], "cannot be read (No such file or directory)"),
        *(
            (["--inputs", f"{name}.npz"], f"{name}.npz: cannot be read (")
            for name in ("empty", "cut", "text")
        ),
        (
            ["--inputs", "z.npz"],
            "expected the arrays x, got z. Write it with numpy.savez('inputs.npz', x=…).",
        ),
        (["--inputs", "wide.npz", *ARGUMENTS], "amp-tf compare: "),
        ([], "there is no file of inputs. Name it with --inputs, or write --"),
        (["more", "--inputs", "z.npz"], "expected one model"),
        (
            ["--signature", "other"],
            "the model has no signature 'other'. Choose with --signature: serving_default.",
        ),
    ],
)
def test_misuse_has_another_status_than_a_model_that_goes_wrong(
    model, tmp_path, capsys, options, why, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", b""), ("cut", b"PK\x03\x04 cut off"), ("text", b"no arrays")):
        (tmp_path / f"{name}.npz").write_bytes(content)
    np.savez("z.npz", z=np.ones(3))
    np.savez("wide.npz", x=np.ones((2, 5), np.float32))
    inputs = ["--inputs", _inputs(tmp_path, 1e5)] if "".join(options[:1]).startswith("--") else []
    assert main(["compare", model, *inputs, *options]) == 2
    out, err = capsys.readouterr()
    assert why in err
    assert not out  # nothing was compared first
