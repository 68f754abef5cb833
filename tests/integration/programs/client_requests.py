"""Programs that send requests to the scheduler and its workers: state, files, logs, functions to run.

They do not depend on the scheduler that serves them. Each returns a comparable result. Besides successful requests, most try
requests that fail: unknown names, values of the wrong type, waits that time out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Client, Event, get_worker, wait

from .coordination import LONG_SECONDS, SHORT_SECONDS, outcome, unique, until

NOBODY = "tcp://127.0.0.1:1"


def kind(function: Any) -> object:
    """Return the result of a call, or only the type of its error if the text names ports or lines of packages."""
    found = outcome(function)
    return found[0] if isinstance(found, tuple) and len(found) == 2 else found


def some_worker(of: Client) -> str:
    return min(of.scheduler_info(n_workers=-1)["workers"])


# ------------------------------------------------------------------ run


def add(a: int, b: int = 1) -> int:
    return a + b


async def add_later(a: int, b: int = 1) -> int:
    await asyncio.sleep(0.01)
    return a + b


def fail(_: object = None) -> None:
    raise ValueError("on purpose")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise KeyError("on purpose")


def unpicklable() -> object:
    return (i for i in range(3))


def run_everywhere(client: Client) -> object:
    """Run functions on workers, including functions that fail."""
    one = some_worker(client)
    return [
        sorted(client.run(add, 1, b=5).values()),
        sorted(client.run(add_later, 1).values()),
        list(client.run(add, 3, workers=[one]).values()),
        kind(lambda: client.run(add, 1, wait=False)),
        client.run(add_later, 1, wait=False) is not None,
        sorted(client.run(lambda dask_worker: dask_worker.state.nthreads).values()),
        kind(lambda: client.run(fail)),
        kind(lambda: client.run(fail_later)),
        sorted(map(str, client.run(fail, on_error="return").values())),
        client.run(fail, on_error="ignore"),
        len(client.run(add, 1, on_error="no such word")),
        kind(lambda: client.run(add)),
        kind(lambda: client.run(unpicklable)),
        client.run(add, 1, workers=[]),
    ]


def leave_a_word(word: str, dask_scheduler: Any = None) -> None:
    dask_scheduler.word_of_a_program = word


async def leave_a_word_later(word: str, dask_scheduler: Any = None) -> None:
    await asyncio.sleep(0.01)
    dask_scheduler.word_of_a_program = word


def word(dask_scheduler: Any = None) -> str | None:
    return getattr(dask_scheduler, "word_of_a_program", None)


def run_in_the_scheduler(client: Client) -> object:
    """Run functions in the scheduler: plain, asynchronous, without waiting, failing."""
    steps: list[object] = [
        client.run_on_scheduler(add, 1, b=4),
        client.run_on_scheduler(add_later, 1, b=4),
        kind(lambda: client.run_on_scheduler(fail)),
        outcome(lambda: client.run_on_scheduler(fail_later)),
        kind(lambda: client.run_on_scheduler(add)),
        kind(lambda: client.run_on_scheduler(unpicklable)),
    ]
    text = unique("word")
    steps.append(client.run_on_scheduler(leave_a_word_later, text, wait=False))
    steps.append(until(lambda: client.run_on_scheduler(word) == text))
    steps.append(outcome(lambda: client.run_on_scheduler(leave_a_word, "no", wait=False)))
    steps.append(outcome(lambda: client.run_on_scheduler(fail_later, wait=False)))
    steps.append(client.run_on_scheduler(leave_a_word, text + "again"))
    return [*steps, client.run_on_scheduler(word) == text + "again"]


# ------------------------------------------------------------------ contents of workers


def threads_and_data(client: Client) -> object:
    """Call nthreads, has_what, who_has, nbytes and processing, also for unknown workers and keys."""
    one = some_worker(client)
    futures = client.map(operator.add, range(4), range(4), pure=False, workers=[one])
    wait(futures)
    keys = {future.key for future in futures}
    held = client.has_what()
    steps: list[object] = [
        sorted(client.nthreads().values()),
        list(client.nthreads([one]).values()),
        kind(lambda: client.nthreads([NOBODY])),
        client.ncores() == client.nthreads(),
        sorted(held) == sorted(client.nthreads()),
        keys <= set(held[one]),
        list(client.has_what([one])) == [one],
        client.has_what([NOBODY]),
        client.who_has(futures) == dict.fromkeys(keys, (one,)),
        client.who_has(["no such key"]),
        {key: size > 0 for key, size in client.nbytes(summary=False).items() if key in keys}
        == dict.fromkeys(keys, True),
        kind(lambda: client.processing([NOBODY])),
        sorted(client.processing()) == sorted(client.nthreads()),
    ]
    return steps


def waiting_for_workers(client: Client) -> object:
    """Wait for workers that exist, for more than exist until the timeout, and for invalid numbers."""
    return [
        client.wait_for_workers(2, timeout=LONG_SECONDS),
        client.wait_for_workers(1),
        kind(lambda: client.wait_for_workers(50, timeout=SHORT_SECONDS)),
        outcome(lambda: client.wait_for_workers(0)),
        outcome(lambda: client.wait_for_workers("two")),
        outcome(lambda: client.wait_for_workers(1.5)),
    ]


def metadata(client: Client) -> object:
    """Read nested names and defaults, and names that do not exist."""
    name = unique("metadata")
    return [
        client.set_metadata(name, 1),
        client.get_metadata(name),
        client.set_metadata([name + "x", "a", "b"], {"c": [1, 2], "d": None}),
        client.get_metadata([name + "x", "a", "b", "c"]),
        client.get_metadata([name + "x"]),
        kind(lambda: client.get_metadata([name + "x", "no"])),
        kind(lambda: client.get_metadata([name + "x", "a", "b", "c", "d"])),
        client.get_metadata([name + "x", "no"], default=5),
        client.get_metadata(name + "y", default=None),
        kind(lambda: client.get_metadata(name + "y")),
        kind(lambda: client.set_metadata([name, "below a number"], 2)),
        kind(lambda: client.set_metadata([], 1)),
        client.get_metadata(name),
    ]


def call_stacks(client: Client) -> object:
    """Return the call stacks of running tasks; tasks that do not run and unknown keys are omitted."""
    event = Event(unique("stacks"), client=client)

    def hold(event: Event) -> None:
        event.wait(timeout=LONG_SECONDS)

    running = client.submit(hold, event, pure=False)
    done = client.submit(operator.add, 1, 2, pure=False)
    wait(done)
    until(lambda: client.call_stack([running]))
    stacks = client.call_stack([running])
    (by_key,) = stacks.values()
    (frames,) = by_key.values()
    steps = [list(by_key) == [running.key], any("hold" in frame for frame in frames)]
    steps += [client.call_stack([done]), outcome(lambda: client.call_stack(keys=["no such key"]))]
    steps.append(running.key in {key for found in client.call_stack().values() for key in found})
    steps.append(kind(lambda: client.call_stack()))
    event.set()
    running.result(timeout=LONG_SECONDS)
    return [len(step) if isinstance(step, dict) and step else step for step in steps]


# ------------------------------------------------------------------ logs


def complain(name: str, text: str) -> None:
    logging.getLogger(name).warning("%s", text)


def logs(client: Client) -> object:
    """Return the last log lines of the scheduler, workers and nannies: which exist, how many, and from which process."""
    one, text = some_worker(client), unique("complaint")
    client.run_on_scheduler(complain, "distributed.scheduler", text)
    client.run(complain, "distributed.worker", text, workers=[one])
    of_scheduler, of_workers = client.get_scheduler_logs(), client.get_worker_logs()
    of_nannies = kind(lambda: list(map(len, client.get_worker_logs(nanny=True, n=1).values())))
    return [
        ("WARNING", text) in of_scheduler,
        {type(line).__name__ for line in of_scheduler},
        len(client.get_scheduler_logs(n=0)) > 1,
        len(client.get_scheduler_logs(n=1)),
        sorted(of_workers) == sorted(client.nthreads()),
        ("WARNING", text) in of_workers[one],
        [len(lines) for lines in client.get_worker_logs(n=1, workers=[one]).values()],
        kind(lambda: client.get_scheduler_logs(n="many")),
        of_nannies,
    ]


# ------------------------------------------------------------------ versions, files, hardware


def versions(client: Client) -> object:
    """Return the versions of all processes, and the report of mismatches with the client."""
    import warnings

    import distributed.client as of_client

    found = client.get_versions(check=True, packages=["msgpack", "no_such_package"])
    names = ("packages", "host")
    shape = {part: sorted(set(found[part]) & set(names)) for part in ("scheduler", "client")}
    missing = {part: found[part]["packages"].get("no_such_package", "left out") for part in shape}
    plain = of_client.version_module.get_versions

    def odd(packages: object = None) -> dict[str, Any]:
        versions = plain(packages=packages)
        return {**versions, "packages": {**versions["packages"], "tornado": "0.0.1"}}

    of_client.version_module.get_versions = odd
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            client.get_versions(check=True)
    finally:
        of_client.version_module.get_versions = plain
    text = "\n".join(str(each.message) for each in warned)
    return [
        shape,
        missing,
        sorted(found["workers"]) == sorted(client.nthreads()),
        {tuple(sorted(set(each) & set(names))) for each in found["workers"].values()},
        text.splitlines(),
        kind(lambda: client.get_versions(packages=5)),
    ]


def uploaded_files(client: Client) -> object:
    """Upload a module for tasks, the scheduler and graphs; upload broken modules and missing files."""
    name = unique("uploaded").replace("-", "_")
    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder, f"{name}.py")
        good.write_text("class Thing:\n    value = 7\n\ndef seven():\n    return 7\n")
        bad = Path(folder, f"{name}_bad.py")
        bad.write_text("raise RuntimeError('at its import')\n")
        plain = Path(folder, f"{name}.txt")
        plain.write_text("only text\n")
        sent = client.upload_file(str(good))

        def use() -> int:
            import importlib

            return importlib.import_module(name).seven()

        sys.path.insert(0, folder)
        try:
            module = __import__(name)
            by_graph = client.submit(module.seven, pure=False).result(timeout=LONG_SECONDS)
            as_value = client.submit(type, module.Thing(), pure=False).result(timeout=LONG_SECONDS)
        finally:
            sys.path.remove(folder)
        return [
            sorted({value["status"] for value in sent.values()}) if sent else sent,
            client.submit(use, pure=False).result(timeout=LONG_SECONDS),
            client.run_on_scheduler(use),
            by_graph,
            as_value.__name__,
            kind(lambda: client.upload_file(str(bad))),
            client.submit(operator.add, 1, 1, pure=False).result(timeout=LONG_SECONDS),
            kind(lambda: client.upload_file(str(plain), load=False) is not None),
            kind(lambda: client.upload_file(str(Path(folder, "not there.py")))),
        ]


SLOW = ("hardware",)


def hardware(client: Client) -> object:
    """Return the parts of the hardware benchmark; it takes some seconds."""
    found = client.benchmark_hardware()
    good = all(rate > 0 for part in found.values() for rate in part.values())
    return sorted(found), {part: sorted(rates) for part, rates in found.items()}, good


# ------------------------------------------------------------------ dumps


def dumps(client: Client) -> object:
    """Dump in both formats, locally and through fsspec; try formats and places that do not exist."""
    done = client.submit(operator.add, 5, 6, key=unique("dumped"))
    wait(done)
    steps: list[object] = []
    with tempfile.TemporaryDirectory() as folder:
        for options in (
            {"format": "msgpack"},
            {"format": "yaml"},
            {"format": "msgpack", "write_from_scheduler": True},
            {"format": "yaml", "write_from_scheduler": True},
            {"format": "yaml", "exclude": ("run_spec", "who_has")},
        ):
            steps.append(_dumped(client, f"{folder}/{len(steps)}", str(done.key), options))
        url = f"file://{folder}/by-url"
        steps.append(_dumped(client, url, str(done.key), {"format": "msgpack"}))
        steps.append(kind(lambda: client.dump_cluster_state(f"{folder}/x", format="xml")))
        steps.append(
            kind(
                lambda: client.dump_cluster_state(
                    f"{folder}/x", format="xml", write_from_scheduler=True
                )
            )
        )
        steps.append(kind(lambda: client.dump_cluster_state("nosuchscheme://x/y")))
        steps.append(kind(lambda: client.dump_cluster_state(f"{folder}/missing/dir/x")))
    return steps


def _dumped(client: Client, place: str, key: str, options: dict[str, Any]) -> object:
    import msgpack
    import yaml

    client.dump_cluster_state(place, **options)
    name = place.removeprefix("file://")
    if options["format"] == "msgpack":
        import gzip

        with gzip.open(f"{name}.msgpack.gz") as file:
            state = msgpack.unpack(file, strict_map_key=False)
    else:
        state = yaml.load(Path(f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
    task = state["scheduler"]["tasks"][key]
    excluded = [word for word in options.get("exclude", ()) if word in task]
    parts = sorted(state), sorted(state["workers"]) == sorted(client.nthreads())
    return [*parts, task["state"], excluded, sorted(state["versions"])]


# ------------------------------------------------------------------ recreating tasks locally


def divide(a: int, b: int) -> float:
    return a / b


#: Stock's result for a graph that is none (which its client sends), if the reply arrives late enough.
AGAIN = [
    ("ZeroDivisionError", "division by zero"),
    ("ZeroDivisionError", "division by zero"),
    4.0,
    ("ZeroDivisionError", "division by zero"),
    4.0,
    "ValueError",
    "KeyError",
]
#: Stock's scheduler refuses the graph with which its client requests released inputs.
RELEASED_AGAIN = [("ZeroDivisionError", "division by zero"), 3.0]
EXPECTED = {"tasks_again": AGAIN, "tasks_again_with_released_inputs": RELEASED_AGAIN}


def tasks_again(client: Client) -> object:
    """Recreate an erred task and a finished one locally; report what cannot be recreated."""
    zero = client.submit(operator.sub, 1, 1, pure=False)
    erred = client.submit(divide, 1, zero, pure=False)
    after = client.submit(operator.add, erred, 1, pure=False)
    good = client.submit(divide, 8, 2, pure=False)
    wait([erred, after, good])
    return [
        outcome(lambda: client.recreate_error_locally(erred)),
        outcome(lambda: client.recreate_error_locally(after)),
        client.recreate_task_locally(good),
        outcome(lambda: client.recreate_task_locally(erred)),
        outcome(lambda: client.recreate_task_locally(good.key)),
        kind(lambda: client.recreate_error_locally(good)),
        kind(lambda: client.recreate_task_locally("no such key")),
    ]


def tasks_again_with_released_inputs(client: Client) -> object:
    """Recreate tasks whose inputs are no longer in memory, because no client holds them."""
    source = client.submit(operator.add, 5, 1, pure=False)
    erred, good = (client.submit(divide, source, by, pure=False) for by in (0, 2))
    wait([erred, good])
    key = source.key
    del source
    until(lambda: all(key not in held for held in client.has_what().values()))
    return [
        outcome(lambda: client.recreate_error_locally(erred)),
        client.recreate_task_locally(good),
    ]


def tasks_again_with_workers(client: Client) -> object:
    """Call get_worker in a task that is recreated locally, where there is no worker."""

    def who() -> str:
        return str(get_worker().name)

    future = client.submit(who, pure=False)
    wait(future)
    return kind(lambda: client.recreate_task_locally(future))


# ------------------------------------------------------------------ streams of events


def task_streams(client: Client) -> object:
    """Return the task stream of a block, of an empty block, and for invalid counts and times."""
    from distributed import get_task_stream

    client.get_task_stream(count=1)  # starts the task stream
    with get_task_stream(client) as stream:
        futures = client.map(operator.add, range(5), range(5), pure=False)
        wait(futures)
    seen = [record for record in stream.data if record["key"] in {f.key for f in futures}]
    now = time.time()
    return [
        len(seen),
        sorted({record["status"] for record in seen}),
        sorted(set(seen[0])),
        {record["action"] for record in seen[0]["startstops"]} >= {"compute"},
        len(client.get_task_stream(count=2)),
        client.get_task_stream(start=now + 1000),
        len(client.get_task_stream(start="1 hour", count=3)),
        kind(lambda: client.get_task_stream(start="no time at all")),
        kind(lambda: client.get_task_stream(count="three")),
        json.dumps(sorted(type(value).__name__ for value in seen[0].values())),
    ]


def keys_of_any_kind(client: Client) -> object:
    """Compute keys that are tuples beginning with a number or a tuple: their groups have no text as a name."""
    keys = [(1, 2), (2.5, "a"), (("nested", 1), 2), ("text", (3, 4))]
    futures = [client.submit(operator.add, i, 1, key=key) for i, key in enumerate(keys)]
    total = client.submit(sum, futures, key=(7,))
    return total.result(timeout=30), [f.key for f in futures], client.gather(futures)
