"""Compares the settings of all workers of a job before anything is trained.

If they differ, some workers would skip a step that the others apply. Workers of a
MultiWorkerMirroredStrategy publish in the key-value store of TensorFlow's coordination service:
that amp_tf is on, as soon as they are connected, and their settings, at the first ``strategy.run``
after a change. All workers make that call together. If settings differ, every worker stops there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.hooks import internals, loss_scaling, notices
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.state import current, record, settings
from amp_tf.oplists.op_names import registered_rows

_OF_ONE_WORKER = frozenset({"log_path", "report_path"})
_PRESENCE_SECONDS = 60.0  # the others connected together with this one, and publish at once
_SETTINGS_SECONDS = 600.0  # until all workers have reached the same step


@dataclasses.dataclass
class _Job:
    """The state of this process as a part of a job."""

    is_announced: bool = False
    agreed: AmpConfig | None = None  #: the settings that were compared last
    rounds: int = 0  #: comparisons, which all workers make in the same order


def install(patches: Patches) -> None:
    """Compares the settings of workers from now on. Idempotent."""
    internals.CONNECT_WORKERS.surround(patches, _connect)
    internals.STEPS_OF_WORKERS.surround(patches, _run)
    with _surviving():
        _announce()  # the program may have connected before it turned amp_tf on


def _connect(call: Any) -> Any:
    result = call()
    with _surviving():
        _announce()
    return result


def _run(call: Any) -> Any:
    job = record(_Job)
    if settings() is not job.agreed:
        job.agreed = settings()
        difference = ""
        with _surviving():
            difference = _compare()
        if difference:
            raise ConfigError(
                difference,
                where=f"MultiWorkerMirroredStrategy, {_name(_key(_server()))}",
                fix=(
                    "Set the same variables of amp_tf for every worker, AMP_TF_PRECISION where "
                    "their devices differ: what one of them skips, all must skip"
                ),
            )
    return call()


def _surviving() -> contextlib.AbstractContextManager[None]:
    return notices.surviving(
        "workers",
        "the settings of the workers are not compared",
        where="MultiWorkerMirroredStrategy",
        fix="Set the same ones for each worker",
    )


def _announce() -> None:
    """Announces to the other workers of a job that amp_tf is on here, once it is connected."""
    job = record(_Job)
    with current().lock:
        server = _server()
        if server is not None and not job.is_announced:
            _publish(_key(server), "on")
            job.is_announced = True


def _compare() -> str:
    """Describes how the settings of another worker differ from those here; empty if none do."""
    server = _server()
    if server is None:
        return ""
    _announce()
    mine = _facts()
    job = record(_Job)
    job.rounds += 1
    suffix = f"/{job.rounds}"
    _publish(f"{_key(server)}{suffix}", json.dumps(mine))
    others = []
    for group in server.cluster.job:
        if group.name in ("chief", "worker"):
            others += [f"amp_tf/{group.name}/{task}" for task in group.tasks]
    present = _read(others, "", _PRESENCE_SECONDS)
    for other in others:
        if other not in present:
            return f"{_name(other)} runs without amp_tf"
    found = _read(others, suffix, _SETTINGS_SECONDS)
    _publish(f"{_key(server)}{suffix}/read", "yes")
    for other in others:
        if other not in found:
            minutes = f"{_SETTINGS_SECONDS / 60:.0f} minutes"
            raise TimeoutError(f"{_name(other)} publishes none within {minutes}")
        differences = _differences(json.loads(found[other]), mine)
        if differences:
            # Waits until all have read: if the coordinator ends, the others are cut off.
            _read(others, f"{suffix}/read", _PRESENCE_SECONDS)
            both = "; ".join(differences)
            return f"{_name(other)} and this one differ in amp_tf's settings: {both}"
    return ""


def _facts() -> dict[str, Any]:
    """The settings that all workers must share, as JSON holds them."""
    facts = dataclasses.asdict(settings())
    for name in _OF_ONE_WORKER:
        del facts[name]
    facts["loss scaling"] = loss_scaling.runs_in_float16()
    for row in registered_rows():
        facts[f"the list of op {row.op}"] = row.op_list
    return dict(json.loads(json.dumps(facts)))


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    found = []
    for name in {**theirs, **mine}:
        there = theirs.get(name)
        here = mine.get(name)
        if there != here:
            found.append(f"{name} is {there!r} there and {here!r} here")
    return found


def _publish(key: str, value: str) -> None:
    from tensorflow.python.eager import context

    context.context().set_config_key_value(key, value)


def _read(workers: list[str], suffix: str, seconds: float) -> dict[str, str]:
    """The values that workers publish within a number of seconds under a suffix."""
    from tensorflow.python.eager import context

    found: dict[str, str] = {}

    def read() -> None:
        for worker in workers:
            found[worker] = context.context().get_config_key_value(worker + suffix)

    # It may wait for ever.
    reader = threading.Thread(target=read, name="amp_tf workers", daemon=True)
    reader.start()
    reader.join(seconds)
    return found


def _server() -> Any:
    """The ServerDef of this worker, if it is connected."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    if running is None or not running._initialized or running.coordination_service is None:
        return None
    return running._collective_ops_server_def


def _key(server: Any) -> str:
    return f"amp_tf/{server.job_name}/{server.task_index}"


def _name(key: str) -> str:
    return " ".join(key.split("/")[1:3])
