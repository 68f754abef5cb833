"""All messages, one class per operation, re-exported from the modules of their directions.

A class is named after its operation in CamelCase. If two operations have the same name:

- ``...Rpc`` is the request with the name of a stream message (``LogEventRpc`` and ``LogEvent``);
- ``Worker...`` and ``Nanny...`` are requests to a worker or a nanny with the name of a request to
  the scheduler (``WorkerGather`` and ``Gather``);
- ``TaskErredReport`` is the ``task-erred`` that clients receive.
"""

from .base import *
from .client_to_scheduler import *
from .cluster_rpc import *
from .extension_rpc import *
from .inquiry_rpc import *
from .nanny_rpc import *
from .replies import *
from .scheduler_to_client import *
from .scheduler_to_worker import *
from .worker_rpc import *
from .worker_to_scheduler import *
