"""Serialization and metadata for `worker_on_protocol.py`."""

import pickle
import sys
from importlib.metadata import distributions

import cloudpickle
from paceline.protocol.payload import Payload, payload_members, payload_pickle, serialized_payload

PACKAGES = "dask distributed msgpack cloudpickle tornado toolz numpy pandas lz4"
METRICS = {  # the fields of a heartbeat that a stock scheduler reads
    "bandwidth": {"total": 100_000_000, "workers": {}, "types": {}},
    "spilled_bytes": {"memory": 0, "disk": 0},
    "digests_total_since_heartbeat": {},
    "task_counts": {},
    "managed_bytes": 0,
    "memory": 0,
    "cpu": 0.0,
    "event_loop_interval": 0.02,
}


def versions() -> dict:
    """Return the versions that schedulers and clients compare."""
    found = {d.name: d.version for d in distributions() if d.name in PACKAGES.split()}
    found["python"] = ".".join(map(str, sys.version_info))
    return {"host": {}, "packages": found}


def deserialize(value):
    """Deserialize `value`. As in every Dask worker, this runs code of the sender."""
    if not isinstance(value, Payload):
        return pickle.loads(value) if isinstance(value, bytes) else value
    if members := payload_members(value):  # a collection whose members were serialized one by one
        kind, pairs = members
        if kind == "dict":
            return {key: deserialize(inner) for key, inner in pairs}
        return {"list": list, "tuple": tuple, "set": set}[kind](
            deserialize(inner) for _, inner in pairs
        )
    pickled, buffers = payload_pickle(value)
    return pickle.loads(pickled, buffers=buffers)


def serialize(value, protocol: int = 5) -> Payload:
    """Serialize `value` as a pickle. From protocol 5 on, its buffers become separate frames."""
    buffers: list[pickle.PickleBuffer] = []
    callback = buffers.append if protocol >= 5 else None
    pickled = cloudpickle.dumps(value, protocol=protocol, buffer_callback=callback)
    views = [buffer.raw() for buffer in buffers]
    header = {"serializer": "pickle", "writeable": [not view.readonly for view in views]}
    return serialized_payload(header, [pickled, *views])


def error_fields(error: BaseException) -> dict:
    """Return the fields that describe `error` in messages and replies."""
    try:
        # stock peers expect a pickle inside a pickle
        return {"exception": serialize(cloudpickle.dumps(error)), "exception_text": repr(error)}
    except Exception:
        return error_fields(RuntimeError(repr(error)))


def size(value) -> int:
    """Return the approximate size of `value` in bytes."""
    return int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)
