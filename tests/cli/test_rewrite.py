"""``amp-tf rewrite`` on files."""

import json

import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.offline.graph_file import read_graph_file, write_graph_file


@pytest.fixture
def graph_file(tmp_path):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (4, 4), name="x")
        tf.exp(tf.matmul(tf.nn.relu(x, name="r"), x, name="m"), name="e")
    write_graph_file(graph.as_graph_def(), tmp_path / "in.pb")
    return tmp_path / "in.pb"


def test_rewrite_converts_a_file_and_reports(graph_file, tmp_path, capsys):
    arguments = ["rewrite", str(graph_file), str(tmp_path / "out.pbtxt"), "--precision", "bfloat16"]
    assert main([*arguments, "--report", str(tmp_path / "report.json")]) == 0
    assert capsys.readouterr().out == "2 of 4 nodes converted to bfloat16, 2 casts\n"
    types = {
        node.name: node.attr["T"].type for node in read_graph_file(tmp_path / "out.pbtxt").node if node.name in "rme"
    }
    assert types == {
        "r": tf.bfloat16.as_datatype_enum,
        "m": tf.bfloat16.as_datatype_enum,
        "e": tf.float32.as_datatype_enum,
    }
    report = json.loads((tmp_path / "report.json").read_text())
    assert [node["rule"] for node in report["graphs"][0]["nodes"] if node["name"] == "m"] == ["ALLOW_LIST"]


def test_rewrite_says_why_nothing_was_converted(graph_file, tmp_path, capsys):
    assert (
        main(["rewrite", str(graph_file), str(tmp_path / "o.pb"), "--keep-float32", ".*", "--precision", "bfloat16"])
        == 0
    )
    assert capsys.readouterr().out == "0 of 4 nodes converted: its name matches a keep_float32 rule\n"


def test_a_name_rule_that_matches_nothing_is_told(graph_file, tmp_path, capsys):
    main(["rewrite", str(graph_file), str(tmp_path / "o.pb"), "--keep-float32", "nosuch", "--precision", "bfloat16"])
    assert capsys.readouterr().err == "No node's name matches: nosuch\n"


def test_a_wrong_input_is_one_line_and_status_1(tmp_path, capsys):
    assert main(["rewrite", str(tmp_path / "none.pb"), str(tmp_path / "out.pb")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"amp-tf rewrite: {tmp_path / 'none.pb'}: cannot be read")
    assert error.count("\n") == 1


def test_lists_are_changed_by_options(graph_file, tmp_path, capsys):
    moved = ["--clear-remove", "Relu", "--deny-add", "Relu"]
    main(["rewrite", str(graph_file), str(tmp_path / "o.pb"), "--precision", "bfloat16", *moved])
    assert capsys.readouterr().out == "1 of 4 nodes converted to bfloat16, 3 casts\n"


def test_a_result_whose_type_changed_is_told_until_it_is_preserved(graph_file, tmp_path, capsys):
    graph = read_graph_file(graph_file)
    del graph.node[-1:]  # the Exp, which stays in float32
    write_graph_file(graph, tmp_path / "product.pb")
    command = ["rewrite", str(tmp_path / "product.pb"), str(tmp_path / "o.pb"), "--precision", "bfloat16"]
    main(command)
    assert capsys.readouterr().err == "Results of 16 bit: m. With --preserve NODE a node stays float32.\n"
    main([*command, "--preserve", "m"])
    assert capsys.readouterr().err == ""
