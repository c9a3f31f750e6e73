"""Sources: where batches come from; one module per URL scheme, with two functions.

To add one, write `trainer_service/sources/<scheme>.py` with `open_training` and
`open_holdout` as here, and name the scheme in `services.api.spec.SCHEMES`. A source is a plain pull
object: the next batch, the positions, close. It never reads ahead of what it handed out, as far as
positions tell, and everything it needs to go on is in its positions. The batches of a source
partition are its rows in order, end to end: the place where one ends is where the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from ps_service.client.claim import Claimed
from services.api.manifest import PositionEntry
from services.api.spec import JobSpec
from services.kit import plugins
from trainer_service.batch import Batch

# Takes over source partitions, given with the places to begin at; answers where each goes on.
Claimer = Callable[[Sequence[PositionEntry]], Mapping[str, Claimed]]

_MODULES = {"s3": "file"}  # schemes that another scheme's module reads


class EndOfData(Exception):
    """The source has handed out its last batch."""


class Source(Protocol):
    """Batches of one trainer. For one thread at a time, except `lag` and `bad_rows`."""

    @property
    def bad_rows(self) -> int:
        """Rows skipped so far, each counted by one trainer of the job."""

    @property
    def total_samples(self) -> int | None:
        """Rows of the whole job incl. epochs, where known."""

    def next_batch(self, timeout: float) -> Batch | None:
        """The next batch; None when there is none within `timeout` seconds. It is empty only where
        malformed rows are all that is left before a cut.

        Raises EndOfData at the end; InvalidInput above `data.max_bad_rows` and for columns that
        aren't there; Damaged, NotFound or Unavailable for files and brokers, naming them.
        """

    def positions(self) -> list[PositionEntry]:
        """Next unread place of every source partition of this trainer, as handed out."""

    def lag(self) -> int | None:
        """Kafka: messages in the trainer's partitions that it hasn't handed out yet."""

    def close(self) -> None:
        """Frees files and connections; may be called twice."""


def at_the_start(starts: Sequence[PositionEntry]) -> dict[str, Claimed]:
    """A Claimer for who reads alone."""
    return {start.partition: Claimed(start) for start in starts}


def open_training(
    spec: JobSpec,
    *,
    rank: int,
    trainers: int,
    resume: Mapping[str, PositionEntry] | None = None,
    claim: Claimer = at_the_start,
) -> Source:
    """This trainer's share of the training rows.

    `resume` are the positions of a manifest, of any former trainer count; `claim` is called once,
    with this trainer's source partitions.

    Raises what `Source.next_batch` raises, at once where the trouble shows at once.
    """
    opener = _function(spec.data.source, "open_training")
    source: Source = opener(spec, rank=rank, trainers=trainers, resume=resume or {}, claim=claim)
    return source


def open_holdout(spec: JobSpec) -> Source | None:
    """Every held-out row once, in order; None when the spec holds nothing out.

    Open it when the training is over: a growing Kafka topic's last share is the share at that time.
    """
    holdout = spec.data.holdout
    url = holdout.source if holdout is not None and holdout.source is not None else spec.data.source
    source: Source | None = _function(url, "open_holdout")(spec, url)
    return source


def _function(url: str, name: str) -> Callable[..., Any]:
    scheme = url.split("://", 1)[0]
    return cast(Callable[..., Any], plugins.load(__name__, _MODULES.get(scheme, scheme), name))
