"""Training rows in an S3-compatible store."""

from __future__ import annotations

import gzip

import fsspec
import pytest

from services.api.spec import validate
from services.kit.errors import NotFound
from trainer_service.sources import EndOfData, open_training


def job(source: str):
    return validate(
        {
            "name": "t",
            "model": {"name": "lr"},
            "data": {"source": source},
            "features": {"label": "y", "sparse": {"id": {"encode": "id"}}},
        }
    )


def test_a_glob_of_packed_files(s3, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", s3.options)
    fs = fsspec.filesystem("s3")
    for name, first in (("b", 3), ("a", 0)):
        rows = "".join(f"0,{i}\n" for i in range(first, first + 3))
        fs.pipe_file(f"{s3.bucket}/day/{name}.csv.gz", gzip.compress(f"y,id\n{rows}".encode()))
    source = open_training(job(f"{s3.url}/day/*.csv.gz"), rank=0, trainers=1)
    batch = source.next_batch(0)
    assert batch is not None
    assert batch.keys.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(EndOfData):
        source.next_batch(0)
    with pytest.raises(NotFound, match=f"{s3.url}/night"):
        open_training(job(f"{s3.url}/night/*.csv.gz"), rank=0, trainers=1)
