"""All that a gateway with target `kubernetes` may do in its namespace, as rules of a Role.

The Helm chart carries the same as helm/embermesh/files/rbac-rules.yaml; a test compares, and
another asks a real API server that these suffice.
"""

from __future__ import annotations

from typing import Any

import yaml

RULES: list[dict[str, Any]] = [
    # Ledgers are read, and written by compare-and-set.
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "create", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "create", "delete"]},
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list", "create", "delete"]},
    # Grants are annotations of pods.
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


def render() -> str:
    """The chart's file."""
    note = "# Written by `python -m tools.gen_docs` from gateway/kubernetes/rbac.py.\n"
    return note + yaml.safe_dump(RULES, sort_keys=False)
