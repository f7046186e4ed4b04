"""The shim, called as TensorFlow calls it: through the structs of grappler.h, without
TensorFlow.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from amp_tf.hooks import native
from amp_tf.hooks.native import Shim, Skip
from tests.hooks import running


class Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("data_deallocator", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)),
    ]


_ARGUMENTS = (
    ctypes.c_void_p,
    ctypes.POINTER(Buffer),
    ctypes.c_void_p,
    ctypes.POINTER(Buffer),
    ctypes.c_void_p,
)
OPTIMIZE = ctypes.CFUNCTYPE(None, *_ARGUMENTS)
OPTIMIZE_WITH_THE_LOCK = ctypes.PYFUNCTYPE(None, *_ARGUMENTS)


class Item(ctypes.Structure):
    """The begin of TensorFlow's GrapplerItem: its name is a std::string, which holds short texts
    itself.
    """

    _fields_ = [
        ("virtual_functions", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("rest", ctypes.c_char * 16),
    ]

    @classmethod
    def of(cls, name: bytes) -> Item:
        item = cls(length=len(name))
        here = ctypes.addressof(item) + cls.rest.offset
        if len(name) < 16:
            ctypes.memmove(here, name + b"\0", len(name) + 1)
            item.name = here
        else:
            item.kept = ctypes.create_string_buffer(name)
            item.name = ctypes.addressof(item.kept)
            ctypes.memmove(here, len(name).to_bytes(8, sys.byteorder), 8)
        return item


class Configs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("toggles", ctypes.c_int * 19),
    ]


class Optimizer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("create_func", ctypes.c_void_p),
        ("optimize_func", OPTIMIZE),
        ("destroy_func", ctypes.c_void_p),
    ]


class Params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("version", ctypes.c_int32 * 3),
        ("device_type", ctypes.c_char_p),
        ("configs", ctypes.POINTER(Configs)),
        ("optimizer", ctypes.POINTER(Optimizer)),
    ]


class Registered:
    """The callbacks that TensorFlow holds after it has loaded the shim."""

    def __init__(self, path, *, version=(0, 0, 1), params_size=56):
        # TF_OFFSET_OF_END of the last toggle, without the padding behind it
        self.configs = Configs(
            struct_size=Configs.toggles.offset + 19 * ctypes.sizeof(ctypes.c_int)
        )
        self.optimizer = Optimizer(struct_size=ctypes.sizeof(Optimizer))
        self.params = Params(
            struct_size=params_size,
            version=version,
            configs=ctypes.pointer(self.configs),
            optimizer=ctypes.pointer(self.optimizer),
        )
        ctypes.CDLL(str(path)).TF_InitGraph(ctypes.byref(self.params), None)

    def optimize(self, graph, *, with_lock=False, name=b"tf_graph", item=None):
        """Calls as TensorFlow does, without Python's lock, or as the few calls do that keep it."""
        item = Item.of(name) if item is None else item
        kept = ctypes.create_string_buffer(graph, len(graph))
        source = Buffer(ctypes.addressof(kept), len(graph))
        result = Buffer()
        call = self.optimizer.optimize_func
        if with_lock:
            call = ctypes.cast(call, OPTIMIZE_WITH_THE_LOCK)
        call(None, source, ctypes.addressof(item), result, None)
        new = ctypes.string_at(result.data, result.length)
        if result.data_deallocator:
            result.data_deallocator(result.data, result.length)
        return new


@pytest.fixture(autouse=True)
def no_copy_stays(tmp_path):
    """For what runs later in this process, a copy would be another plugin as long as its file is
    there.
    """
    yield
    for copy in tmp_path.glob("*.so"):
        copy.unlink()


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(native, "PATIENCE_MS", 700)


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """A copy of its own, so that nothing of another test is in it."""
    shutil.copy(native.FOLDER / "amp_tf_cpu.so", tmp_path)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    shim = Shim("CPU")
    yield shim
    shim.clear_callback()


def emits(shim, *graphs):
    """A callback that makes each of some graphs the result, in turn."""

    def callback(data, length, item, output, thread):
        for graph in graphs or (b"new",):
            shim.emit(output, graph)

    return callback


@pytest.mark.parametrize(
    "device_type", native.DEVICE_TYPES
)  # where they differ, TensorFlow warns at each graph
def test_registration_fills_what_tensorflow_checks_and_turns_the_layout_optimizer_off_alone(
    device_type, tmp_path
):
    library = native.FOLDER / f"amp_tf_{device_type.lower()}.so"
    registered = Registered(shutil.copy(library, tmp_path))
    assert registered.params.device_type == device_type.encode()
    assert registered.optimizer.optimize_func
    package = importlib.util.find_spec("tensorflow")
    assert package is not None
    assert package.origin is not None
    headers = Path(package.origin).parent / "include" / "tensorflow" / "c" / "experimental"
    text = (headers / "grappler" / "grappler.h").read_text()
    _, _, states = text.partition("typedef enum TF_TriState")
    off = re.findall(r"TF_TriState_\w+", states).index("TF_TriState_Off")
    names = re.findall(r"^ *TF_TriState (\w+);", text, re.MULTILINE)
    expected = [off if name == "layout_optimizer" else 0 for name in names]
    assert list(registered.configs.toggles) == expected


@pytest.mark.parametrize("change", [{"version": (0, 1, 0)}, {"params_size": 64}])
def test_an_interface_of_another_version_is_refused(change, shim):
    registered = Registered(shim.path, **change)
    assert (
        registered.params.device_type is None
    )  # "'device_type' field … must be set", says TensorFlow then
    assert not registered.optimizer.optimize_func
    assert not shim.is_registered


@pytest.mark.parametrize("with_lock", [True, False])
def test_callback_gets_the_graph_and_gives_the_new_one(with_lock, shim):
    """The caller has Python's lock, or has not."""

    def callback(data, length, item, output, thread):
        assert thread == waiting
        shim.emit(output, b"new " + ctypes.string_at(data, length))

    waiting = threading.get_native_id()
    assert not shim.is_registered
    registered = Registered(shim.path)
    assert shim.is_registered
    shim.set_callback(callback)
    assert registered.optimize(b"gra\0ph", with_lock=with_lock) == b"new gra\0ph"
    assert [shim.skipped(reason) for reason in Skip] == [(0, "")] * 4


def test_graph_is_unchanged_when_the_callback_gives_nothing_or_is_removed(shim):
    registered = Registered(shim.path)
    shim.set_callback(lambda *_: None)
    assert registered.optimize(b"graph") == b"graph"
    shim.set_callback(emits(shim, b"first", b"last"))
    assert registered.optimize(b"graph") == b"last"
    shim.clear_callback()
    assert registered.optimize(b"graph") == b"graph"


def test_a_callback_that_was_replaced_is_let_go(shim):
    first = emits(shim)
    gone = weakref.ref(first)
    shim.set_callback(first)
    del first
    shim.clear_callback()
    shim.set_callback(emits(shim))
    assert gone() is None
    assert Registered(shim.path).optimize(b"graph") == b"new"


def optimized_in_a_child(registered, shim):
    """Optimizes a graph in a forked child, which then removes its callback without waiting for the
    parent's threads.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, registered.optimize(b"graph"))
        os._exit(shim.clear_callback(60_000))
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with os.fdopen(reader, "rb") as answer:
        return answer.read()


@pytest.mark.parametrize("was_on", [True, False])
def test_graph_is_unchanged_in_a_child_forked_after_the_first_graph(was_on, shim):
    registered = Registered(shim.path)
    if was_on:
        shim.set_callback(emits(shim))
    registered.optimize(b"graph")
    shim.set_callback(emits(shim))
    assert optimized_in_a_child(registered, shim) == b"graph"
    assert registered.optimize(b"graph") == b"new"


class Visits:
    """Threads that have graphs optimized, again and again, until the block ends; this thread is
    awake in it.
    """

    def __init__(self, registered: Registered, threads: int = 3) -> None:
        self._registered = registered
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._visit) for _ in range(threads)]
        self.got: list[bytes] = []
        self.longest = 0.0

    def _visit(self) -> None:
        while not self._ends.is_set():
            begin = time.monotonic()
            self.got.append(
                self._registered.optimize(b"graph", name=b"__inference_train_function_12")
            )
            self.longest = max(self.longest, time.monotonic() - begin)

    def __enter__(self) -> Visits:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()


def keep_the_lock(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    time.sleep(0.002)


def keep_until(is_done, seconds: float = 1.5, keep=keep_the_lock) -> None:
    """Keeps the lock for a while, again and again, until something was seen in the pauses, or for a
    minute.
    """
    begin = time.monotonic()
    while time.monotonic() - begin < 60 and not is_done():
        keep(seconds)


def optimized_when_free(registered):
    """Optimizes a graph once the thread of a skipped visit has had the lock, which it may get late.

    Until then other graphs do not wait at all.
    """
    for _ in range(6000):
        got = registered.optimize(b"graph")
        if got != b"graph":
            break
        time.sleep(0.01)
    return got


def test_a_graph_waits_for_a_lock_that_is_kept_by_a_call_that_computes_nothing(shim):
    """As a data thread keeps it that reads from a slow disk."""
    shim.set_callback(emits(shim))
    with Visits(Registered(shim.path)) as visits:
        keep_until(lambda: visits.longest > 1)
    assert visits.longest > 1
    assert set(visits.got) == {b"new"}
    assert [shim.skipped(reason) for reason in Skip] == [(0, "")] * 4


def keep_the_lock_at_work(seconds: float) -> None:
    """Keeps the lock, while another thread computes without it for at least as long."""
    begin = time.perf_counter()
    hash_repeatedly(10_000)
    repetitions = int(10_000 * 2 * seconds / (time.perf_counter() - begin))
    thread = threading.Thread(target=hash_repeatedly, args=(repetitions,))
    thread.start()
    used = time.process_time()
    while time.process_time() - used < 0.05:  # until it computes, for which it needs the lock
        time.sleep(0.001)
    keep_the_lock(seconds)
    thread.join()


def hash_repeatedly(times: int) -> None:
    """Computes in one call, which lets go of the lock."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", times)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("works", [False, True])
def test_a_graph_waits_no_longer_than_it_has_patience_unless_the_process_works(works, shim):
    registered = Registered(shim.path)
    shim.set_callback(emits(shim))
    with Visits(registered) as visits:
        if works:
            keep_until(lambda: visits.longest > 1.2, 2, keep_the_lock_at_work)
        else:
            keep_until(lambda: shim.skipped(Skip.LOCKED)[0], 2)
    count, name = shim.skipped(Skip.LOCKED)
    assert (count == 0) is works
    assert count == visits.got.count(b"graph")
    assert name == ("" if works else "__inference_train_function_12")
    assert optimized_when_free(registered) == b"new"


def test_a_graph_does_not_wait_while_the_converter_keeps_the_lock(shim):
    registered = Registered(shim.path)
    shim.set_callback(emits(shim))
    with Visits(registered) as visits, shim.converting():
        keep_until(lambda: shim.skipped(Skip.CONVERTER)[0])
    count, name = shim.skipped(Skip.CONVERTER)
    assert count == visits.got.count(b"graph") > 0
    assert name == "__inference_train_function_12"
    assert shim.skipped(Skip.LOCKED) == (0, "")
    assert optimized_when_free(registered) == b"new"


@pytest.mark.parametrize(
    ("name", "result"),
    [
        (b"Dataset_map", b"graph"),
        (b"Dataset_map_with_a_long_name_12", b"graph"),
        (b"Dataset_scan_step", b"new"),
        (b"__inference_Dataset_map_12", b"new"),
        (b"Data", b"new"),
    ],
)
def test_functions_are_left_out_by_the_beginnings_of_their_names(name, result, shim):
    shim.leave_out(["other", "Dataset_"], ["Dataset_scan_"])
    shim.set_callback(emits(shim))
    assert Registered(shim.path).optimize(b"graph", name=name) == result
    assert shim.skipped(Skip.PIPELINE) == ((1, name.decode()) if result == b"graph" else (0, ""))


def strange_items():
    """Other classes than TensorFlow's, as far as one can see."""
    yield Item()
    empty = Item.of(b"")
    empty.name = None
    yield empty
    too_long = Item.of(b"a text of more than 16 bytes")
    too_long.length = 1 << 40
    yield too_long
    too_small = Item.of(b"a text of more than 16 bytes")
    too_small.rest = b"\1"
    yield too_small


@pytest.mark.parametrize("item", strange_items(), ids=["zeros", "no name", "too long", "too small"])
def test_a_graph_whose_name_cannot_be_read_stays_as_it_is(item, shim):
    """For it may be that of an input pipeline."""
    shim.set_callback(emits(shim))
    assert Registered(shim.path).optimize(b"graph", item=item) == b"graph"
    assert shim.skipped(Skip.NAMELESS) == (1, "")


PROGRAM = """
import json
import tensorflow as tf
from amp_tf.hooks import plugin

told = {}
def convert(data, preserve, shapes):
    graph = tf.compat.v1.GraphDef.FromString(data)
    for node in graph.node:
        if node.op in ("MatMul", "Split", "Unpack", "ReadVariableOp"):
            told[node.op] = shapes.output_shapes(node.name)
    told["nothing"] = shapes.output_shapes("no such node")
    kept.append(shapes)

kept = []
plugin.set_conversion(convert)
weights = tf.Variable(tf.ones((4, 20)))

@tf.function(input_signature=[tf.TensorSpec((None, 4))])
def f(x):
    product = tf.matmul(x, weights)
    return tf.split(product, 2, axis=1), tf.unstack(product, axis=1)

f(tf.ones((3, 4)))
told["closed"] = kept[0].output_shapes("MatMul")
print(json.dumps(told))
"""


def test_shapes_are_those_of_the_graph_and_unknown_dimensions_are_minus_one(site_folder):
    ended = running.run(["-c", PROGRAM], site_folder, running.switched_on())
    told = json.loads(ended.out.splitlines()[-1])
    assert told == {
        "MatMul": [[-1, 20]],
        "Split": [[-1, 10], [-1, 10]],
        "Unpack": [[-1]] * 20,
        "ReadVariableOp": [[4, 20]],
        "nothing": [],
        "closed": [],
    }
