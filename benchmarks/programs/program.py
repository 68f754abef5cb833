"""A program with its input files, and the command line of the modules that define programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

#: In place of the address: write the input files, and run nothing.
DATA_ONLY = "data"

Function = Callable[[Client, Path], Any]
Data = Callable[[Path], None]


@dataclass(frozen=True)
class Program:
    """A function of a client and a folder that returns numbers, texts, or containers of them.

    Attributes:
        function: the program.
        data: a function that writes the input files into the folder, or None.
        tolerance: the relative difference of numbers that two runs may have.
    """

    function: Function
    data: Data | None
    tolerance: float


PROGRAMS: dict[str, Program] = {}


def program(data: Data | None = None, tolerance: float = 1e-6) -> Callable[[Function], Function]:
    """Return a decorator that adds a function to `PROGRAMS`."""

    def add(function: Function) -> Function:
        PROGRAMS[function.__name__] = Program(function, data, tolerance)
        return function

    return add


def main() -> None:
    """Run the program of the command line and print its duration and result as JSON."""
    name, address, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    chosen = PROGRAMS[name]
    if address == DATA_ONLY:
        if chosen.data:
            chosen.data(folder)
        return
    started = time.perf_counter()
    with Client(address) as client:
        result = chosen.function(client, folder)
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "tolerance": chosen.tolerance, "result": result}
    print(json.dumps(found, default=lambda value: np.asarray(value).tolist()))
