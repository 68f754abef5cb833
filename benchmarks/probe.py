"""A second client in a process of its own, which asks the scheduler something every few milliseconds.

A thread of the measuring client would share its interpreter, and show that client's stalls for the scheduler's.

usage: python -m benchmarks.probe ADDRESS    prints `ready`; then, for each line read, the longest answer in ms since the last
"""

from __future__ import annotations

import select
import sys
import time
import warnings

INTERVAL_SECONDS = 0.005


def main(address: str) -> None:
    from distributed import Client

    warnings.filterwarnings("ignore", message="\\s*Mismatched versions")  # zero workers tell none
    with Client(address, set_as_default=False) as client:
        client.ncores()
        print("ready", flush=True)
        longest = 0.0
        while True:
            started = time.perf_counter()
            client.ncores()
            longest = max(longest, (time.perf_counter() - started) * 1e3)
            if select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]:
                if not sys.stdin.readline():
                    return
                print(longest, flush=True)
                longest = 0.0


if __name__ == "__main__":
    main(sys.argv[1])
