"""Numbers that stock peers pickle because msgpack has no word for them, and values of ours that it has none for.

Stock sends a ``np.int64`` as a pickle of its own wherever a number may stand. Opening pickles runs their sender's code, so
only what a numpy scalar needs is allowed here; anything else stays closed.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from paceline.protocol.keys import INT_MAX, INT_MIN
from paceline.protocol.payload import Payload, payload_pickle, pickled_payload, serialized_payload
from paceline.workers_compat.graphs.spec_pickler import stock_pickle
from paceline.workers_compat.security.unpickling import serialize_result

#: What the pickle of a numpy scalar names.
ALLOWED = frozenset(
    {
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "scalar"),
        ("_codecs", "encode"),
    }
)


class _ScalarUnpickler(pickle.Unpickler):
    """Opens nothing but numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a number")
        return super().find_class(module, name)


def read_scalar(payload: Payload) -> Any:
    """Return the number or text in a pickled value, or `payload` itself if it holds anything else, or what msgpack cannot encode."""
    try:
        data, buffers = payload_pickle(payload)
        if buffers:
            return payload
        value = _ScalarUnpickler(io.BytesIO(data)).load()
    except Exception:
        return payload
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, bool | float) or value is None:
        return value
    return value if isinstance(value, int | str) and _is_encodable(value) else payload


def _is_encodable(value: int | str) -> bool:
    """Return whether msgpack can encode `value` when it is sent on."""
    if isinstance(value, int):
        return INT_MIN <= value <= INT_MAX
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def serialize_value(value: Any) -> Payload:
    """A value of a reply that msgpack cannot say, pickled as stock pickles it in its place.

    What plugins mark as stock does (``ToPickle``, ``to_serialize``) is closed as its mark says.

    Raises:
        Exception: it cannot be pickled.
    """
    from distributed.protocol.serialize import Serialize, Serialized, ToPickle

    if isinstance(value, Serialized):
        return serialized_payload(value.header, value.frames)
    if isinstance(value, Serialize):
        return serialize_result(value.data)
    if isinstance(value, ToPickle):
        value = value.data
    data, buffers = stock_pickle(value)
    return pickled_payload(data, [memoryview(b).tobytes("A") for b in buffers])
