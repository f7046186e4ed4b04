"""Workers of one job must have the same settings: else a step that some of them skip is applied by the others.

Each worker of a MultiWorkerMirroredStrategy writes its settings to the key-value store of TensorFlow's coordination
service as soon as it is connected, and reads those of the others at the first ``strategy.run``, which all make
together. Where they differ it stops there, before anything was trained, as do the others. A worker without amp_tf
writes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.hooks import notices
from amp_tf.hooks.loss_scaling import automatic
from amp_tf.hooks.patches import Patches, calling

_OF_ONE_WORKER = frozenset({"log_path", "report_path"})
_WAIT_SECONDS = 60.0  # the others connected when this one did, and wrote right after that
_lock = threading.Lock()
_config: AmpConfig | None = None
_patches = Patches()
_is_written = False
_agreed: AmpConfig | None = None  # the settings that were compared last


def install(config: AmpConfig) -> None:
    """Compares the settings of workers from now on. Idempotent."""
    from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib

    global _config
    with _lock:
        _config = config
        extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
        _patches.put(extended, "_initialize_multi_worker", calling(_connect))
        _patches.put(distribute_lib.StrategyBase, "run", calling(_run))
    _write()  # the program may have connected before it turned amp_tf on


def uninstall() -> None:
    """Compares nothing from now on. Idempotent."""
    global _config
    with _lock:
        _config = None
        _patches.restore()


def _connect(original: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    _write()
    return result


def _run(original: Any, strategy: Any, /, *args: Any, **kwargs: Any) -> Any:
    global _agreed
    if _config is not _agreed:
        if settings := _write():
            _compare(settings)
        _agreed = _config
    return original(strategy, *args, **kwargs)


def _write() -> str:
    """Lets the other workers know the settings; empty where this process is no worker, or cannot tell."""
    global _is_written
    server = _server()
    if server is None or _config is None:
        return ""
    from tensorflow.python.eager import context

    settings = {name: value for name, value in dataclasses.asdict(_config).items() if name not in _OF_ONE_WORKER}
    text = json.dumps({**settings, "loss scaling": automatic.is_scaling()})
    try:
        with _lock:
            if not _is_written:  # a job begins once
                context.context().set_config_key_value(_key(server.job_name, server.task_index), text)
                _is_written = True
    except Exception as error:
        what = f"the settings of the workers are not compared ({type(error).__name__}: {error})"
        notices.warn_once("workers", what, where="MultiWorkerMirroredStrategy", fix="Set the same ones for each worker")
        return ""
    return text


def _compare(mine: str) -> None:
    """
    Raises:
        ConfigError: another worker has other settings, or none.
    """
    from tensorflow.python.eager import context

    server, found = _server(), dict[str, str]()
    me = _key(server.job_name, server.task_index)
    others = [_key(job.name, task) for job in server.cluster.job if job.name in _JOBS for task in job.tasks]

    def read() -> None:
        for other in others:
            found[other] = context.context().get_config_key_value(other)

    reader = threading.Thread(target=read, name="amp_tf workers", daemon=True)  # which may wait without end
    reader.start()
    reader.join(_WAIT_SECONDS)
    for other in others:
        if found.get(other) != mine:
            raise ConfigError(
                f"{_name(other)} {_difference(found.get(other), mine)}",
                where=f"MultiWorkerMirroredStrategy, {_name(me)}",
                fix="Set the same variables of amp_tf for every worker: what one of them skips, all must skip",
            )


_JOBS = ("chief", "worker")


def _server() -> Any:
    """The ServerDef of a worker that is connected; else ``None``."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    is_connected = running is not None and running._initialized and running.coordination_service is not None
    return running._collective_ops_server_def if is_connected else None


def _key(job: str, task: int) -> str:
    return f"amp_tf/{job}/{task}"


def _name(key: str) -> str:
    _, job, task = key.split("/")
    return f"{job} {task}"


def _difference(theirs: str | None, mine: str) -> str:
    if theirs is None:
        return "runs without amp_tf"
    known, own = json.loads(theirs), json.loads(mine)
    pairs = [(name, known.get(name), own.get(name)) for name in {**known, **own} if known.get(name) != own.get(name)]
    return "and this one differ in amp_tf's settings: " + "; ".join(
        f"{name} is {there!r} there and {here!r} here" for name, there, here in pairs
    )
