"""Programs that use released packages on a cluster, one function per package: `python use_packages.py ADDRESS NAME`.

Each returns a result that can be checked and does not depend on the scheduler. Run it with an interpreter that has the
package (`test_packages.py`, or a separate environment).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from distributed import Client

N_ROWS, N_COLUMNS = 2_000, 8


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random features, and a noisy sum of some of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_ROWS, N_COLUMNS))
    return x, x[:, 0] * 2 - x[:, 1] + rng.normal(scale=0.01, size=N_ROWS)


def spread(of: float, around: np.ndarray) -> bool:
    """Return whether an error is small compared with the spread of the target."""
    return bool(of < 0.8 * float(np.std(around)))


def xgboost_train_and_predict(client: Client) -> object:
    """Train with xgboost: its tracker runs in the scheduler; one task per worker, all at once."""
    import dask.array as da
    from xgboost import dask as dxgb

    x, y = table()
    dx, dy = da.from_array(x, chunks=(1000, -1)), da.from_array(y, chunks=1000)
    matrix = dxgb.DaskDMatrix(client, dx, dy)
    options = {"tree_method": "hist", "max_depth": 4, "nthread": 1}
    trained = dxgb.train(client, options, matrix, num_boost_round=10, evals=[(matrix, "train")])
    guess = dxgb.predict(client, trained, matrix).compute()
    regressor = dxgb.DaskXGBRegressor(n_estimators=5, max_depth=3, nthread=1)
    regressor.client = client
    regressor.fit(dx, dy)
    again = regressor.predict(dx).compute()
    rmse = trained["history"]["train"]["rmse"]
    good = [spread(float(np.std(found - y)), y) for found in (guess,)]
    return [len(rmse), rmse[-1] < rmse[0], good, again.shape]


def lightgbm_train_and_predict(client: Client) -> object:
    """Train with LightGBM: its workers connect to each other; one strictly pinned task per worker, all at once."""
    import dask.array as da
    import lightgbm

    x, y = table()
    dx, dy = da.from_array(x, chunks=(1000, -1)), da.from_array(y, chunks=1000)
    model = lightgbm.DaskLGBMRegressor(client=client, n_estimators=10, verbose=-1, num_threads=1)
    model.fit(dx, dy)
    guess = model.predict(dx).compute()
    labels = (dy > 0).astype(int)
    classes = lightgbm.DaskLGBMClassifier(client=client, n_estimators=10, verbose=-1, num_threads=1)
    classes.fit(dx, labels)
    right = float((classes.predict(dx).compute() == (y > 0)).mean())
    return [guess.shape, spread(float(np.std(guess - y)), y), right > 0.9]


def dask_ml_incremental_search(client: Client) -> object:
    """Search hyperparameters with dask-ml: models are futures, trained in rounds that depend on scores."""
    import dask.array as da
    from dask_ml.model_selection import IncrementalSearchCV
    from sklearn.linear_model import SGDRegressor

    x, y = table()
    dx, dy = da.from_array(x, chunks=(1000, -1)), da.from_array(y, chunks=1000)
    search = IncrementalSearchCV(
        SGDRegressor(),
        {"alpha": [1e-5, 1e-4, 1e-3, 1e-2]},
        n_initial_parameters=4,
        max_iter=8,
        random_state=0,
    )
    try:
        search.fit(dx, dy)
    except RuntimeError as error:
        return str(error)  # dask-ml 2025.1 fails with Dask of 2026 on both schedulers
    return [len(search.model_history_), search.best_score_ > 0.9, sorted(search.best_params_)]


def joblib_backend(client: Client) -> object:
    """Run scikit-learn's own search with its tasks on the cluster."""
    import joblib
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import GridSearchCV

    x, y = table()
    search = GridSearchCV(
        RandomForestRegressor(n_estimators=5, random_state=0), {"max_depth": [2, 6]}, cv=2
    )
    with joblib.parallel_backend("dask", client=client):
        search.fit(x[:500], y[:500])
        doubled = joblib.Parallel()(joblib.delayed(pow)(i, 2) for i in range(20))
    return [search.best_params_, doubled == [i * i for i in range(20)]]


def performance_report(client: Client) -> object:
    """Write a performance report."""
    from distributed import performance_report as report

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        with report(filename=str(path)):
            client.gather(client.map(lambda i: i + 1, range(100), pure=False))
        text = path.read_text()
    return [len(text) > 10_000, "Dask Performance Report" in text]


def prefect_flow(client: Client) -> object:
    """Run a flow whose tasks run on the cluster at `address`."""
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(
            PREFECT_HOME=home,
            PREFECT_LOGGING_LEVEL="ERROR",
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            DO_NOT_TRACK="1",
        )
        from prefect import flow, task
        from prefect.testing.utilities import prefect_test_harness
        from prefect_dask import DaskTaskRunner, get_dask_client

        @task
        def double(i: int) -> int:
            return 2 * i

        @task
        def total(values: list[int]) -> int:
            return sum(values)

        @task
        def with_dask(n: int) -> int:
            import dask.array as da

            with get_dask_client():
                return int(da.ones(n, chunks=10).sum().compute())

        @flow(task_runner=DaskTaskRunner(address=client.scheduler.address))
        def work() -> list[int]:
            doubled = double.map(list(range(8)))
            return [total.submit(doubled).result(), with_dask.submit(100).result()]

        with (
            contextlib.redirect_stdout(sys.stderr),
            prefect_test_harness(server_startup_timeout=120),
        ):
            return work()


PROGRAMS: dict[str, Callable[[Client], object]] = {
    "xgboost": xgboost_train_and_predict,
    "lightgbm": lightgbm_train_and_predict,
    "dask_ml": dask_ml_incremental_search,
    "joblib": joblib_backend,
    "distributed": performance_report,
    "prefect_dask": prefect_flow,
}
"""Importable name of a package -> what it does."""


if __name__ == "__main__":
    address, name = sys.argv[1:]
    with Client(address, timeout=60) as client:
        print("RESULT " + json.dumps(PROGRAMS[name](client), default=bool), flush=True)
