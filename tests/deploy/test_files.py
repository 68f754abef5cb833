"""Check examples/deploy/ without a cluster: commands and options exist, and each file has the shape that its reader requires.

If the official Kubernetes client and the operator's schema are installed, they validate the objects and find every misspelt
field. The essential fields are checked in any case.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from paceline.scheduler.server.cli.main import main

from tests.support.source_tree import ROOT

FOLDER = ROOT / "examples" / "deploy"
MODELS = {"Deployment": "V1Deployment", "Service": "V1Service"}


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def every_yaml() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".yaml", ".yml"))


def containers(thing: Any) -> list[dict[str, Any]]:
    """Yield all containers at any depth."""
    if isinstance(thing, dict):
        own = thing.get("containers", [])
        return [*own, *(c for value in thing.values() for c in containers(value))]
    if isinstance(thing, list):
        return [c for value in thing for c in containers(value)]
    return []


@pytest.mark.parametrize("name", every_yaml())
def test_is_yaml_with_usage_comment(name: str) -> None:
    assert documents(name)
    assert f"examples/deploy/{name}" in (FOLDER / name).read_text().split("\n\n")[0]


def starts_a_scheduler(words: list[str]) -> bool:
    """Return whether paceline's command line accepts these arguments."""
    if words[0] != "paceline":
        return False
    done = CliRunner().invoke(main, [*words[1:], "--version"])
    return done.exit_code == 0 and "paceline, version" in done.output


def test_compose() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert set(services) == {"scheduler", "worker", "notebook"}
    for service in services.values():
        assert (FOLDER / service["build"]["context"] / "Dockerfile").resolve().exists()
        assert "ARG EXTRAS" in (ROOT / "Dockerfile").read_text()
        extras = re.findall(r"\w+", service["build"]["args"]["EXTRAS"])
        assert set(extras) <= set(
            re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
        )
    assert starts_a_scheduler(services["scheduler"]["command"])
    assert services["scheduler"]["ports"] == ["8786:8786", "8787:8787"]
    assert services["worker"]["command"] == ["dask", "worker", "tcp://scheduler:8786"]
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["notebook"]["environment"]["DASK_SCHEDULER_ADDRESS"] == "tcp://scheduler:8786"
    for name in (
        "worker",
        "notebook",
    ):  # the health check of the image requests the scheduler's port
        assert services[name]["healthcheck"] == {"disable": True}


def test_manifests() -> None:
    found = {
        each["metadata"]["name"] + "/" + each["kind"]: each for each in documents("kubernetes.yaml")
    }
    assert set(found) == {
        *("paceline-scheduler/Deployment", "paceline-scheduler/Service"),
        "paceline-worker/Deployment",
    }
    for each in found.values():
        if each["kind"] == "Deployment":
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    scheduler = found["paceline-scheduler/Deployment"]["spec"]["template"]
    service = found["paceline-scheduler/Service"]["spec"]
    assert service["selector"].items() <= scheduler["metadata"]["labels"].items()
    (container,) = containers(scheduler)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"tcp-comm": 8786, "http-dashboard": 8787}
    assert {port["targetPort"] for port in service["ports"]} == set(ports)
    assert starts_a_scheduler(container["args"])
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http-dashboard"}
    (worker,) = containers(found["paceline-worker/Deployment"])
    assert worker["args"][:3] == ["dask", "worker", "tcp://paceline-scheduler:8786"]


@pytest.mark.parametrize("name", ["kubernetes.yaml"])
def test_manifests_are_valid_for_the_kubernetes_client(name: str) -> None:
    pytest.importorskip("kubernetes", minversion="36")
    from kubernetes.client import ApiClient

    api = ApiClient()
    for each in documents(name):
        model = api.deserialize(json.dumps(each), MODELS[each["kind"]], "application/json")
        assert _known(api.sanitize_for_serialization(model)) == _known(each)


def _known(thing: Any) -> Any:
    """Drop empty fields, as the models do."""
    if isinstance(thing, dict):
        return {name: _known(value) for name, value in thing.items() if value not in ([], {}, None)}
    return [_known(value) for value in thing] if isinstance(thing, list) else thing


def test_dask_cluster() -> None:
    (cluster,) = documents("daskcluster.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    scheduler, worker = cluster["spec"]["scheduler"], cluster["spec"]["worker"]
    (container,) = containers(scheduler)
    assert starts_a_scheduler(container["args"])
    # the operator finds the ports by these names
    assert {port["name"] for port in container["ports"]} == {"tcp-comm", "http-dashboard"}
    assert scheduler["service"]["selector"] == {
        "dask.org/cluster-name": cluster["metadata"]["name"],
        "dask.org/component": "scheduler",
    }
    assert worker["replicas"] == 2
    assert containers(worker)[0]["args"][:2] == ["dask", "worker"]


def test_dask_cluster_matches_the_operators_schema() -> None:
    package = pytest.importorskip("dask_kubernetes")
    jsonschema = pytest.importorskip("jsonschema")
    folder = Path(package.__file__).parent / "operator" / "deployment" / "helm"
    (path,) = folder.glob("*/crds/daskcluster.yaml")
    definition = yaml.safe_load(path.read_text())
    (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    schema = _strict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    (cluster,) = documents("daskcluster.yaml")
    jsonschema.validate(cluster["spec"], schema)
    container = cluster["spec"]["scheduler"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    with pytest.raises(jsonschema.ValidationError, match="livenesProbe"):
        jsonschema.validate(cluster["spec"], schema)


def _strict(schema: Any) -> Any:
    """Return a Kubernetes schema that rejects unknown fields."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: _strict(value) for name, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        out.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    return out


def test_values_of_the_dask_chart() -> None:
    (values,) = documents("helm-dask-values.yaml")
    scheduler = values["scheduler"]
    assert scheduler["image"].items() <= values["worker"]["image"].items()
    assert {"name": "PACELINE_TAKEOVER", "value": "1"} in scheduler["env"]
    assert scheduler["livenessProbe"]["httpGet"] == {"path": "/health", "port": 8787}
    # executables that the image has under these names
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "takeover --install" in dockerfile
    assert f"/usr/bin/{values['worker']['image']['dask_worker']}" in dockerfile


def gateway_configuration(text: str) -> dict[str, Any]:
    """Return the settings of a dask-gateway configuration: "ClusterConfig.scheduler_cmd" -> value."""
    found: dict[str, Any] = {}

    class Section:
        def __init__(self, name: str = "") -> None:
            vars(self)["name"] = name

        def __getattr__(self, name: str) -> Section:
            return Section(name)

        def __setattr__(self, name: str, value: Any) -> None:
            found[f"{self.name}.{name}"] = value

    exec(compile(text, "configuration", "exec"), {"c": Section()})
    return found


def test_gateways() -> None:
    (values,) = documents("helm-daskhub-values.yaml")
    texts = list(values["dask-gateway"]["gateway"]["extraConfig"].values())
    texts.append((FOLDER / "dask_gateway_config.py").read_text())
    for text in texts:
        found = gateway_configuration(text)
        options = [
            *("--protocol", "tls", "--host", "", "--port", "8786"),
            "--dashboard-address",
            ":8787",
        ]
        assert starts_a_scheduler([*found["ClusterConfig.scheduler_cmd"], *options])
        assert found["ClusterConfig.worker_cmd"] == ["dask", "worker"]
