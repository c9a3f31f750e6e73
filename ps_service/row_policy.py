"""Which keys of a table get a row, and which rows go: the forms of the job, the wire and the native
core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ps_service import _native
from services.api.lifecycle import Admission, Eviction
from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class RowPolicy:
    """Without arguments: every key that is trained gets a row, and rows stay."""

    admission: str = "all"
    admission_params: Mapping[str, float] = dataclasses.field(default_factory=dict)
    eviction: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, admission: Admission | None, eviction: Eviction | None) -> RowPolicy:
        """What a JobSpec says about a table."""
        name, params = admission.policy() if admission else ("all", {})
        return cls(name, params, eviction.rules() if eviction else {})

    @property
    def scores(self) -> bool:
        """Whether rows are judged by the shows and clicks that come with gradients."""
        return "score" in self.eviction

    def to_proto(self) -> ps_pb2.RowPolicy:
        """The wire form."""
        return ps_pb2.RowPolicy(
            admission=ps_pb2.Policy(name=self.admission, params=dict(self.admission_params)),
            eviction=[
                ps_pb2.Policy(name=name, params=dict(params))
                for name, params in sorted(self.eviction.items())
            ],
        )

    @classmethod
    def from_proto(cls, policy: ps_pb2.RowPolicy) -> RowPolicy:
        """Inverse of to_proto; an absent message means no policy."""
        return cls(
            admission=policy.admission.name or "all",
            admission_params=dict(policy.admission.params),
            eviction={rule.name: dict(rule.params) for rule in policy.eviction},
        )

    def native(self) -> _native.RowPolicy:
        """The native core's form. Raises ValueError that names the rule, value and bounds."""
        return _native.RowPolicy(
            admission=self.admission,
            admission_params=dict(self.admission_params),
            eviction={name: dict(params) for name, params in self.eviction.items()},
        )


KEEP_ALL = RowPolicy()
