"""dask-gateway without Kubernetes: these lines go into its server's configuration.

``dask-gateway-server -f examples/deploy/dask_gateway_config.py``;
``tests/deploy/test_gateway.py`` starts a server with them.
"""
# ruff: noqa: F821

c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"

# options that the gateway adds (--dg-api-address, ...) are passed to its preload
c.ClusterConfig.scheduler_cmd = ["paceline"]
# the default, `dask-worker`, was removed in distributed 2026.6
c.ClusterConfig.worker_cmd = ["dask", "worker"]
