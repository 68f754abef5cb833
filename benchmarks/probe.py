"""A second client that sends the scheduler a request every few milliseconds.

It is a process of its own: a thread of the first client would wait for that client's GIL too.

usage: python -m benchmarks.probe ADDRESS

The command prints `ready`. For each line that it reads, it prints the longest response time in
milliseconds since the previous line.
"""

from __future__ import annotations

import select
import sys
import time
import warnings

INTERVAL_SECONDS = 0.005


def main(address: str) -> None:
    """Send requests to the scheduler at `address` until standard input is closed."""
    from distributed import Client

    # zero workers report no versions
    warnings.filterwarnings("ignore", message="\\s*Mismatched versions")
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
