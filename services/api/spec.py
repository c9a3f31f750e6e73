"""JobSpec: the user's contract for one training job. Short, guessable, strict.

`parse` reads YAML or JSON text and reports every problem by the path of its field.
`docs/jobspec.md` is generated from these classes.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import pydantic
import yaml
from pydantic import Field, field_validator, model_validator

from services.api.autoscale import Autoscale
from services.api.base import Duration, Strict
from services.api.features import Features
from services.api.optimizers import KSTEP_OPTIMIZERS, Optimizers
from services.api.resources import Resources
from services.kit.errors import InvalidInput

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")]
SCHEMES = ("file", "s3", "kafka", "synthetic")
_MAX_DEPTH, _ROWS_AHEAD = 50, 2  # of YAML; batches, unless the spec says otherwise
# Looks at a few items only: the full repr of a few YAML aliases of aliases can fill the memory.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


class ModelSpec(Strict):
    """Which network is trained."""

    name: str = Field(description="lr, wide_deep, deepfm, dnn, or your own `module:function`.")
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = Field(
        default=(256, 128, 64),
        max_length=16,
        description="Units of the hidden layers of the deep part.",
    )


class Holdout(Strict):
    """Rows kept for the evaluation at the end; exactly one of the two."""

    last: float | None = Field(
        default=None, gt=0, lt=1, description="The last share of the rows, in file or offset order."
    )
    source: str | None = Field(
        default=None, description="A source of its own, e.g. file://test.tsv.gz."
    )

    @model_validator(mode="after")
    def _one(self) -> Holdout:
        if (self.last is None) == (self.source is None):
            raise ValueError("give exactly one of last and source")
        return self


class Data(Strict):
    """Where the samples come from."""

    source: str = Field(
        description="file://PATH or GLOB, s3://…, kafka://HOST:PORT/TOPIC, "
        "synthetic://criteo?rows=1000000."
    )
    format: Literal["auto", "criteo-tsv", "tsv", "csv", "parquet", "json", "arrow"] = Field(
        default="auto",
        description="Files: criteo-tsv (header optional), tsv and csv (with header), parquet; .gz "
        "is unpacked. Kafka: json (one row per message) or arrow (an Arrow IPC stream with many "
        "rows per message).",
    )
    holdout: Holdout | None = Field(
        default=None, description="Rows kept for the evaluation at the end."
    )
    max_bad_rows: int = Field(
        default=0, ge=0, description="Malformed rows to skip and count before the job fails."
    )
    kafka_client: Literal["kafka-python", "confluent"] = Field(
        default="kafka-python",
        description="Kafka: which client reads. confluent (librdkafka, the extra "
        "embermesh[confluent]) reads topics of single-row messages several times faster; for "
        "packed ones (format arrow) there is little to gain.",
    )
    endless: bool = Field(
        default=False,
        description="Kafka: go on for ever, instead of ending at the offsets found at the start.",
    )

    @field_validator("source")
    @classmethod
    def _scheme(cls, source: str) -> str:
        parts = urlsplit(source)
        if "://" not in source or parts.scheme not in SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ValueError(f"{source!r} must start with one of {known}")
        if not source.partition("://")[2]:
            raise ValueError(f"{source!r} names nothing after ://")
        if parts.scheme == "kafka" and not (parts.netloc and parts.path.strip("/")):
            raise ValueError(f"{source!r} must look like kafka://HOST:PORT/TOPIC")
        return source

    @model_validator(mode="after")
    def _format_fits(self) -> Data:
        kafka = self.source.startswith("kafka://")
        if kafka and self.format not in ("json", "arrow"):
            raise ValueError("a kafka:// source needs format: json or format: arrow")
        if not kafka and self.format in ("json", "arrow"):
            raise ValueError(f"format {self.format} is for kafka:// sources")
        if self.endless and not kafka:
            raise ValueError("endless is for kafka:// sources")
        if self.endless and self.holdout is not None and self.holdout.last is not None:
            raise ValueError("an endless job has no last rows; give holdout.source")
        return self


class Wire(Strict):
    """How rows and gradients travel between trainers and sparse parameter servers."""

    values: Literal["fp32", "fp16", "scaled-fp16"] = Field(
        default="fp32",
        description="fp32: exact. fp16: half the bytes; finite values beyond ±65504 are clipped, "
        "and small gradients lose digits. scaled-fp16: 16 bits of each value over the largest of "
        "its block of 64; nothing is clipped and small gradients keep 11 bits. What is clipped or "
        "becomes zero is counted in embermesh_sparse_rounded_values_total.",
    )


class Pipeline(Strict):
    """What overlaps the step of a trainer."""

    depth: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Batches whose rows are read while an earlier one is trained, at most "
        "training.staleness; 0: none, and only 0 in mode sync. Rows that the trainer itself "
        "changes meanwhile are read after that change. Default: 2, or staleness if that is less; 0 "
        "where all rows are in the memory of the one trainer itself (placement embedded).",
    )


class Training(Strict):
    """How it is trained."""

    mode: Literal["hybrid", "sync", "async", "kstep"] = Field(
        default="hybrid",
        description="sync: rows and dense parameters change once a step, by all trainers together. "
        "hybrid: rows change as gradients arrive, dense parameters as in sync. async: both change "
        "as gradients arrive. kstep: rows as in hybrid; each trainer steps its own dense "
        "parameters, which are averaged every k steps. docs/training-modes.md says when to use "
        "which.",
    )
    k: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Mode kstep: steps between two merges of the trainers' dense parameters. "
        "optimizers.dense must be adam or adamw.",
    )
    batch_size: int = Field(
        default=256, ge=1, le=65_536, description="Rows per step of one trainer."
    )
    epochs: int = Field(
        default=1, ge=1, le=1_000, description="Passes over the data; Kafka sources take one."
    )
    staleness: int = Field(
        default=4,
        ge=0,
        le=64,
        description="Bound on the steps between the read of a row and the write of its gradient; a "
        "trainer's own writes are always in what it reads.",
    )
    pipeline: Pipeline = Field(default_factory=Pipeline)
    xla: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether XLA compiles the step. auto: each trainer measures both at its start "
        "and takes the faster; in mode sync it is off, since a choice by the clock would cost the "
        "equal bits of two runs.",
    )
    project: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: in batches whose samples share many keys, a network that begins with a "
        "dense layer over joined inputs, such as model dnn, multiplies every distinct row with "
        "that layer's weights once, not once a sample. The result differs in rounding only. off: "
        "never.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Fixes initial rows, dense parameters and synthetic data.",
    )
    wire: Wire = Field(
        default_factory=Wire, description="Size against precision of what goes over the network."
    )

    @model_validator(mode="after")
    def _same_bits(self) -> Training:
        if self.mode == "sync" and self.wire.values == "scaled-fp16":
            raise ValueError(
                "wire.values: scaled-fp16 scales blocks whose rows depend on the number of shards; "
                "mode sync promises the same bits for any number: use fp32 or fp16"
            )
        return self

    @property
    def depth(self) -> int:
        """Batches whose rows are read ahead."""
        if self.pipeline.depth is not None:
            return self.pipeline.depth
        return 0 if self.mode == "sync" else min(_ROWS_AHEAD, self.staleness)

    @property
    def compiler(self) -> Literal["auto", "on", "off"]:
        """`xla` as a trainer has to take it in this mode."""
        return "off" if self.mode == "sync" and self.xla == "auto" else self.xla

    @field_validator("xla", "project", mode="before")
    @classmethod
    def _yaml_words(cls, value: Any) -> Any:
        """YAML reads a bare on or off as true or false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _depth_fits(self) -> Training:
        if self.mode == "sync" and self.depth > 0:
            raise ValueError(
                f"pipeline.depth is {self.depth}: mode sync reads no row ahead, give 0"
            )
        if self.depth > self.staleness:
            raise ValueError(
                f"pipeline.depth is {self.depth}, must be at most staleness, {self.staleness}"
            )
        return self


class CheckpointSpec(Strict):
    """Where and how often the job's state is written."""

    to: str = Field(
        description="Folder URI: file://PATH or s3://BUCKET/PREFIX; each job gets its own below."
    )
    every: Duration | None = Field(
        default=None,
        gt=0,
        description="Time between checkpoints, e.g. 60s; none = at the end only.",
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="Newest checkpoints kept; older ones are removed."
    )
    deltas: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="After a whole checkpoint, so many hold only the rows changed since the one "
        "before; what they build upon is kept with them.",
    )

    @field_validator("to")
    @classmethod
    def _uri(cls, to: str) -> str:
        scheme, _, rest = to.partition("://")
        if scheme not in ("file", "s3") or not rest.strip("/"):
            raise ValueError(f"{to!r} must be file://FOLDER or s3://BUCKET/PREFIX")
        return to


class JobSpec(Strict):
    """One training job."""

    name: Name = Field(description="Lower-case letters, digits and dashes; part of the job's id.")
    model: ModelSpec
    data: Data
    features: Features
    training: Training = Field(default_factory=Training)
    optimizers: Optimizers = Field(default_factory=Optimizers)
    resources: Resources = Field(default_factory=Resources)
    checkpoint: CheckpointSpec | None = Field(
        default=None, description="Without it nothing is kept after the job."
    )
    autoscale: Autoscale | None = Field(
        default=None, description="Without it the numbers of processes stay as they are."
    )
    max_restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Attempts after a process of the job died, replaced trainers included.",
    )

    @property
    def rows_ahead(self) -> int:
        """Batches whose rows are read ahead: `training.depth`, but by default none of those that
        all lie in the one trainer's own memory. To find out which of them may be read early costs
        more than the wait.
        """
        own = self.resources.embedded and self.resources.trainers == 1
        return 0 if own and self.training.pipeline.depth is None else self.training.depth

    @model_validator(mode="after")
    def _together(self) -> JobSpec:
        if self.training.epochs > 1 and self.data.source.startswith("kafka://"):
            raise ValueError("training.epochs: a kafka:// source is read once")
        if self.autoscale is not None and self.checkpoint is None:
            raise ValueError("autoscale: a change of scale goes through a checkpoint; give one")
        if self.resources.embedded and self.autoscale is not None and self.autoscale.sparse_ps:
            raise ValueError(
                "autoscale.sparse_ps: with placement embedded each trainer has one shard; "
                "scale trainers"
            )
        dense = self.optimizers.dense.name
        if self.training.mode == "kstep" and dense not in KSTEP_OPTIMIZERS:
            raise ValueError(
                f"optimizers.dense: training.mode kstep averages Adam's second moments; {dense!r} "
                f"has none, use one of {', '.join(KSTEP_OPTIMIZERS)}"
            )
        return self


def parse(text: str | bytes) -> JobSpec:
    """JobSpec from YAML or JSON text.

    Raises InvalidInput with one line per problem, each naming its field.
    """
    try:
        document: Any = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that isn't one
        raise InvalidInput(f"not YAML or JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"a JobSpec is a mapping, got {type(document).__name__}")
    return validate(document)


def validate(document: dict[str, Any]) -> JobSpec:
    """JobSpec from a parsed document. Raises InvalidInput like `parse`."""
    try:
        return JobSpec.model_validate(document)
    except pydantic.ValidationError as error:
        raise InvalidInput("\n".join(problems(error))) from error


class _StrictLoader(yaml.SafeLoader):
    """YAML where a key given twice is an error (else the last one wins), and of bounded depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self._depth == _MAX_DEPTH:
            problem = f"nested deeper than {_MAX_DEPTH} levels"
            mark = parent.start_mark if parent else None
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    problem = f"key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def problems(error: pydantic.ValidationError) -> list[str]:
    """`field.path: what is wrong (got value)` for every problem."""
    lines = []
    for item in error.errors(include_url=False):
        path = ".".join(str(p) for p in item["loc"]) or "jobspec"
        message = item["msg"].removeprefix("Value error, ")
        shown = _SHORT.repr(item["input"])
        got = f" (got {shown})" if item["type"] not in ("missing", "value_error") else ""
        lines.append(f"{path}: {message}{got}")
    return lines
