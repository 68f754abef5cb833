"""Keys of graphs, and other values, that msgpack can encode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.protocol.keys import (
    INT_MAX,
    INT_MIN,
    KEY_NBYTES_MAX,
    check_encodable,
    check_length,
    key_nbytes,
)


def plain_key(key: Any) -> Any:
    """Return a key that msgpack can encode and that equals `key`. numpy scalars become Python's.

    Raises:
        TypeError: Not a key, as in stock's ``validate_key``.
        OverflowError: An int of more than 64 bits.
        ValueError: The key is too long or not UTF-8.
    """
    if type(key) is tuple and _is_plain(key):
        return key
    if key_nbytes(key) > KEY_NBYTES_MAX:
        check_length(key)
    kind = type(key)
    if kind is tuple:
        return tuple([plain_key(element) for element in key])
    if kind is str or kind is bytes or kind is float:
        if kind is str and not key.isascii():
            check_encodable(key)
        return key
    if kind is int:
        if not INT_MIN <= key <= INT_MAX:
            raise OverflowError(f"the key {key!r} has more than 64 bits")
        return key
    return plain_key(_as_builtin(key))


def _is_plain(key: tuple[Any, ...]) -> bool:
    """Return whether `key` has ASCII texts and 64-bit ints only, and is not too long."""
    nbytes = len(key)
    for element in key:
        if type(element) is str and element.isascii():
            nbytes += len(element)
        elif type(element) is not int or not INT_MIN <= element <= INT_MAX:
            return False
    return nbytes <= KEY_NBYTES_MAX


def _as_builtin(key: Any) -> Any:
    """Convert an instance of a subclass, or a numpy scalar, to a builtin value."""
    kinds: tuple[type[Any], ...] = (str, bytes, bool, int, float, tuple)
    for plain in kinds:
        if isinstance(key, plain):
            return int(key) if plain is bool else plain(key)
    item = getattr(key, "item", None)
    if item is not None and type(key).__module__ == "numpy":
        return item()
    raise TypeError(f"Unexpected key type {type(key)} (value: {key!r})")


def is_encodable(value: int | str) -> bool:
    """Return whether msgpack can encode `value`: an int of 64 bits, or text that is UTF-8."""
    if isinstance(value, int):
        return INT_MIN <= value <= INT_MAX
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_keys(keys: Iterable[Any]) -> list[Any]:
    """Return keys that msgpack can encode."""
    return [plain_key(key) for key in keys]
