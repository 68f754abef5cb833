"""A program can start and end clusters repeatedly without leaks. (A stock worker in the same process leaks, on any scheduler.)"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import gc, json
import psutil
from paceline.scheduler import LocalCluster

def look():
    gc.collect()
    process = psutil.Process()
    children = len(process.children(recursive=True))
    return len(gc.get_objects()), process.num_fds(), process.num_threads(), children

seen = []
for i in range(40):
    with LocalCluster(n_workers=0, dashboard_address=None):
        pass
    if i in (9, 39):
        seen.append(look())
print(json.dumps(seen))
"""


def test_starts_leak_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100
    )
    (objects, *before), (objects_later, *after) = json.loads(done.stdout.splitlines()[-1])
    assert after == before, "descriptors, threads, children"
    assert objects_later - objects < 30, "less than one per start"
