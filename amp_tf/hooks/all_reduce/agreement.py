"""Checks that all workers of a job have the same settings: otherwise some would skip a step that the others apply.

Workers of a MultiWorkerMirroredStrategy use the key-value store of TensorFlow's coordination service. Each one
publishes that amp_tf is on as soon as it is connected, and its settings at the first ``strategy.run`` after a change of
the settings, which all workers make together. Where settings differ, every worker stops there, before anything is
trained. A worker without amp_tf publishes nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.hooks.loss_scaling import automatic
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import notices
from amp_tf.oplists.op_names import registered_rows

_OF_ONE_WORKER = frozenset({"log_path", "report_path"})
_PRESENCE_SECONDS = 60.0  # the others connected together with this one, and published at once
_SETTINGS_SECONDS = 600.0  # until all workers have reached the same step
_lock = threading.Lock()
_config: AmpConfig | None = None
_patches = Patches()
_is_announced = False
_agreed: AmpConfig | None = None  # the settings that were compared last
_rounds = itertools.count(1)  # of comparisons, which all workers make in the same order


def install(config: AmpConfig) -> None:
    """Starts comparing the settings of workers. Idempotent."""
    from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib

    global _config
    _config = config
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    _patches.put(extended, "_initialize_multi_worker", calling(_connect))
    _patches.put(distribute_lib.StrategyBase, "run", calling(_run))
    _try(_announce)  # the program may have connected before it turned amp_tf on


def uninstall() -> None:
    """Stops comparing the settings of workers. Idempotent."""
    global _config
    _config = None
    _patches.restore()


def _connect(original: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    _try(_announce)
    return result


def _run(original: Any, strategy: Any, /, *args: Any, **kwargs: Any) -> Any:
    global _agreed
    if _config is not _agreed:
        _agreed = _config
        if difference := _try(_compare):
            raise ConfigError(
                difference,
                where=f"MultiWorkerMirroredStrategy, {_name(_key(_server()))}",
                fix="Set the same variables of amp_tf for every worker, AMP_TF_PRECISION where their devices differ: "
                "what one of them skips, all must skip",
            )
    return original(strategy, *args, **kwargs)


def _try(action: Callable[[], str]) -> str:
    """The result of an action; where it fails, an empty string and one warning, and the program goes on."""
    try:
        return action()
    except Exception as error:
        what = f"the settings of the workers are not compared ({type(error).__name__}: {error})"
        notices.warn_once("workers", what, where="MultiWorkerMirroredStrategy", fix="Set the same ones for each worker")
        return ""


def _announce() -> str:
    """Tells the other workers that amp_tf is on here, if this process is a worker that is connected."""
    global _is_announced
    from tensorflow.python.eager import context

    with _lock:
        if not _is_announced and (server := _server()) is not None:
            context.context().set_config_key_value(_key(server), "on")
            _is_announced = True
    return ""


def _compare() -> str:
    """How the settings of another worker differ from those here; empty where none do."""
    server = _server()
    if server is None or _config is None:
        return ""
    from tensorflow.python.eager import context

    _announce()
    settings = {name: value for name, value in dataclasses.asdict(_config).items() if name not in _OF_ONE_WORKER}
    settings["lock"] = _config.read_lock().digest  # the file may lie elsewhere there
    mine = json.dumps({**settings, "loss scaling": automatic.is_scaling(), **_registered_ops()})
    round_number = next(_rounds)
    context.context().set_config_key_value(f"{_key(server)}/{round_number}", mine)
    others = _workers(server)
    present = _read(others, _PRESENCE_SECONDS)
    for other in others:
        if other not in present:
            return f"{_name(other)} runs without amp_tf"
    found = _read([f"{other}/{round_number}" for other in others], _SETTINGS_SECONDS)
    for other in others:
        theirs = found.get(f"{other}/{round_number}")
        if theirs is None:
            raise TimeoutError(f"{_name(other)} publishes none within {_SETTINGS_SECONDS / 60:.0f} minutes")
        if theirs != mine:
            return f"{_name(other)} {_difference(theirs, mine)}"
    return ""


def _registered_ops() -> dict[str, str]:
    """The lists of the ops that libraries registered here, by what :func:`_difference` calls them."""
    return {f"the list of op {row.op}": row.op_list for row in registered_rows()}


def _read(keys: list[str], seconds: float) -> dict[str, str]:
    """The values of those keys that arrive within a number of seconds."""
    from tensorflow.python.eager import context

    found: dict[str, str] = {}

    def read() -> None:
        for key in keys:
            found[key] = context.context().get_config_key_value(key)

    reader = threading.Thread(target=read, name="amp_tf workers", daemon=True)  # it may wait for ever
    reader.start()
    reader.join(seconds)
    return found


_JOBS = ("chief", "worker")


def _server() -> Any:
    """The ServerDef of this worker, if it is connected; else ``None``."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    is_connected = running is not None and running._initialized and running.coordination_service is not None
    return running._collective_ops_server_def if is_connected else None


def _workers(server: Any) -> list[str]:
    """The keys of all workers."""
    return [f"amp_tf/{job.name}/{task}" for job in server.cluster.job if job.name in _JOBS for task in job.tasks]


def _key(server: Any) -> str:
    return f"amp_tf/{server.job_name}/{server.task_index}"


def _name(key: str) -> str:
    return " ".join(key.split("/")[1:3])


def _difference(theirs: str, mine: str) -> str:
    known, own = json.loads(theirs), json.loads(mine)
    pairs = [(name, known.get(name), own.get(name)) for name in {**known, **own} if known.get(name) != own.get(name)]
    return "and this one differ in amp_tf's settings: " + "; ".join(
        f"{name} is {there!r} there and {here!r} here" for name, there, here in pairs
    )
