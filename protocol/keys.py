"""Task keys: what may be one, how one looks after a trip, and the two names derived from it.

Must not know: tasks, messages, dask (the functions here give what dask's own give; a test compares them).
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

#: What names a task. Dask allows str, bytes, int, float, and tuples of these at any depth.
Key: TypeAlias = "str | bytes | int | float | tuple[Key, ...]"

_HEX_WORD = re.compile("[a-f]+")
_HEX_DIGEST = re.compile("[a-f0-9]{32}")


def normalize_key(obj: Any) -> Any:
    """The key with tuples where msgpack gave lists, at any depth."""
    if type(obj) is list or type(obj) is tuple:
        return tuple([normalize_key(x) if type(x) is list or type(x) is tuple else x for x in obj])
    return obj


def key_split(key: Any) -> str:
    """The name of the key's prefix: ``("sum-partial-0a1b", 3)`` is of ``"sum-partial"``.

    Never raises: what has no name is ``"Other"``.
    """
    while type(key) is tuple and key:
        key = key[0]
    if type(key) is bytes:
        try:
            key = key.decode()
        except UnicodeDecodeError:
            return "Other"
    if not isinstance(key, str) or not key:
        return "Other"
    words = key.split("-")
    first = words[0]
    if not first:
        return "Other"
    name = first if first[0].isalpha() else first.split(",")[0].strip("_'()\"")
    for word in words[1:]:
        # a word of eight letters a-f is a piece of a hash
        if not word.isalpha() or (len(word) == 8 and _HEX_WORD.match(word)):
            break
        name += "-" + word
    if len(name) == 32 and _HEX_DIGEST.match(name):
        return "data"
    if not name:
        return "Other"
    if name[0] == "<":
        parts = name.strip("<>").split()
        return parts[0].split(".")[-1] if parts else "Other"
    return name


def key_group(key: Any) -> Any:
    """The name of the key's group: ``("sum-partial-0a1b", 3)`` is of ``"sum-partial-0a1b"``.

    As in dask, the first element of a tuple is its group whatever its type is.
    """
    if isinstance(key, tuple):
        return key[0] if key else "Other"
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            return "Other"
    if not isinstance(key, str):
        return "Other"
    if not key:
        return "Other"
    if key[0] == "(":
        return key.split(",", 1)[0].strip("()\"'")
    if len(key) == 32 and _HEX_DIGEST.match(key):
        return "data"
    if key[0] == "<":
        parts = key.strip("<>").split()
        return parts[0].split(".")[-1] if parts else "Other"
    return key_split(key)
