import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.offline.reading import write_graph_file
from amp_tf.oplists.hardware import Hardware


@pytest.fixture
def graph_file(tmp_path):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (4, 4), name="x")
        tf.exp(tf.matmul(tf.nn.relu(x, name="r"), x, name="m"), name="e")
    write_graph_file(graph.as_graph_def(), tmp_path / "in.pb")
    return tmp_path / "in.pb"


@pytest.fixture
def without_16_bit(monkeypatch):
    """A machine without 16-bit arithmetic."""
    monkeypatch.setattr(Hardware, "detect_cpu", classmethod(lambda cls: cls()))


@pytest.fixture
def tell(capsys):
    """Runs ``amp-tf`` with some words, checks its status, and returns what it printed."""

    def run(*words, status=0):
        assert main(list(map(str, words))) == status
        return capsys.readouterr()

    return run
