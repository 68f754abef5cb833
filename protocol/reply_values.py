"""Types of replies that are plain values: a number, a list, a dict by worker address.

A request that is neither here nor in ``catalogue`` has no typed reply. Its connection becomes a
stream (``register-client``), it has no reply (``close``), or its reply may be any value (``echo``,
``get_metadata``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from paceline.protocol.messages import (
    cluster_rpc,
    extension_rpc,
    inquiry_rpc,
    nanny_rpc,
    worker_rpc,
)
from paceline.protocol.messages.base import Message

#: Properties by name.
Facts: TypeAlias = dict[str, Any]
#: Values by address of a worker or nanny.
ByAddress: TypeAlias = dict[str, Any]
#: Values by key.
ByKey: TypeAlias = dict[Any, Any]
#: A confirmation such as "OK", or None.
Done: TypeAlias = str | None
#: {"status": ...} with further members that depend on the status.
Status: TypeAlias = Facts

#: Request -> the type of its reply for ``msgspec.convert``. Lists may arrive as tuples.
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
        cluster_rpc.WorkersToClose: list[Any],  # values of the requested attribute
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
        inquiry_rpc.NbytesRequest: dict[Any, int],
        inquiry_rpc.CallStack: dict[str, Any],
        inquiry_rpc.Profile: Facts,
        inquiry_rpc.Explain: Facts,
        inquiry_rpc.PerformanceReport: Any,
        inquiry_rpc.GetLogs: list[tuple[Any, ...]],
        inquiry_rpc.Logs: list[tuple[Any, ...]],
        inquiry_rpc.WorkerLogs: ByAddress,
        inquiry_rpc.LogEventRpc: None,
        inquiry_rpc.Events: list[Any] | dict[Any, list[Any]],
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
