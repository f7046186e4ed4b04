"""The lock file: what it says, how it is written, and what is wrong with one."""

import json
import os

import pytest

import amp_tf
from amp_tf.lock import Decision, Layer, Lock, read

ATTENTION = Decision(Layer("model/attention", "MatMul*2 sum", ("8x8", "8x8"), 2, 6), why="exp")
PRODUCT = Decision(Layer("model/dense"), "model/dense/MatMul")


def written(folder, lock):
    path = folder / "amp.lock"
    path.write_text(lock.to_text())
    return str(path)


def test_a_lock_is_read_as_it_was_written_and_again_once_it_was_changed(tmp_path):
    for lock in (Lock((ATTENTION, PRODUCT), {"precision": "float16"}, {"metric": "accuracy", "tuned": 0.5}), Lock()):
        assert read(written(tmp_path, lock)) == lock


def test_a_reason_of_several_lines_is_written_as_one_and_read(tmp_path):
    """Such as the error by which a comparison failed."""
    lock = Lock((Decision(Layer("dense"), why="InternalError: Graph execution error:\n\n\x1b[1mDetected\tat node"),))
    (read_again,) = read(written(tmp_path, lock)).decisions
    assert read_again.why == "InternalError: Graph execution error: [1mDetected at node"


def test_decisions_are_lines_in_the_order_of_their_names():
    text = Lock((PRODUCT, ATTENTION)).to_text()
    assert text == Lock((ATTENTION, PRODUCT)).to_text()
    assert text.endswith(
        """ "float32": [
  {"layer": "model/attention", "structure": "MatMul*2 sum", "weights": ["8x8", "8x8"], "place": "2/6", "why": "exp"},
  {"node": "model/dense/MatMul", "layer": "model/dense", "structure": "", "weights": [], "place": "1/1"}
 ]
}
"""
    )


def _of_layer(**row):
    return json.dumps({"schema": "amp_tf.lock", "schema_version": 1, "float32": [row]})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("no JSON", "it is not a lock file of amp_tf (Expecting value"),
        ("[]", "it is not a lock file of amp_tf ("),
        ('{"schema": "amp_tf.report"}', "its schema is 'amp_tf.report', not 'amp_tf.lock'"),
        ('{"schema": "amp_tf.lock", "schema_version": 2}', "its version is 2, and this amp_tf reads 1"),
        ('{"schema": "amp_tf.lock", "schema_version": 1}', "'float32'"),
        ('{"schema": "amp_tf.lock", "schema_version": 1, "float32": [{"layer": 3}]}', "expected text, got 3"),
        ('{"schema": "amp_tf.lock", "schema": "amp_tf.lock"}', "the key 'schema' is there twice"),
        ("[" * 100_000, "it is not a lock file of amp_tf ("),
        (_of_layer(layer="a\x1b[2K\nINFO: all is well"), "expected text, got 'a\\x1b[2K\\nINFO"),
        (_of_layer(layer="a", place="3/2"), "3 is not a place among 2"),
    ],
)
def test_what_is_no_lock_file_is_an_error(tmp_path, content, what):
    path = tmp_path / "amp.lock"
    path.write_text(content)
    with pytest.raises(amp_tf.ConfigError) as error:
        amp_tf.AmpConfig(lock=str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert what in str(error.value)
    assert str(error.value).endswith("amp-tf tune --lock FILE -- python train.py, name none, or delete it.")


@pytest.mark.parametrize("may_be_missing", [False, True])
def test_a_pipe_is_not_waited_for_and_a_link_to_nothing_is_not_followed(tmp_path, may_be_missing):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, what in (
        ("pipe", "it is not a file of up to 64 MiB"),
        ("link", r"it is a link to \S+elsewhere, which does not exist\. Delete the link"),
    ):
        with pytest.raises(amp_tf.ConfigError, match=what):
            read(str(tmp_path / name), may_be_missing=may_be_missing)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(amp_tf.ConfigError, match=r"it cannot be read \(No such file or directory\)"):
        amp_tf.AmpConfig(lock=tmp_path / "none.lock")


def test_the_file_is_found_after_the_program_changed_its_folder(tmp_path, monkeypatch):
    written(tmp_path, Lock())
    monkeypatch.chdir(tmp_path)
    config = amp_tf.AmpConfig(lock="amp.lock")
    os.makedirs(tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    assert read(config.lock) == Lock()


def test_what_it_was_made_for_is_compared():
    made = {"precision": "float16", "device": "GPU", "op_lists": "1234"}
    assert Lock(made=made).differences(made) == ""
    assert Lock(made=made).differences({**made, "precision": "bfloat16", "op_lists": "5678"}) == (
        "made for precision float16, not bfloat16, made for op lists 1234, not 5678"
    )
    assert json.loads(Lock(made=made).to_text())["made"] == made
