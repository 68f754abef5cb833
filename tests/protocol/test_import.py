"""The protocol imports and works without dask."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dask", "distributed", "cloudpickle", "pickle5", "tornado", "numpy", "asyncio"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import pkgutil, importlib, paceline.protocol
names = [m.name for m in pkgutil.walk_packages(paceline.protocol.__path__, "paceline.protocol.")]
for name in names:
    importlib.import_module(name)
from paceline.protocol.connection import Connection
a, b = Connection("listener"), Connection("connector")
a.receive_frames(b.start())
assert b.receive_frames(a.start())
for unwanted in ("dask", "distributed", "asyncio", "socket", "random", "threading", "logging"):
    assert unwanted not in sys.modules or unwanted in before, unwanted
print(len(names))
"""


def test_without_dask() -> None:
    program = "import sys; before = set(sys.modules)\n" + PROGRAM
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15
