"""`resources.pods` of a JobSpec: sizes as people write them, errors by the field's path."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.spec import JobSpec, validate
from services.kit.errors import InvalidInput
from tests.fixtures.kubernetes_objects import SPEC


def parsed(pods: Any) -> JobSpec:
    return validate({**SPEC, "resources": {"pods": pods}})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512Mi", 512 << 20),
        ("4Gi", 4 << 30),
        ("1.5Gi", 3 << 29),
        ("2G", 2_000_000_000),
        ("1500000000", 1_500_000_000),
        (1_500_000_000, 1_500_000_000),
    ],
)
def test_memory_is_read_as_people_write_it(text: Any, size: int) -> None:
    spec = parsed({"trainer": {"memory": text}})
    assert spec.resources.pods.trainer is not None
    assert spec.resources.pods.trainer.memory == size
    again = validate(spec.model_dump(mode="json"))
    assert again == spec


@pytest.mark.parametrize(
    ("pods", "complaint"),
    [
        ({"trainer": {"memory": "4 gigs"}}, r"pods\.trainer\.memory: '4 gigs' is not a size"),
        ({"trainer": {"memory": "1Ki"}}, r"pods\.trainer\.memory: .*greater than or equal"),
        ({"sparse_ps": {"cpu": 0}}, r"pods\.sparse_ps\.cpu: .*greater than or equal to 0\.001"),
        ({"gateway": {}}, r"pods\.gateway: Extra inputs are not permitted"),
        ({"dense_ps": {"gpu": 1}}, r"pods\.dense_ps\.gpu: Extra inputs"),
    ],
)
def test_a_wrong_size_is_refused_by_its_path(pods: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parsed(pods)
