"""Values in messages that msgpack cannot encode.

Stock sends a ``np.int64`` as a pickle of its own in place of a number. Unpickling runs code of the
sender, so only what numpy scalars need is allowed here; other values stay serialized.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from paceline.protocol.keys import INT_MAX, INT_MIN
from paceline.protocol.payload import Payload, payload_pickle, pickled_payload, serialized_payload
from paceline.workers_compat.graphs.spec_pickler import stock_pickle
from paceline.workers_compat.security.unpickling import serialize_result

#: Module and name of the globals in the pickle of a numpy scalar.
ALLOWED = frozenset(
    {
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "scalar"),
        ("_codecs", "encode"),
    }
)


class _ScalarUnpickler(pickle.Unpickler):
    """Unpickles only numbers and texts."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a number")
        return super().find_class(module, name)


def read_scalar(payload: Payload) -> Any:
    """Return the number or text in a pickled value.

    Return `payload` if it holds anything else, or if msgpack cannot encode the value.
    """
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
    """Return a value of a reply in the form in which stock sends it.

    Values that plugins mark (``ToPickle``, ``to_serialize``) are serialized as marked.

    Raises:
        Exception: `value` cannot be pickled.
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
