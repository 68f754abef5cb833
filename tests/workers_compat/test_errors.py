"""Stock clients deserialize our errors to the exceptions that stock raises."""

from __future__ import annotations

import pickle
import sys

import dask
import pytest
from distributed.core import clean_exception
from distributed.core import error_message as stock_error_message
from distributed.protocol.core import loads as stock_loads
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError, WorkerState
from paceline.protocol.payload import Payload
from paceline.workers_compat.errors import ErrorFactory, error_message, error_payloads
from paceline.workers_compat.security.shared_secret import SecretError
from paceline.workers_compat.security.unpickling import UnpicklingDisabledError


def opened(payload: Payload):
    """Deserialize an error as a client of distributed does."""
    import msgpack

    frames = [msgpack.packb({"value": {"__Serialized__": 1}}), payload.header, *payload.frames]
    data = stock_loads(frames)["value"]
    _, exception, _ = clean_exception(data)
    return exception


def raised():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        return error


def test_messages_have_the_shape_of_stocks():
    error = raised()
    try:
        raise error
    except ValueError as again:
        theirs = stock_error_message(again)
        ours = error_message(again)
    assert ours.keys() == theirs.keys()
    assert ours["status"] == theirs["status"] == "error"
    assert ours["exception_text"] == theirs["exception_text"]
    assert error_message(error, "uncaught-error")["status"] == "uncaught-error"


def test_exception_cause_and_traceback():
    exception, traceback, text = error_payloads(raised())
    error = opened(exception)
    assert repr(error) == "ValueError('outer')"
    assert repr(error.__cause__) == "KeyError('inner')"
    tb = pickle.loads(traceback.frames[0])
    assert tb.tb_frame.f_code.co_name == "raised"
    assert text == "ValueError: outer\ncaused by KeyError: 'inner'"


def test_peers_need_no_paceline(monkeypatch):
    try:
        raise SecretError("secret") from UnpicklingDisabledError("unpickling")
    except SecretError as error:
        exception, _, _ = error_payloads(error)
    monkeypatch.setitem(sys.modules, "paceline", None)
    monkeypatch.delitem(sys.modules, SecretError.__module__)
    monkeypatch.delitem(sys.modules, UnpicklingDisabledError.__module__)
    error = opened(exception)
    assert repr(error) == "ValueError('secret')"
    assert repr(error.__cause__) == "ValueError('unpickling')"
    assert error.__traceback__.tb_frame.f_code.co_name == "test_peers_need_no_paceline"


def test_long_errors_are_cut():
    with dask.config.set({"distributed.admin.max-error-length": 100}):
        error = opened(error_payloads(ValueError("x" * 1000))[0])
    assert type(error) is ValueError
    assert error.args == ("Long error message", "x" * 100)


def test_errors_that_cannot_be_pickled_or_printed():
    class Local(Exception):
        def __reduce__(self):
            raise TypeError("never")

    assert "Local" in str(opened(error_payloads(Local("x"))[0]))

    class Mute(Exception):
        def __str__(self):
            raise TypeError("mute")

    assert "mute" not in repr(type(opened(error_payloads(Mute())[0])))


def test_cyclic_causes():
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert error_payloads(a)[2].count("ValueError") == 2


def test_killed_worker():
    facts = {"address": "tcp://10.0.0.1:99", "name": "alice", "status": "running", "nthreads": 3,
             "memory_limit": 10, "occupancy": 1.5, "executing": {("x", 1): 2.5}, "unheard of": 1}  # fmt: skip
    error = opened(ErrorFactory().killed_worker(("x", 1), facts, 3))
    assert type(error) is KilledWorker
    assert error.task == ("x", 1)
    assert error.allowed_failures == 3
    assert type(error.last_worker) is WorkerState
    assert error.last_worker.address == "tcp://10.0.0.1:99"
    assert error.last_worker.name == "alice"
    assert error.last_worker.executing == {("x", 1): 2.5}
    assert error.last_worker.occupancy == 1.5
    assert "10.0.0.1" in str(error)


def test_other_errors():
    factory = ErrorFactory()
    error = opened(factory.no_worker("x", 3.0))
    assert (type(error), error.task, error.timeout) == (NoWorkerError, "x", 3.0)
    error = opened(factory.no_valid_worker("x", {"host"}, None, {"GPU": 1}, 2.0))
    assert type(error) is NoValidWorkerError
    assert error.host_restrictions == {"host"}
    assert error.worker_restrictions == set()
    assert error.resource_restrictions == {"GPU": 1}
    assert "GPU" in str(error)
    assert repr(opened(factory.memory_error("too large"))) == "MemoryError('too large')"
    assert repr(opened(factory.actor_lost())) == "RuntimeError('Worker holding Actor was lost')"


@pytest.mark.parametrize(
    "facts", [{}, {"address": "tcp://1.2.3.4:5", "status": None, "memory_limit": None}]
)
def test_killed_worker_with_few_facts(facts):
    assert type(opened(ErrorFactory().killed_worker("x", facts, 0))) is KilledWorker


WRITES_ITS_ERRORS = """
from paceline.workers_compat.errors import ErrorFactory
address = "tcp://10.0.0.1:" + str(4000)
facts = {"address": address, "name": "tcp://10.0.0.1:4000", "services": {"dashboard": 1}}
errors = ErrorFactory()
for payload in (
    errors.killed_worker("x" + str(1), {**facts, "executing": {"x1": 2.0}}, 3),
    errors.no_valid_worker("x", {"alpha", "beta", "gamma"}, {"one", "two"}, {"GPU": 1}, 2.0),
):
    print(payload.header.hex(), payload.frames[0].hex())
"""


def test_errors_are_the_same_bytes_under_any_hash_seed():
    """A replay of a journal creates them again and compares."""
    import os
    import subprocess
    import sys

    outputs = {
        subprocess.run(
            [sys.executable, "-c", WRITES_ITS_ERRORS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


def test_equal_strings_in_errors_may_be_one_object_or_two():
    address = "tcp://10.0.0.1:4000"
    again = "".join(["tcp://10.0.0.1", ":4000"])
    one, two = (
        ErrorFactory().killed_worker("x", {"address": address, "name": name}, 3)
        for name in (address, again)
    )
    assert one == two
