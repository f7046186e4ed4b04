"""A converted SavedModel has its signatures and variables, 16-bit products, and needs no amp_tf."""

import json
import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import amp_tf
from amp_tf.offline.saved_model import convert_saved_model
from tests import processes

CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
RTOL = 2e-2  # bfloat16 keeps 8 bits: 2**-8 an operation, over two layers


SERVE = """
import importlib.util, json, sys
assert importlib.util.find_spec("amp_tf") is None, "this environment has amp_tf"
import numpy as np, tensorflow as tf
x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)
for folder in sys.argv[1:]:
    model = tf.saved_model.load(folder)
    y = model.signatures["serving_default"](tf.constant(x))["y"]
    print(json.dumps([y.numpy().tolist(), y.dtype.name, model.w1.dtype.name, model.w2.dtype.name]))
"""


class Model(tf.Module):
    def __init__(self):
        random = np.random.default_rng(0)
        self.w1 = tf.Variable(random.normal(size=(12, 16)).astype("f"))
        self.w2 = tf.Variable(random.normal(size=(16, 4)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec((None, 12), tf.float32, name="x")])
    def __call__(self, x):
        return {"y": tf.nn.softmax(tf.matmul(tf.nn.relu(tf.matmul(x, self.w1)), self.w2))}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    model = Model()
    tf.saved_model.save(model, base / "f32", signatures=model.__call__)
    report = convert_saved_model(base / "f32", base / "amp", CONFIG)
    convert_saved_model(base / "f32", base / "stored", CONFIG, weights="f16")
    return base / "f32", base / "amp", report


def _products(folder):
    """The types of the products of a folder's model."""
    model = tf.saved_model.load(folder)
    found = []
    for function in model.signatures["serving_default"].graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op == "MatMul":
                found.append(tf.dtypes.as_dtype(node.attr["T"].type).name)
    return found


def test_products_run_in_16_bit_as_the_report_says_and_signatures_stay(folders):
    f32, amp, report = folders
    assert (set(_products(f32)), set(_products(amp))) == ({"float32"}, {"bfloat16"})
    assert {node.precision.value for node in report.nodes.where(op="MatMul")} == {"bfloat16"}
    old = tf.saved_model.load(f32).signatures["serving_default"]
    new = tf.saved_model.load(amp).signatures["serving_default"]
    assert old.structured_input_signature == new.structured_input_signature
    assert old.structured_outputs == new.structured_outputs


@pytest.fixture
def site(tmp_path):
    """A folder of links to all installed packages but amp_tf."""
    site = tmp_path / "site"
    site.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "amp_tf" not in entry.name and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    return site


def test_it_is_served_by_an_environment_without_amp_tf(folders, site, tmp_path):
    f32, amp, _ = folders
    models = (f32, amp, f32.with_name("stored"))
    # -S: no site-packages but the folder of links, so that the installed amp_tf is out of reach
    done = processes.run(
        [sys.executable, "-S", "-c", SERVE, *map(str, models)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    exact, rounded, stored = map(json.loads, done.stdout.splitlines()[-3:])
    assert exact[1:] == rounded[1:] == ["float32"] * 3  # results, and both variables
    assert stored[1:] == ["float32", "bfloat16", "bfloat16"]
    # The weights were rounded once instead of in each call.
    assert stored[0] == rounded[0] != exact[0]
    np.testing.assert_allclose(rounded[0], exact[0], rtol=RTOL, atol=RTOL)


def test_a_v1_model_keeps_what_its_signature_names(tmp_path):
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        eye = np.eye(4, dtype=np.float32)
        w = v1.get_variable("w", initializer=eye, use_resource=True)
        hidden = tf.nn.relu(tf.matmul(x, w), name="hidden")
        y = tf.matmul(hidden, w, name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "v1"), {"x": x}, {"y": y})
    report = convert_saved_model(tmp_path / "v1", tmp_path / "amp", CONFIG)
    nodes = {node.name: node for node in report.nodes}
    assert nodes["y"].reason.rule is nodes["x"].reason.rule is amp_tf.Rule.PRESERVED
    assert nodes["hidden"].precision.is_f16
    model = tf.saved_model.load(tmp_path / "amp")
    answer = model.signatures["serving_default"](tf.ones((1, 4)))["y"]
    assert answer.numpy().tolist() == [[1.0] * 4]


def test_a_model_saved_as_text_is_converted_to_a_binary_one_that_runs(folders, tmp_path):
    shutil.copytree(folders[0], tmp_path / "text")
    model = SavedModel.FromString((tmp_path / "text" / "saved_model.pb").read_bytes())
    (tmp_path / "text" / "saved_model.pb").unlink()
    (tmp_path / "text" / "saved_model.pbtxt").write_text(str(model))
    convert_saved_model(tmp_path / "text", tmp_path / "amp", CONFIG)
    assert sorted(path.name for path in (tmp_path / "amp").iterdir()) == [
        "assets",
        "saved_model.pb",
        "variables",
    ]
    assert set(_products(tmp_path / "amp")) == {"bfloat16"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_in_the_model_itself_is_not_written(folders, tmp_path, exists):
    source = tmp_path / "model"
    target = tmp_path / "model" / "converted"
    shutil.copytree(folders[0], source)
    if exists:  # it would be copied into itself without end
        target.mkdir()
    with pytest.raises(
        amp_tf.GraphError,
        match=rf"{target}: the folder lies in the model that is converted, '{source}'",
    ):
        convert_saved_model(source, target, CONFIG)
    assert target.exists() is exists


@pytest.mark.parametrize("name", ["inner", "model.keras"])
def test_a_folder_that_holds_the_model_itself_is_not_replaced(folders, tmp_path, name):
    target = tmp_path / "model"
    shutil.copytree(folders[0], target)
    source = target / name
    if name == "inner":
        shutil.copytree(folders[0], source)
    else:
        tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(4)]).save(source)
    with pytest.raises(
        amp_tf.GraphError,
        match=rf"{target}: the model that is converted lies in the folder, '{source}'",
    ):
        convert_saved_model(source, target, CONFIG, replace=True)
    assert source.exists()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("assets/secret", "{outside}/secret"),
        ("assets/secret", "../../secret"),
        ("assets/up", "../.."),
        ("up", ".."),
        ("assets/itself", "../../model/assets"),  # which a copy of another name would not hold
        ("assets/folder", "{outside}"),
        ("assets/broken", "{outside}/nowhere"),
    ],
)
def test_a_link_that_leads_out_of_the_model_is_refused(name, target, folders, tmp_path):
    (tmp_path / "secret").write_text("of somebody else")
    shutil.copytree(folders[0], tmp_path / "model")
    link = tmp_path / "model" / name
    link.symlink_to(target.format(outside=tmp_path))
    with pytest.raises(
        amp_tf.GraphError, match=rf"^{link}: is a link to .* outside of the model\. Make a copy"
    ):
        convert_saved_model(tmp_path / "model", tmp_path / "amp", CONFIG)
    assert not (tmp_path / "amp").exists()


def test_links_stay_links_as_kubernetes_and_caches_lay_them_and_models_among_the_assets_whole(
    folders, tmp_path
):
    model = tmp_path / "model"
    shutil.copytree(folders[0], model)
    shutil.copytree(folders[0], model / "assets" / "inner")
    (model / "variables").rename(model / "..2026")
    (model / "..data").symlink_to("..2026")
    (model / "variables").symlink_to("..data")
    (model / "assets" / "up").symlink_to("..")
    (model / "saved_model.pb").rename(tmp_path / "graph")
    (model / "saved_model.pb").symlink_to(tmp_path / "graph")  # is read, and not copied
    model.chmod(0o555)
    copy = tmp_path / "amp"
    convert_saved_model(model, copy, CONFIG)
    assert os.readlink(copy / "variables") == "..data"
    assert os.readlink(copy / "assets" / "up") == ".."
    assert not (copy / "saved_model.pb").is_symlink()
    inner = Path("assets", "inner", "saved_model.pb")
    assert (copy / inner).read_bytes() == (model / inner).read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755  # its owner can write it
    tf.saved_model.load(copy)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("saved_model.pb", b"", "/saved_model.pb: the file is empty"),
        ("saved_model.pb", b"\x08\x01", "/saved_model.pb: holds no graph. Save"),
        ("saved_model.pb", b"\xff\xff\xff", r"/saved_model.pb: holds no graph \("),
        ("saved_model.pbtxt", b"meta_graphs {", r"/saved_model.pbtxt: holds no graph \("),
        (
            "saved_model.cpb",
            b"",
            r": the model is split \(saved_model.cpb\), because it is larger than 2 GiB",
        ),
        # Nobody may read the first page of this one.
        (
            "saved_model.pb",
            "/proc/self/mem",
            r"/saved_model.pb: cannot be read \(Input/output error\)",
        ),
    ],
)
def test_a_model_without_a_graph_that_can_be_read_is_refused(tmp_path, name, content, what):
    file = tmp_path / name
    file.symlink_to(content) if isinstance(content, str) else file.write_bytes(content)
    with pytest.raises(amp_tf.GraphError, match=rf"^{tmp_path}{what}"):
        convert_saved_model(tmp_path, tmp_path.parent / "out", CONFIG)
