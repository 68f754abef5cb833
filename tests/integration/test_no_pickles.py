"""The scheduler does not unpickle user data: Python's audit events list the classes that were looked up while it ran."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from distributed import get_client, get_worker
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.diagnostics.progress_stream import progress_stream

from tests.support.real_cluster import PACELINE, Cluster, overridden

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: Run in the scheduler: record the classes that unpickling looks up.
AUDIT = """
import sys

def note(event, arguments):
    if event == "pickle.find_class":
        with open({path!r}, "a") as file:
            file.write(".".join(map(str, arguments)) + "\\n")

def dask_setup(scheduler):
    sys.addaudithook(note)
"""


def by_value() -> tuple[Any, Any]:
    """A class and a function that workers can use without importing a module."""

    class Opaque:
        """A value of a user-defined class."""

        def __init__(self, value: int) -> None:
            self.value = value

    def increment(box: Opaque) -> Opaque:
        get_worker().log_event("topic", {"plain": 1})
        get_client().set_metadata(["box"], {"x": 1})
        return Opaque(box.value + 1)

    return Opaque, increment


class Nothing(SchedulerPlugin):
    """A plugin."""


@pytest.mark.skipif(overridden(), reason="sets an option of paceline")
def test_nothing_is_unpickled_and_errors_give_the_reason(tmp_path: Path) -> None:
    found = tmp_path / "found"
    (tmp_path / "audit_pickles.py").write_text(AUDIT.format(path=str(found)))
    cluster = Cluster(
        scheduler=PACELINE,
        folder=tmp_path / "cluster",
        nannies=[False],
        options=["--preload", str(tmp_path / "audit_pickles.py")],
        config={"DASK_DISTRIBUTED__SCHEDULER__PICKLE": "False"},
    )
    with cluster, cluster.client() as client:
        use(client)
        assert not found.exists(), found.read_text()
        refused(client)
        assert client.submit(int, 1).result() == 1


def use(client: Any) -> None:
    """Run ordinary programs."""
    import dask.array as da

    Opaque, increment = by_value()
    assert client.submit(increment, Opaque(1)).result().value == 2
    assert client.gather(client.scatter([Opaque(1)], direct=False), direct=False)[0].value == 1
    assert da.ones((100, 100), chunks=(10, 10)).sum().compute() == 10_000
    failed = client.submit(lambda: 1 / 0)
    assert type(failed.exception()) is ZeroDivisionError
    events = [event for _, event in client.get_events("topic")]
    assert events[0]["plain"] == 1
    client.publish_dataset(boxed=client.submit(Opaque, 1))
    assert client.get_dataset("boxed").result().value == 1
    client.set_metadata(["box"], Opaque(1))
    assert client.get_metadata(["box"]).value == 1
    client.run(time.sleep, 0.001)


def refused(client: Any) -> None:
    """Send requests that would require unpickling in the scheduler."""
    words = "Cannot unpickle "
    with pytest.raises(ValueError, match=words + "a function to run in it"):
        client.run_on_scheduler(lambda: 1)
    with pytest.raises(ValueError, match=words + "a scheduler plugin"):
        client.register_plugin(Nothing())
    with pytest.raises(ValueError, match=words + "the function `key`"):
        client.sync(client.scheduler.workers_to_close, key=b"\x80\x04N.")

    async def feed() -> Any:
        comm = await progress_stream(client.scheduler.address, 0.1)
        try:
            return await comm.read()
        finally:
            comm.abort()

    answer = client.sync(feed)
    assert "the functions of a feed" in str(answer)
