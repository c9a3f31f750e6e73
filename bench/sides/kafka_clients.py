"""Messages and rows/s that each Kafka client hands out of a local broker, single-row and packed.

Only reading: what a job's source asks of its stream, nothing is decoded. Needs the broker of `make
setup`. The process's CPU time gives the rate per core; the broker is another process. Prints one
JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.sides.decode import ROWS_PER_MESSAGE, job, write_text
from embermesh.produce import produce
from services.api.spec import JobSpec, validate
from tests.fixtures.kafka_broker import KafkaBroker
from trainer_service.sources.kafka import KafkaUrl, connect

CLIENTS, FORMATS = ("kafka-python", "confluent"), {"json": 512, "arrow": 16}  # messages per poll


def read(spec: JobSpec, most: int) -> tuple[int, float, float]:
    """Messages of the topic, seconds by the clock, and seconds of CPU time."""
    with closing(connect(spec, KafkaUrl.parse(spec.data.source))) as stream:
        ranges = stream.ranges()
        left = sum(end - first for first, end in ranges.values())
        wall, cpu, messages = time.perf_counter(), time.process_time(), left
        stream.seek({number: first for number, (first, _) in ranges.items()})
        while left > 0:
            left -= sum(map(len, stream.poll(10.0, most).values()))
        return messages, time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    java = shutil.which("java")
    if java is None:
        raise SystemExit("java is missing; see make setup")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.tsv"
        write_text(path, args.rows)
        broker = KafkaBroker(Path(folder), java)
        broker.format()
        broker.start()
        try:
            found = measure(broker.bootstrap, path, args.rounds)
        finally:
            broker.stop()
    sys.stdout.write(json.dumps(found) + "\n")


def measure(servers: str, path: Path, rounds: int) -> dict[str, dict[str, int]]:
    rates: dict[str, dict[str, list[float]]] = {}
    for form in FORMATS:
        produce(
            f"file://{path}", servers, form, message_format=form, data_format="criteo-tsv",
            rows_per_message=ROWS_PER_MESSAGE, create_partitions=2,
        )  # fmt: skip
    for _ in range(rounds):
        for form, most in FORMATS.items():
            for client in CLIENTS:
                document = job(path).model_dump(mode="json")
                document["data"] = {
                    "source": f"kafka://{servers}/{form}", "format": form, "kafka_client": client,
                }  # fmt: skip
                messages, wall, cpu = read(validate(document), most)
                seen = rates.setdefault(f"{form} by {client}", {"per_second": [], "per_core": []})
                seen["per_second"].append(messages / wall)
                seen["per_core"].append(messages / cpu)
    return {
        name: {unit: round(statistics.median(values)) for unit, values in seen.items()}
        for name, seen in rates.items()
    }


if __name__ == "__main__":
    main()
