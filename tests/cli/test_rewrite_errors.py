"""What cannot be written ends ``amp-tf rewrite`` with one line, not with a traceback."""

import argparse
import subprocess
import sys

import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.cli.options import add_config_options, read_config
from amp_tf.offline import saved_model
from amp_tf.offline.reading import write_graph_file


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
    assert not (tmp_path / "out.pb").exists()
    (tmp_path / "folder").mkdir()
    again = ["rewrite", str(tmp_path / "in.pb"), str(tmp_path / "out.pb"), "--report", str(tmp_path / "folder")]
    assert main(again) == 1
    assert "folder: cannot be written (Is a directory)" in capsys.readouterr().err
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "in.pb"]


def test_an_interrupted_conversion_leaves_nothing_half_made(model, tmp_path, capsys, monkeypatch):
    def interrupted(source, target, **options):
        (target / "variables").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model.shutil, "copytree", interrupted)
    assert main(["rewrite", str(model), str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "amp-tf rewrite: interrupted\n"
    assert list(tmp_path.iterdir()) == [model]
    (tmp_path / "out").mkdir()  # an empty one that was there stays
    assert main(["rewrite", str(model), str(tmp_path / "out")]) == 130
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "out", model, *model.rglob("*")])


def test_a_model_is_replaced_only_by_force_and_as_a_whole(model, tmp_path, capsys):
    result = tmp_path / "out"
    assert main(["rewrite", str(model), str(result)]) == 0
    (result / "mark").touch()
    assert main(["rewrite", str(model), str(result)]) == 1
    assert "out: the folder is not empty. Name a new folder, or have the model there replaced (--force, " in (
        capsys.readouterr().err
    )
    assert (result / "mark").exists()
    assert main(["rewrite", str(model), str(result), "--force"]) == 0
    assert not (result / "mark").exists()
    assert main(["rewrite", str(model), str(model), "--force"]) == 0
    tf.saved_model.load(str(model))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model", "out"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    assert main(["rewrite", str(model), str(tmp_path / "other"), "--force"]) == 1
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_blanks_around_op_names_are_no_part_of_them():
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    assert read_config(parser.parse_args(["--deny-add", "Relu, Tanh,"])).deny_add == ("Relu", "Tanh")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logits:0", "the graph has no node 'logits:0'. The closest names: logits."),
        ("product", "node 'product' is in a function, and only nodes of the graph itself are preserved. Keep it in"),
    ],
)
def test_a_node_to_preserve_that_the_graph_does_not_have_is_one_line_and_status_1(tmp_path, capsys, name, message):
    inner = tf.function(lambda x: tf.matmul(x, x, name="product"))
    outer = tf.function(lambda x: tf.identity(inner(x), name="logits")).get_concrete_function(tf.TensorSpec((2, 2)))
    write_graph_file(outer.graph.as_graph_def(), tmp_path / "in.pb")
    assert main(["rewrite", str(tmp_path / "in.pb"), str(tmp_path / "out.pb"), "--preserve", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"amp-tf rewrite: --preserve: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out.pb").exists()


def test_a_node_to_preserve_in_a_saved_model_is_refused_because_it_would_not_be_looked_at(model, tmp_path, capsys):
    assert main(["rewrite", str(model), str(tmp_path / "out"), "--preserve", "logits"]) == 1
    assert capsys.readouterr().err.startswith(
        "amp-tf rewrite: --preserve: is for GraphDef files, and this is a model. "
    )


def test_a_name_that_is_too_long_for_a_file_is_one_line_and_status_1(model, tmp_path, capsys):
    long = str(tmp_path / ("n" * 300))
    for arguments in ([long, str(tmp_path / "out")], [str(model), long], ["explain", long, "x"]):
        command = arguments if arguments[0] == "explain" else ["rewrite", *arguments]
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "(File name too long)" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["rewrite nosuch out", "explain nosuch node"])
def test_a_model_that_is_not_there_is_named_before_tensorflow_is_imported(command, tmp_path):
    program = (
        f"import sys; from amp_tf.cli.main import main; print(main({command.split()}), 'tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout == "1 False\n"
    assert "nosuch: cannot be read (No such file or directory)" in ended.stderr


def test_a_lock_file_that_is_not_there_is_named_without_a_word_on_variables(tmp_path, capsys):
    lock = tmp_path / "nosuch.lock"
    assert main(["rewrite", "in.pb", "out.pb", "--lock", str(lock)]) == 1
    assert capsys.readouterr().err == (
        f"amp-tf rewrite: {lock}: it cannot be read (No such file or directory). Write it with amp-tf tune --lock FILE "
        "-- python train.py, or name none.\n"
    )
