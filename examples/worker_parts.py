"""What the worker among the examples needs besides the protocol: values as pickles, and what it says of itself."""

import pickle
import sys
from importlib.metadata import distributions

import cloudpickle
from paceline.protocol.payload import (
    Payload,
    payload_members,
    payload_pickle,
    serialized_payload,
)

PACKAGES = "dask distributed msgpack cloudpickle tornado toolz numpy pandas lz4"
METRICS = {  # what a stock scheduler reads of a heartbeat
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
    """Schedulers and clients warn of differences."""
    found = {d.name: d.version for d in distributions() if d.name in PACKAGES.split()}
    found["python"] = ".".join(map(str, sys.version_info))
    return {"host": {}, "packages": found}


def opened(value):
    """What a closed value holds. This runs code of whoever closed it, as every worker of Dask does."""
    if not isinstance(value, Payload):
        return pickle.loads(value) if isinstance(value, bytes) else value
    if members := payload_members(value):  # a collection that was closed one by one
        kind, pairs = members
        if kind == "dict":
            return {key: opened(inner) for key, inner in pairs}
        return {"list": list, "tuple": tuple, "set": set}[kind](opened(inner) for _, inner in pairs)
    pickled, buffers = payload_pickle(value)
    return pickle.loads(pickled, buffers=buffers)


def closed(value, protocol: int = 5) -> Payload:
    """The value as a pickle; from protocol 5 on its buffers travel as frames of their own."""
    buffers: list[pickle.PickleBuffer] = []
    callback = buffers.append if protocol >= 5 else None
    pickled = cloudpickle.dumps(value, protocol=protocol, buffer_callback=callback)
    views = [buffer.raw() for buffer in buffers]
    header = {"serializer": "pickle", "writeable": [not view.readonly for view in views]}
    return serialized_payload(header, [pickled, *views])


def failure(error: BaseException) -> dict:
    """What messages and replies say of an error. Its pickle is closed: readers open one lid, then the other."""
    try:
        return {"exception": closed(cloudpickle.dumps(error)), "exception_text": repr(error)}
    except Exception:
        return failure(RuntimeError(repr(error)))


def size(value) -> int:
    return int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)
