"""Task keys: which values are valid, and the names of the prefix and group of a key."""

from __future__ import annotations

import math
import re
from typing import Any, Final, TypeAlias

#: A task key. Dask allows str, bytes, int, float, and tuples of these at any depth.
Key: TypeAlias = "str | bytes | int | float | tuple[Key, ...]"

#: Longest key, and longest name of a queue, lock, topic and the like: the sum of characters of
#: text, bytes, and items of tuples.
KEY_NBYTES_MAX: Final = 64 * 2**10
#: msgpack encodes these ints.
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
#: Characters of an invalid key that an error quotes.
QUOTED_MAX = 80

_HEX_WORD = re.compile("[a-f]+")
_HEX_DIGEST = re.compile("[a-f0-9]{32}")


def normalize_key(obj: Any) -> Any:
    """Return `obj` with tuples for the lists that msgpack decodes, at any depth."""
    if type(obj) is list or type(obj) is tuple:
        return tuple([normalize_key(x) if type(x) is list or type(x) is tuple else x for x in obj])
    return obj


def normalize_keys(values: list[Any]) -> list[Any]:
    """Replace the lists in `values`, decoded keys, with tuples, and return `values`.

    Tuples share equal first elements.
    """
    shared: dict[str, str] = {}
    for row, value in enumerate(values):
        if type(value) is list:
            if value and type(value[0]) is str:
                value[0] = shared.setdefault(value[0], value[0])
            key = tuple(value)
            try:
                hash(key)
            except TypeError:  # it contains lists
                key = normalize_key(value)
            values[row] = key
    return values


def check_key(key: Any) -> None:
    """Check that `key` can name a task or a shared object: every peer can encode and find it.

    Raises:
        TypeError: it is not a str, bytes, number or tuple of these.
        ValueError: it is too long or NaN, or a text or an int in it cannot be encoded.
    """
    check_length(key)
    check_encodable(key)


def check_length(key: Any) -> None:
    """Raise ValueError if `key` is longer than ``KEY_NBYTES_MAX``."""
    if key_nbytes(key) > KEY_NBYTES_MAX:
        raise ValueError(
            f"A key or name may have {KEY_NBYTES_MAX} bytes; this one is longer: {quoted(key)}"
        )


def key_nbytes(key: Any) -> int:
    """Return the characters of text and bytes in `key`, plus one for each item of its tuples."""
    kind = type(key)
    if kind is str or kind is bytes:
        return len(key)
    if kind is not tuple and kind is not list:
        return 1
    n = len(key)
    for x in key:
        kind = type(x)
        if kind is str or kind is bytes:
            n += len(x)
        elif kind is tuple or kind is list:
            n += key_nbytes(x)
    return n


def quoted(key: Any) -> str:
    """Return the beginning of `key` for an error message."""
    if isinstance(key, str | bytes):
        key = key[:QUOTED_MAX]
    return repr(key)[:QUOTED_MAX] + "..."


def check_encodable(key: Any) -> None:
    """Raise TypeError or ValueError if `key` does not keep its identity in msgpack."""
    kind = type(key)
    if kind is tuple:
        for x in key:
            check_encodable(x)
    elif kind is str:
        try:
            key.isascii() or key.encode()
        except UnicodeEncodeError:
            raise ValueError("A text in a key cannot be encoded as UTF-8") from None
    elif kind is int:
        if not INT_MIN <= key <= INT_MAX:
            raise ValueError("An int in a key may have 64 bits; this one has more")
    elif kind is float:
        if math.isnan(key):
            raise ValueError("NaN cannot be a key: it does not equal itself")
    elif kind is not bytes and kind is not bool:
        raise TypeError(f"Unexpected key type {kind} (value: {quoted(key)})")


def check_prefix(key: Any) -> None:
    """Raise the error that dask raises if it cannot derive a prefix and a group from `key`.

    Workers and the stock scheduler fail on such a key.

    Raises:
        IndexError: the key begins with an empty tuple, or is a text without a name, such as
            ``""`` or ``"<>"``.
        UnicodeDecodeError: its name is not valid UTF-8.
    """
    first = key
    while type(first) is tuple:
        if not first:
            raise IndexError(f"Invalid key {key!r}: a key must not begin with an empty tuple")
        first = first[0]
    if type(first) is bytes:
        first = first.decode()
    if type(key) is not tuple and isinstance(first, str):
        if not first or (first[0] == "<" and not first.strip("<>").split()):
            raise IndexError(f"Invalid key {key!r}: a key must contain a name")


def has_prefix(key: Any) -> bool:
    """Return whether ``check_prefix`` accepts `key`."""
    try:
        check_prefix(key)
    except (IndexError, UnicodeDecodeError):
        return False
    return True


def key_split(key: Any) -> str:
    """Return the name of the key's prefix: "sum-partial" for ``("sum-partial-0a1b", 3)``.

    Never raises: the prefix of a key without a name is "Other".
    """
    while type(key) is tuple and key:
        key = key[0]
    key = _text(key)
    if not key:
        return "Other"
    words = key.split("-")
    first = words[0]
    if not first:
        return "Other"
    name = first if first[0].isalpha() else first.split(",")[0].strip("_'()\"")
    for word in words[1:]:
        # a word of eight letters a-f is part of a hash
        if not word.isalpha() or (len(word) == 8 and _HEX_WORD.match(word)):
            break
        name += "-" + word
    if len(name) == 32 and _HEX_DIGEST.match(name):
        return "data"
    if not name:
        return "Other"
    return _function_name(name) if name[0] == "<" else name


def _text(key: Any) -> str:
    """Return `key`, a str or bytes, as text; "" for any other key."""
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return ""
    return key if isinstance(key, str) else ""


def _function_name(name: str) -> str:
    """Return the name of a function from its repr, such as ``<function f at 0x1>``."""
    parts = name.strip("<>").split()
    return parts[0].split(".")[-1] if parts else "Other"


def key_group(key: Any) -> Any:
    """Return the name of the key's group: "sum-partial-0a1b" for ``("sum-partial-0a1b", 3)``.

    As in dask, the first element of a tuple is its group, whatever its type.
    """
    if isinstance(key, tuple):
        return key[0] if key else "Other"
    key = _text(key)
    if not key:
        return "Other"
    if key[0] == "(":
        return key.split(",", 1)[0].strip("()\"'")
    if len(key) == 32 and _HEX_DIGEST.match(key):
        return "data"
    return _function_name(key) if key[0] == "<" else key_split(key)
