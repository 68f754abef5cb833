"""dask-gateway without Kubernetes: these lines go into its server's configuration.

``dask-gateway-server -f examples/deploy/dask_gateway_config.py``; ``tests/deploy/test_gateway.py`` starts a server with them.

It must not know where paceline is installed: the commands are looked up on the server's PATH.
"""
# ruff: noqa: F821

c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"

# options that the gateway adds (--dg-api-address, ...) belong to its preload and pass through
c.ClusterConfig.scheduler_cmd = ["paceline"]
# `dask-worker`, the default, is a name that distributed 2026.6 gave up
c.ClusterConfig.worker_cmd = ["dask", "worker"]
