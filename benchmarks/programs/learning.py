"""Programs of machine learning: scikit-learn through joblib, XGBoost and LightGBM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import joblib
from distributed import Client
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from .program import main, program


@program(tolerance=1e-4)
def grid_search(client: Client, folder: Path) -> Any:
    """Search the parameters of a support vector machine."""
    x, y = (each[:1_200] for each in load_digits(return_X_y=True))
    grid = {"svc__C": [0.1, 0.5, 1, 5, 10], "svc__gamma": [1e-4, 1e-3, 5e-3, 1e-2]}
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=4)
    with joblib.parallel_config("dask"):
        search.fit(x, y)
    return [search.best_score_, search.best_params_, search.cv_results_["mean_test_score"]]


@program(tolerance=1e-4)
def kmeans_grid_search(client: Client, folder: Path) -> Any:
    """Search the number of clusters."""
    x, _ = make_blobs(30_000, n_features=8, centers=7, cluster_std=2.5, random_state=1)
    grid = {"n_clusters": list(range(3, 12)), "init": ["k-means++", "random"]}
    search = GridSearchCV(KMeans(n_init=3, random_state=0), grid, cv=3)
    with joblib.parallel_config("dask"):
        search.fit(x)
    return search.cv_results_["mean_test_score"]


@program(tolerance=1e-4)
def random_forest(client: Client, folder: Path) -> Any:
    """Train a forest and estimate its accuracy by cross-validation."""
    x, y = make_classification(8_000, n_features=30, n_informative=12, random_state=2)
    forest = RandomForestClassifier(120, max_depth=12, random_state=3, n_jobs=-1)
    with joblib.parallel_config("dask"):
        forest.fit(x, y)
        scores = cross_val_score(RandomForestClassifier(25, random_state=4), x, y, cv=6)
    return [forest.score(x, y), scores]


def labelled_points(rows: int = 200_000) -> tuple[Any, Any]:
    """Return points and the side of a curved surface that each is on."""
    x = da.random.default_rng(5).normal(size=(rows, 20), chunks=(rows // 10, 20))
    return x, ((x[:, 0] * x[:, 1] + x[:, 2] ** 2 + x[:, 3]) > 1).astype(int)


# the split points depend on the worker that holds each part of the data
@program(tolerance=0.02)
def xgboost_classifier(client: Client, folder: Path) -> Any:
    """Train gradient-boosted trees with XGBoost on both workers, and predict."""
    import xgboost.dask

    x, y = client.persist(labelled_points())
    model = xgboost.dask.DaskXGBClassifier(n_estimators=40, max_depth=6, tree_method="hist")
    model.client = client
    model.fit(x, y)
    return (model.predict(x) == y).mean().compute()


if __name__ == "__main__":
    main()
