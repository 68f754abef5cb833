"""Run a Dask worker built on `paceline.protocol` and asyncio, without `distributed`.

    python examples/worker_on_protocol.py tcp://127.0.0.1:8786 --name alice --nthreads 2

It joins the stock scheduler or paceline, beside stock workers. Tasks are pickles of Dask's
classes, so `dask` and the packages that tasks use must be installed. Not supported: spilling,
resources, actors, TLS, `get_worker()` in tasks, and values serialized in other ways than pickle
(scattering a numpy array directly to it fails).
"""

import argparse
import asyncio
import os
import random
import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import time

import cloudpickle
from asyncio_comm import CONNECTION_ERRORS, Comm, RpcClient, serve
from paceline.protocol import messages as m
from worker_parts import METRICS, deserialize, error_fields, serialize, size, versions

TRIES, PAUSE_SECONDS = 100, 0.2  # to find data that is not at the reported worker


@dataclass(eq=False)
class Run:
    """A task to run: "waiting" for its dependencies, "ready", or "executing"."""

    message: m.ComputeTask
    state: str = "waiting"


class Worker:
    """A worker without spilling and resources: one stream, heartbeats, and a server."""

    def __init__(self, scheduler: str, name: str, nthreads: int) -> None:
        self.scheduler, self.name, self.nthreads = scheduler, name, nthreads
        self.data, self.runs = {}, {}  # key -> result; key -> Run
        self.where = {}  # key -> addresses of other workers
        self.rpc, self.ready, self.order = RpcClient(), asyncio.PriorityQueue(), count()
        self.jobs, self.closing = set(), asyncio.Event()

    async def run(self) -> None:
        server = await asyncio.start_server(lambda r, w: serve(r, w, self.answer), "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.stream = await Comm.connect(self.scheduler)
        about = {"address": self.address, "name": self.name, "nthreads": self.nthreads}
        about |= {"server_id": f"{self.name}-{time()}", "pid": os.getpid(), "now": time()}
        about |= {"versions": versions(), "resources": {}, "services": {}}
        self.stream.send(m.RegisterWorker(**about, metrics=METRICS, stimulus_id="-", reply=False))
        reply = (await self.stream.receive()).value
        if reply["status"] != "OK":
            raise SystemExit(f"The scheduler refused the worker: {reply.get('message')}")
        self.stream.connection.become_stream("worker")
        print(f"{self.name} is {self.address}", flush=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.closing.set)
        self.start(self.handle_stream())
        self.start(self.heartbeat())
        with ThreadPoolExecutor(self.nthreads) as pool:
            for _ in range(self.nthreads):
                self.start(self.execute(pool))
            await self.closing.wait()
        self.send(m.CloseStream())
        await self.stream.writer.drain()

    def start(self, job) -> None:
        task = asyncio.ensure_future(job)
        self.jobs.add(task)  # keep a reference: asyncio keeps weak ones only
        task.add_done_callback(self.jobs.discard)

    def send(self, message: m.Message) -> None:
        if self.stream.connection.phase == "worker-stream":
            self.stream.send([message])

    async def heartbeat(self) -> None:
        """Send heartbeats on a separate connection until the scheduler has removed the worker."""
        reply = {"status": "OK"}
        while reply["status"] != "missing":
            await asyncio.sleep(reply.get("heartbeat-interval") or 0.5)
            message = m.HeartbeatWorker(address=self.address, now=time(), metrics=METRICS)
            with suppress(*CONNECTION_ERRORS):  # if the scheduler is lost, the stream ends too
                reply = await self.rpc.request(self.scheduler, message)
        self.closing.set()

    async def handle_stream(self) -> None:
        try:
            async for message in self.stream.messages():
                self.handle_message(message)
        except CONNECTION_ERRORS as error:
            print(f"{self.name} lost its scheduler: {error}", flush=True)
        self.closing.set()

    def handle_message(self, message) -> None:
        match message:
            case m.ComputeTask():
                self.compute_task(message)
            case m.FreeKeys(keys=keys):
                self.drop(keys, message.stimulus_id)
            case m.RemoveReplicas(keys=keys):
                needed = {key for run in self.runs.values() for key in run.message.who_has}
                self.drop([key for key in keys if key not in needed], message.stimulus_id)
                if kept := [key for key in keys if key in self.data]:
                    self.send(m.AddKeys(keys=kept, stimulus_id=message.stimulus_id))
            case m.AcquireReplicas(who_has=who_has):
                self.start(self.fetch(who_has, tries=3))
            case m.RefreshWhoHas(who_has=who_has):
                self.where.update(who_has)
            case m.StealRequest(key=key):
                run = self.runs.get(key)
                state = run.state if run else "memory" if key in self.data else None
                if state in ("waiting", "ready"):
                    del self.runs[key]
                self.send(m.StealResponse(key=key, state=state, stimulus_id=message.stimulus_id))
            case m.WorkerStatusChange(status=status):
                self.send(m.WorkerStatusChange(status=status, stimulus_id=message.stimulus_id))
            case m.Close():  # other messages are ignored
                self.closing.set()

    def compute_task(self, message: m.ComputeTask) -> None:
        key = message.key
        if key in self.data:
            self.send_finished(message, time())
        elif key in self.runs:
            self.runs[key].message = message  # report the result with the new run_id
        else:
            self.runs[key] = Run(message)
            self.start(self.prepare(self.runs[key]))

    def drop(self, keys, cause: str) -> None:
        for key in keys:
            self.runs.pop(key, None)  # the result of a running task is dropped
            if self.data.pop(key, self) is not self:
                self.send(m.ReleaseWorkerData(key=key, stimulus_id=cause))

    def is_wanted(self, run: Run) -> bool:
        return self.runs.get(run.message.key) is run

    async def prepare(self, run: Run) -> None:
        """Fetch the dependencies of a task, then queue it."""
        try:
            missing = await self.fetch(run.message.who_has, lambda: self.is_wanted(run))
        except Exception as error:
            return self.send_erred(run, error)
        if missing:
            return self.send_erred(run, RuntimeError(f"no worker has {missing}"))
        run.state = "ready"
        self.ready.put_nowait((run.message.priority, next(self.order), run))

    async def fetch(self, who_has, is_wanted=lambda: True, tries: int = TRIES) -> list:
        """Fetch results from the workers in `who_has`. Return the keys that no worker had."""
        self.where.update(who_has)
        for _ in range(tries):
            missing = [key for key in who_has if key not in self.data]
            if not missing or not is_wanted():
                return []
            plan, got = defaultdict(list), {}
            for key in missing:
                plan[random.choice(self.where.get(key) or [""])].append(key)
            plan.pop("", None)
            for address, some in plan.items():
                request = m.GetData(keys=some, who=self.address, serializers=["pickle"])
                with suppress(*CONNECTION_ERRORS):
                    got |= (await self.rpc.request(address, request)).get("data") or {}
            self.data |= {key: deserialize(value) for key, value in got.items()}
            if got:
                self.send(m.AddKeys(keys=list(got), stimulus_id=f"fetched-{time()}"))
            else:  # all busy or lost
                self.send(m.RequestRefreshWhoHas(keys=missing, stimulus_id=f"missing-{time()}"))
                await asyncio.sleep(PAUSE_SECONDS)
        return missing

    async def execute(self, pool: ThreadPoolExecutor) -> None:
        """Execute ready tasks, lowest priority value first. Runs `nthreads` times."""
        while True:
            *_, run = await self.ready.get()
            if not self.is_wanted(run):
                continue
            run.state, start = "executing", time()
            try:
                inputs = {key: self.data[key] for key in run.message.who_has}
                work = lambda run=run, inputs=inputs: deserialize(run.message.run_spec)(inputs)  # noqa: E731
                result = await asyncio.get_running_loop().run_in_executor(pool, work)
            except Exception as error:
                self.send_erred(run, error)
                continue
            if self.is_wanted(run):
                del self.runs[run.message.key]
                self.data[run.message.key] = result
                self.send_finished(run.message, start)

    def send_finished(self, message: m.ComputeTask, start: float) -> None:
        result, kind = self.data[message.key], type(self.data[message.key])
        about = {"key": message.key, "run_id": message.run_id, "nbytes": size(result)}
        about |= {"type": cloudpickle.dumps(kind), "typename": f"{kind.__module__}.{kind.__name__}"}
        spent = m.StartStop(action="compute", start=start, stop=time())
        cause = f"task-finished-{time()}"
        self.send(m.TaskFinished(**about, metadata={}, startstops=[spent], stimulus_id=cause))

    def send_erred(self, run: Run, error: Exception) -> None:
        if self.is_wanted(run):
            about = {"key": run.message.key, "run_id": run.message.run_id, **error_fields(error)}
            del self.runs[run.message.key]
            self.send(m.TaskErred(**about, stimulus_id=f"task-erred-{time()}"))

    async def answer(self, request, pickle_protocol: int):
        match request:
            case m.GetData(keys=keys):
                found = [key for key in keys if key in self.data]
                data = {key: serialize(self.data[key], pickle_protocol) for key in found}
                return {"status": "OK", "data": data}
            case m.WorkerGather(who_has=who_has):
                missing = await self.fetch(who_has, tries=3)
                return {"status": "partial-fail", "keys": missing} if missing else {"status": "OK"}
            case m.WorkerUpdateData(data=data):
                self.data |= {key: deserialize(value) for key, value in data.items()}
                return {"nbytes": {key: size(self.data[key]) for key in data}, "status": "OK"}
            case m.FreeKeysRpc(keys=keys):
                return self.drop(keys, request.stimulus_id)
            case m.Run():
                args, kwargs = deserialize(request.args) or (), deserialize(request.kwargs) or {}
                result = deserialize(request.function)(*args, **kwargs)
                return {"status": "OK", "result": serialize(result)}
            case m.WorkerIdentity():
                return {"type": "Worker", "id": self.name, "scheduler": self.scheduler}
            case m.Keys():
                return list(self.data)
            case m.Ping():
                return b"pong"
            case m.CloseRequest() | m.WorkerTerminate():
                if isinstance(request, m.WorkerTerminate):
                    self.closing.set()
                return "OK"
        raise ValueError(f"no such operation on this worker: {request!r:.200}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scheduler")
    parser.add_argument("--name", default=f"protocol-{os.getpid()}")
    parser.add_argument("--nthreads", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(Worker(options.scheduler, options.name, options.nthreads).run())
