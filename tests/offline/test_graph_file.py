"""Graphs on disk: both forms round-trip, and what is no graph is named."""

import pytest
import tensorflow as tf

from amp_tf.errors import GraphError
from amp_tf.offline.graph_file import read_graph_file, write_graph_file


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as graph:
        tf.constant(1.5, name="c")
    return graph.as_graph_def()


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_what_is_written_is_read_back(graph, tmp_path, name):
    write_graph_file(graph, tmp_path / name)
    assert read_graph_file(tmp_path / name) == graph


@pytest.mark.parametrize(("name", "content"), [("bad.pb", b"\xff\xff"), ("bad.pbtxt", b"node {"), ("b.txt", b"\xff")])
def test_a_file_that_holds_no_graph_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GraphError, match=rf"{name}: holds no graph"):
        read_graph_file(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(GraphError, match=r"none.pb: cannot be read \(No such file or directory\)"):
        read_graph_file(tmp_path / "none.pb")


def test_a_folder_that_cannot_be_written_is_named(graph, tmp_path):
    with pytest.raises(GraphError, match=r"g.pb: cannot be written"):
        write_graph_file(graph, tmp_path / "missing" / "g.pb")
