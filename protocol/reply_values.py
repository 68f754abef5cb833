"""Types of replies that are plain values: a number, a list, a dict by worker address.

A request that is neither here nor in ``catalogue`` has no typed reply. Its connection becomes a
stream (``register-client``), it has no reply (``close``), or its reply may be any value (``echo``,
``get_metadata``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from paceline.protocol import messages as m

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

#: Types for ``msgspec.convert``, and the requests with such a reply. Lists may arrive as tuples.
_REQUESTS_BY_TYPE: tuple[tuple[Any, tuple[type[m.Message], ...]], ...] = (
    (list[Any], (
        m.Scatter, m.Retry, m.WorkersToClose, m.GetStory, m.PublishList, m.Keys,
    )),
    (None, (
        m.UpdateDataRpc, m.Replicate, m.RestartRpc, m.SetRestrictions, m.RegisterSchedulerPlugin,
        m.UnregisterSchedulerPlugin, m.LogEventRpc, m.DumpClusterStateToUrl, m.SetMetadata,
        m.StartTaskMetadata, m.EventSet, m.EventClear, m.MultiLockRelease, m.SemaphoreRegister,
        m.SemaphoreRefreshLeases, m.SemaphoreClose, m.QueueCreate, m.QueuePut, m.VariableSet,
        m.PublishPut, m.PublishDelete, m.ShuffleBarrier, m.FreeKeysRpc, m.ShuffleInputsDone,
    )),
    (str, (m.AddKeysRpc, m.MemorySamplerStart)),
    (ByAddress, (m.Broadcast, m.WorkerLogs)),
    (dict[str, str], (m.RestartWorkers,)),
    (dict[str, Facts], (m.RetireWorkers,)),
    (int, (m.AdaptiveTarget, m.GetTaskStreamIndex, m.SemaphoreValue, m.QueueQsize)),
    (Done, (m.SetResources, m.NannyKill, m.NannyRestart)),
    (float | None, (m.CheckIdle,)),
    (dict[str, Status], (
        m.RegisterWorkerPlugin, m.UnregisterWorkerPlugin, m.RegisterNannyPlugin,
        m.UnregisterNannyPlugin,
    )),
    (Facts, (
        m.Identity, m.Versions, m.Profile, m.Explain, m.SharesRequest, m.GetClusterState,
        m.DumpState, m.BenchmarkHardware, m.StopTaskMetadata, m.VariableGet,
        m.WorkerProfile, m.ProfileMetadata, m.GetMonitorInfo, m.WorkerIdentity, m.WorkerVersions,
        m.NannyIdentity,
    )),
    (dict[Any, list[str]], (m.WhoHas,)),
    (dict[str, list[Any]], (m.HasWhat, m.Processing)),
    (dict[str, int], (m.Ncores, m.NcoresRunning)),
    (dict[Any, int], (m.NbytesRequest,)),
    (dict[str, Any], (m.CallStack,)),
    (Any, (m.PerformanceReport, m.GetErrorCause, m.GetRunspec)),
    (list[tuple[Any, ...]], (m.GetLogs, m.Logs)),
    (list[Any] | dict[Any, list[Any]], (m.Events,)),
    (dict[Any, str | None], (m.GetTaskStatus,)),
    (dict[str, dict[str, int]], (m.GetTaskPrefixStates,)),
    (list[Facts], (m.GetTaskStream,)),
    (bool, (m.EventIsSet, m.EventWait, m.MultiLockAcquire, m.SemaphoreAcquire)),
    (bool | None, (m.SemaphoreRelease, m.AmmHandler)),
    (Facts | list[Facts], (m.QueueGet,)),
    (list[Facts | None], (m.PublishGet,)),
    (list[tuple[float, int]], (m.MemorySamplerStop,)),
    (Status, (
        m.ShuffleGetOrCreate, m.ShuffleGet, m.ShuffleRestrictTask, m.PluginAdd, m.PluginRemove,
        m.ShuffleReceive, m.NannyPluginAdd, m.NannyPluginRemove,
    )),
    (ByKey, (m.WorkerCallStack,)),
    (bytes, (m.Ping,)),
    (dict[str, float], (m.BenchmarkDisk, m.BenchmarkMemory, m.BenchmarkNetwork)),
    (list[tuple[str, str]], (m.WorkerGetLogs,)),
    (Facts | None, (m.NannyInstantiate,)),
)  # fmt: skip

#: Request -> the type of its reply.
VALUES: Mapping[type[m.Message], Any] = MappingProxyType(
    {cls: reply for reply, requests in _REQUESTS_BY_TYPE for cls in requests}
)
