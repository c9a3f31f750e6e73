"""values.schema.json refuses what the chart does not know, by the field's name."""

from __future__ import annotations

import json
from typing import Any

import helm_python
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from tests.fixtures.helm_values import CHART, MATRIX

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("values", MATRIX)
def test_helm_takes_the_values_of_the_matrix(values: str, chart: helm_python.Chart) -> None:
    chart.validate_schema(MATRIX[values])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gatway": {"replicas": 2}}, "gatway"),
        ({"gateway": {"prot": 8080}}, "prot"),
        ({"gateway": {"port": 0}}, "port"),
        ({"gateway": {"port": "8080"}}, "port"),
        ({"gateway": {"replicas": 0}}, "replicas"),
        ({"gateway": {"logLevel": "loud"}}, "logLevel"),
        ({"gateway": {"autoscaling": {"enabled": "yes"}}}, "enabled"),
        ({"gateway": {"extraEnv": [{"nmae": "A"}]}}, "nmae"),
        ({"gateway": {"resources": {"request": {}}}}, "request"),
        ({"access": {"mode": "open-loopback"}}, "mode"),
        ({"access": {"adminDigest": "not a digest"}}, "adminDigest"),
        ({"access": {"oidc": {"issuer": "https://login.example.com"}}}, "audience"),
        ({"access": {"quota": {"jobs": -1}}}, "jobs"),
        ({"access": {"corsOrigins": ["*"]}}, "corsOrigins"),
        ({"checkpointVolume": {"accessMode": "ReadOnlyMany"}}, "accessMode"),
        ({"checkpointVolume": {"size": "50 Gi"}}, "size"),
        ({"checkpointVolume": {"size": ""}}, "size"),
        ({"s3": {"accessKeyId": "a"}}, "secretAccessKey"),
        ({"tls": {"existingSecret": "With Space"}}, "existingSecret"),
        ({"redis": {"enabled": False}}, "redis"),  # without a url or a secret
        ({"redis": {"url": "redis://mine:6379/0"}}, "url"),  # and the bundled one is on
        ({"redis": {"password": 'quote"d'}}, "password"),
        ({"kafka": {"heap": "512"}}, "heap"),
        ({"ingress": {"enabled": True}}, "hosts"),
        ({"networkPolicy": {"gatewayFrom": [{"podSelctor": {}}]}}, "podSelctor"),
        ({"monitoring": {"interval": "15"}}, "interval"),
        ({"serviceAccounts": {"create": False}}, "gateway"),
        ({"podAnnotations": {"a": True}}, "podAnnotations"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(
    values: dict[str, Any], named: str, chart: helm_python.Chart
) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=named):
        chart.validate_schema(values)


def test_the_schema_knows_every_value_and_no_other() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)

    def fields(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() - {"global"} == values.keys(), path
        for name, value in values.items():
            inner = schema["properties"][name]
            if isinstance(value, dict) and "properties" in inner:
                fields(inner, value, f"{path}.{name}")

    fields(SCHEMA, VALUES, "values")


def test_every_value_has_an_effect() -> None:
    """No template reads it by another name, and none was forgotten."""
    templates = "\n".join(f.read_text() for f in (CHART / "templates").rglob("*") if f.is_file())
    for group, values in VALUES.items():
        assert group in templates
        for name in values if isinstance(values, dict) else ():
            assert f".{name}" in templates, f"{group}.{name}"
