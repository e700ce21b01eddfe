"""The Kubernetes objects are valid, agree with each other, and call commands that there are."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from manifests import ROOT, Manifest, of_kind, rendered, written
from typer.main import get_command

from optuna_deadline.cli import app
from optuna_deadline.cli.databases import STORAGE_VARIABLE
from optuna_deadline.dashboard.access import TOKEN
from optuna_deadline.elastic.heartbeat import HEARTBEAT_VARIABLE as PULSE
from optuna_deadline.rank.rendezvous import ADDRESS_VARIABLE as ADDRESS

NAME = "optuna-deadline-worker"
VERSIONS = ["1.29", "1.37"]


@pytest.fixture(params=["as written", "base", "cpu"])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    if request.param == "as written":
        return written()
    found = rendered(request.param)
    if found is None:
        pytest.skip("kubectl is not installed")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_what_its_schema_says(manifests: list[Manifest], version: str) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_would_tell() -> None:
    broken = of_kind(written(), "StatefulSet")
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_workers_may_ask_for_no_more_replicas_of_themselves(manifests: list[Manifest]) -> None:
    workers, role = of_kind(manifests, "StatefulSet"), of_kind(manifests, "Role")
    account = of_kind(manifests, "ServiceAccount")["metadata"]["name"]
    binding = of_kind(manifests, "RoleBinding")
    assert workers["metadata"]["name"] == workers["spec"]["serviceName"] == NAME
    assert workers["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert [one["name"] for one in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (rule,) = role["rules"]
    assert rule["resourceNames"] == [NAME] and rule["resources"] == ["statefulsets/scale"]
    assert "patch" in rule["verbs"]


def test_labels_find_their_pods(manifests: list[Manifest]) -> None:
    pods = {}
    for kind in ("StatefulSet", "Deployment"):
        one = of_kind(manifests, kind)
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        pods[one["metadata"]["name"]] = labels
    services = [one for one in manifests if one["kind"] == "Service"]
    assert {one["metadata"]["name"] for one in services} == pods.keys()
    for one in services:
        assert one["spec"]["selector"].items() <= pods[one["metadata"]["name"]].items()


def test_commands_and_variables_are_ones_that_there_are(manifests: list[Manifest]) -> None:
    group: Any = get_command(app)
    text = yaml.safe_dump(manifests, width=10_000) + (ROOT / "base" / "work.sh").read_text()
    text = text.replace("\\\n", " ")
    called = re.findall(r"optuna-deadline ([a-z]+) ([^&\n']*)", text)
    assert {name for name, _ in called} == {"worker", "drain", "dashboard", "metrics"}
    for name, rest in called:
        options = {word for one in group.get_command(None, name).params for word in one.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, name
    container = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one for one in container["env"]}
    names = {"OPTUNA_DEADLINE_HOST", STORAGE_VARIABLE, "NAMESPACE"}
    assert {PULSE, ADDRESS, *names} == given.keys()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert given[PULSE]["value"] in " ".join(container[probe]["exec"]["command"])


def test_the_dashboard_is_open_to_its_namespace_alone_and_has_a_token(
    manifests: list[Manifest],
) -> None:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]
    for container in pod["spec"]["containers"]:
        assert TOKEN in {one["name"] for one in container["env"]}
    policy = of_kind(manifests, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [rule["from"] for rule in policy["ingress"]] == [[{"podSelector": {}}]]
    named = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == named


def test_settings_are_what_the_script_reads() -> None:
    settings = dict(
        line.split("=", 1) for line in (ROOT / "base" / "settings.env").read_text().splitlines()
    )
    script = (ROOT / "base" / "work.sh").read_text()
    assert set(re.findall(r"\$([A-Z]+)\b", script)) == set(settings)


def test_the_grace_is_longer_than_the_drain(manifests: list[Manifest]) -> None:
    pod = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]
    drain = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    seconds = int(re.search(r"sleep (\d+)", drain)[1])  # type: ignore[index]
    assert pod["terminationGracePeriodSeconds"] >= seconds + 60, "what is left must save"
