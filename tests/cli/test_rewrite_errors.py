"""What cannot be written ends ``amp-tf rewrite`` with one line, not with a traceback."""

import argparse

import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.cli.options import add_config_options, read_config
from amp_tf.offline.graph_file import write_graph_file


@pytest.fixture
def model(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    return tmp_path / "model"


def test_a_result_that_is_a_file_or_below_one_is_one_line_and_status_1(model, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for result in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["rewrite", str(model), str(result)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"amp-tf rewrite: {result}: ")
        assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_report_that_cannot_be_written_is_one_line_and_status_1(tmp_path, capsys):
    write_graph_file(tf.Graph().as_graph_def(), tmp_path / "in.pb")
    report = tmp_path / "nowhere" / "report.json"
    assert main(["rewrite", str(tmp_path / "in.pb"), str(tmp_path / "out.pb"), "--report", str(report)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"amp-tf rewrite: {report}: cannot be written (No such file or directory)")
    assert error.count("\n") == 1


def test_blanks_around_op_names_are_no_part_of_them():
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    assert read_config(parser.parse_args(["--deny-add", "Relu, Tanh,"])).deny_add == ("Relu", "Tanh")
