"""Types of the replies that are values and no structure: a number, a list, a map of worker to something.

Checked where the replies that are structures are. A request that is missing here and in ``catalogue`` has no reply of its own: the
connection becomes a stream (``register-client``), nothing comes back (``close``), or anything may (``echo``, ``get_metadata``).

Must not know: bytes, connections, what messages mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from .messages import cluster_rpc, extension_rpc, inquiry_rpc, nanny_rpc, worker_rpc
from .messages.base import Message

#: Facts about something, by name.
Facts: TypeAlias = dict[str, Any]
#: Something of each worker or nanny, by address.
ByAddress: TypeAlias = dict[str, Any]
#: Something of each key.
ByKey: TypeAlias = dict[Any, Any]
#: Says that it was done, or says nothing.
Done: TypeAlias = str | None
#: {"status": ...}, with what the status tells of.
Status: TypeAlias = Facts

VALUES: Mapping[type[Message], Any] = MappingProxyType(
    {
        cluster_rpc.Scatter: list[Any],
        cluster_rpc.UpdateDataRpc: None,
        cluster_rpc.AddKeysRpc: str,
        cluster_rpc.Replicate: None,
        cluster_rpc.Retry: list[Any],
        cluster_rpc.Broadcast: ByAddress,
        cluster_rpc.RestartRpc: None,
        cluster_rpc.RestartWorkers: dict[str, str],
        cluster_rpc.RetireWorkers: dict[str, Facts],
        cluster_rpc.WorkersToClose: list[Any],  # names, where those were asked for
        cluster_rpc.AdaptiveTarget: int,
        cluster_rpc.SetResources: Done,
        cluster_rpc.SetRestrictions: None,
        cluster_rpc.CheckIdle: float | None,
        cluster_rpc.RegisterSchedulerPlugin: None,
        cluster_rpc.UnregisterSchedulerPlugin: None,
        cluster_rpc.RegisterWorkerPlugin: dict[str, Status],
        cluster_rpc.UnregisterWorkerPlugin: dict[str, Status],
        cluster_rpc.RegisterNannyPlugin: dict[str, Status],
        cluster_rpc.UnregisterNannyPlugin: dict[str, Status],
        inquiry_rpc.Identity: Facts,
        inquiry_rpc.Versions: Facts,
        inquiry_rpc.WhoHas: dict[Any, list[str]],
        inquiry_rpc.HasWhat: dict[str, list[Any]],
        inquiry_rpc.Processing: dict[str, list[Any]],
        inquiry_rpc.Ncores: dict[str, int],
        inquiry_rpc.NcoresRunning: dict[str, int],
        inquiry_rpc.Nbytes: dict[Any, int],
        inquiry_rpc.CallStack: dict[str, Any],
        inquiry_rpc.Profile: Facts,
        inquiry_rpc.Explain: Facts,
        inquiry_rpc.PerformanceReport: Any,
        inquiry_rpc.GetLogs: list[tuple[str, str]],
        inquiry_rpc.Logs: list[tuple[str, str]],
        inquiry_rpc.WorkerLogs: ByAddress,
        inquiry_rpc.LogEventRpc: None,
        inquiry_rpc.Events: list[Any] | dict[str, list[Any]],
        inquiry_rpc.GetTaskStatus: dict[Any, str | None],
        inquiry_rpc.GetTaskPrefixStates: dict[str, dict[str, int]],
        inquiry_rpc.GetTaskStream: list[Facts],
        inquiry_rpc.GetTaskStreamIndex: int,
        inquiry_rpc.GetStory: list[Any],
        inquiry_rpc.GetClusterState: Facts,
        inquiry_rpc.DumpState: Facts,
        inquiry_rpc.DumpClusterStateToUrl: None,
        inquiry_rpc.BenchmarkHardware: Facts,
        inquiry_rpc.SetMetadata: None,
        inquiry_rpc.StartTaskMetadata: None,
        inquiry_rpc.StopTaskMetadata: Facts,
        extension_rpc.EventSet: None,
        extension_rpc.EventClear: None,
        extension_rpc.EventIsSet: bool,
        extension_rpc.EventWait: bool,
        extension_rpc.MultiLockAcquire: bool,
        extension_rpc.MultiLockRelease: None,
        extension_rpc.SemaphoreRegister: None,
        extension_rpc.SemaphoreAcquire: bool,
        extension_rpc.SemaphoreRelease: bool | None,
        extension_rpc.SemaphoreRefreshLeases: None,
        extension_rpc.SemaphoreValue: int,
        extension_rpc.SemaphoreClose: None,
        extension_rpc.QueueCreate: None,
        extension_rpc.QueuePut: None,
        extension_rpc.QueueGet: Facts | list[Facts],
        extension_rpc.QueueQsize: int,
        extension_rpc.VariableSet: None,
        extension_rpc.VariableGet: Facts,
        extension_rpc.PublishPut: None,
        extension_rpc.PublishGet: list[Facts | None],
        extension_rpc.PublishDelete: None,
        extension_rpc.PublishList: list[Any],
        extension_rpc.GetRunspec: Facts,
        extension_rpc.GetErrorCause: Any,
        extension_rpc.AmmHandler: bool | None,
        extension_rpc.MemorySamplerStart: str,
        extension_rpc.MemorySamplerStop: list[tuple[float, int]],
        extension_rpc.ShuffleGetOrCreate: Status,
        extension_rpc.ShuffleGet: Status,
        extension_rpc.ShuffleBarrier: None,
        extension_rpc.ShuffleRestrictTask: Status,
        worker_rpc.FreeKeysRpc: None,
        worker_rpc.PluginAdd: Status,
        worker_rpc.PluginRemove: Status,
        worker_rpc.WorkerCallStack: ByKey,
        worker_rpc.WorkerProfile: Facts,
        worker_rpc.ProfileMetadata: Facts,
        worker_rpc.GetMonitorInfo: Facts,
        worker_rpc.Keys: list[Any],
        worker_rpc.Ping: bytes,
        worker_rpc.BenchmarkDisk: dict[str, float],
        worker_rpc.BenchmarkMemory: dict[str, float],
        worker_rpc.BenchmarkNetwork: dict[str, float],
        worker_rpc.WorkerIdentity: Facts,
        worker_rpc.WorkerVersions: Facts,
        worker_rpc.WorkerGetLogs: list[tuple[str, str]],
        worker_rpc.WorkerGetStory: list[Any],
        worker_rpc.WorkerDumpState: Facts,
        worker_rpc.ShuffleReceive: Status,
        worker_rpc.ShuffleInputsDone: None,
        nanny_rpc.NannyInstantiate: Facts | None,
        nanny_rpc.NannyKill: Done,
        nanny_rpc.NannyRestart: Done,
        nanny_rpc.NannyPluginAdd: Status,
        nanny_rpc.NannyPluginRemove: Status,
        nanny_rpc.NannyIdentity: Facts,
        nanny_rpc.NannyDumpState: Facts,
    }
)
"""Request -> the type of its reply, as ``msgspec.convert`` takes it. Lists may come as tuples."""
