"""The chart as Helm's own engine renders it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import helm_python
import pytest
import yaml

from tests.fixtures.helm_values import CHART, NAMESPACE, RELEASE, Manifest, Render


@pytest.fixture(scope="session")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as chart:
        yield chart


@pytest.fixture(scope="session")
def render(chart: helm_python.Chart) -> Render:
    """Values -> objects, hooks included."""

    def rendered(values: Mapping[str, Any]) -> list[Manifest]:
        texts = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
        return [
            document
            for path, text in texts.items()
            if path.endswith(".yaml")
            for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
            if document
        ]

    return rendered
