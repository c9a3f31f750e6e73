"""Messages, queues and the Kafka source without a broker."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.features import Features
from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput, Unavailable
from trainer_service.batch import Batch
from trainer_service.decode_message import ArrowDecoder, BadMessage, JsonDecoder
from trainer_service.sources import EndOfData, _message_source
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._message_source import MessageSource
from trainer_service.sources._messages import MessageQueue
from trainer_service.sources.kafka import KafkaUrl
from trainer_service.transform import Transform

COLUMNS = ["y", "id"]
FEATURES = Features.model_validate({"label": "y", "sparse": {"id": {"encode": "id"}}})


def arrow(rows: list[dict], schema: pa.Schema | None = None) -> bytes:
    table = pa.Table.from_pylist(rows, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def one(values: str) -> dict:
    decoder = JsonDecoder(["v"])
    rows = decoder.parse(('{"v": ' + values + "}").encode())
    return decoder.join([(rows, 0, 1)]).to_pylist()[0]


# ---- decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ('"a"', "a"),
        ("3", "3"),
        ("3.0", "3"),
        ("0.50", "0.5"),
        ("1e-5", "1e-05"),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
        ("null", None),
        ("NaN", None),
        ('""', ""),
        ('"é"', "é"),
    ],
)
def test_json_values_become_the_texts_of_the_same_value_elsewhere(literal, text):
    assert one(literal) == {"v": text}


def test_json_lists_and_half_surrogates():
    assert one('["a", 1, null]') == {"v": [b"a", b"1", None]}
    assert one(r'"\ud800"') == {"v": b"\xed\xa0\x80"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"w": 1}', "column 'v' is not there; it has: w"),
        (b'{"v": {"a": 1}}', "an object"),
        (b'{"v": [[1]]}', "a list of lists"),
    ],
)
def test_json_that_is_no_row_is_a_bad_message(value, reason):
    with pytest.raises(BadMessage, match=reason):
        JsonDecoder(["v"]).parse(value)


def test_arrow_messages():
    decoder = ArrowDecoder(COLUMNS)
    rows = decoder.parse(arrow([{"z": "?", "id": 5, "y": 1}, {"z": "!", "id": 6, "y": 0}]))
    assert rows.to_pylist() == [{"y": 1, "id": 5}, {"y": 0, "id": 6}]
    assert len(decoder.parse(arrow([], pa.schema([("y", pa.int8()), ("id", pa.int8())])))) == 0
    with pytest.raises(
        InvalidInput, match="column 'id' is not there exactly once; the message has: y"
    ):
        decoder.parse(arrow([{"y": 1}]))


@given(st.data())
def test_a_damaged_arrow_message_is_a_bad_message_and_never_a_crash(data):
    message = bytearray(arrow([{"y": i % 2, "id": str(i) * 9} for i in range(20)]))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    decoder = ArrowDecoder(COLUMNS)
    try:
        rows = decoder.parse(cut)
    except (BadMessage, InvalidInput):
        return
    Transform(FEATURES).apply(decoder.join([(rows, 0, len(rows))]))


# ---- queues ------------------------------------------------------------------------------------


def queue(
    decoder=None, *, start=(0, 0), end: int | None = 100, limit: int = 10, cuts=()
) -> MessageQueue:
    entry = PositionEntry(partition="t-0", major=start[0], minor=start[1], end=end or 0)
    decoder = decoder or JsonDecoder(COLUMNS)
    return MessageQueue("t-0", entry, end, decoder, BadRows(limit), cuts=cuts)


def row(i: int) -> dict:
    return {"y": 0, "id": i}


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.integers(1, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.data(),
)
def test_a_successor_ends_batches_where_servers_are(sizes, gap, limits, other_limits, data):
    """One queue is read in batches of some sizes; another one, which cuts at places that the first
    one reached, in batches of other sizes: no batch lies on both sides of such a place.
    """
    schema = pa.schema([("y", pa.int8()), ("id", pa.uint64())])
    messages = [arrow([row(v) for v in range(n)], schema) for n in sizes]

    def ends(limits: list[int], start: tuple[int, int], cuts: list[tuple[int, int]]) -> list:
        q = queue(ArrowDecoder(COLUMNS), start=start, cuts=cuts)
        for i, message in enumerate(messages):
            if gap * i >= start[0]:
                q.add(gap * i, message)
        places: list[tuple[int, int]] = []
        while q.rows:
            q.take(limits[len(places) % len(limits)])
            places.append((q.position.major, q.position.minor))
        return places

    reached = ends(limits, (0, 0), [])
    begin = data.draw(st.integers(0, len(reached)))
    start = reached[begin - 1] if begin else (0, 0)
    cuts = sorted(data.draw(st.sets(st.sampled_from(reached[begin:] or [(0, 0)]))))
    cuts = [cut for cut in cuts if cut > start]
    again = ends(other_limits, start, cuts)
    assert set(cuts) <= set(again)
    assert again == sorted(again)


@given(
    st.lists(st.lists(st.integers(0, 2**60), max_size=5), max_size=8),
    st.integers(1, 7),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_rows_of_packed_messages_come_once_over_any_stops(messages, gap, limits):
    """Each queue takes one batch; the next queue goes on from its position."""
    schema = pa.schema([("y", pa.int8()), ("id", pa.uint64())])
    stream = [(gap * i, arrow([row(v) for v in m], schema)) for i, m in enumerate(messages)]
    position, got = (0, 0), []
    for turn in range(1000):
        q = queue(ArrowDecoder(COLUMNS), start=position)
        for offset, value in stream:
            if offset >= position[0]:
                q.add(offset, value)
        if not q.rows:
            break
        got += q.take(limits[turn % len(limits)]).column("id").to_pylist()
        position = (q.position.major, q.position.minor)
    assert got == [v for m in messages for v in m]


def test_messages_of_different_schemas_go_into_different_batches():
    q = queue(ArrowDecoder(COLUMNS))
    q.add(0, arrow([{"y": 0, "id": 1}]))
    q.add(1, arrow([{"y": 0, "id": "2"}]))
    assert q.take(10).column("id").to_pylist() == [1]
    assert q.position.major == 1
    assert q.take(10).column("id").to_pylist() == ["2"]
    assert (q.rows, q.position.major) == (0, 2)


def test_a_queue_ends_at_its_end():
    q = queue(end=2)
    assert not q.complete
    q.add(0, json.dumps(row(1)).encode())
    assert not q.complete
    q.add(1, None)  # a tombstone is a bad row, and the end
    assert q.complete
    q.add(2, json.dumps(row(3)).encode())
    assert q.rows == 1
    assert queue(start=(2, 0), end=2).complete
    assert not queue(end=None).complete


# ---- the source over a fake topic --------------------------------------------------------------


class FakeTopic:
    """A topic in memory; `alive` False makes every question fail as a dead broker does."""

    def __init__(self, messages: dict[int, list[bytes]], gap: int = 0) -> None:
        self.messages = messages
        self.gap = gap  # offsets at the end that hold no message (transaction markers)
        self.alive = True
        self.at: dict[int, int] = {}
        self.stopped: set[int] = set()

    def seek(self, offsets):
        self.at = dict(offsets)

    def poll(self, seconds, most):
        found = {}
        for number in self.at.keys() - self.stopped if self.alive else ():
            first = self.at[number]
            values = self.messages[number][first : first + most]
            if values:
                found[number] = [(first + i, value) for i, value in enumerate(values)]
                self.at[number] = first + len(values)
                return found  # as a broker does: not all partitions at once
        return found

    def next_offset(self, number):
        done = self.at[number] >= len(self.messages[number])
        return self.at[number] + (self.gap if done else 0)

    def ranges(self):
        if not self.alive:
            raise Unavailable("Kafka broker fake:9092 doesn't answer")
        return {n: (0, self.high_water(n)) for n in self.messages}

    def high_water(self, number):
        return len(self.messages[number]) + self.gap

    def stop_reading(self, number):
        self.stopped.add(number)

    def close(self):
        pass


def source(
    topic: FakeTopic, *, batch_size: int = 4, endless: bool = False, limit: int = 0, cuts=()
) -> MessageSource:
    bad_rows = BadRows(limit)
    decoder = JsonDecoder(COLUMNS)
    queues = {}
    for number in topic.messages:
        end = None if endless else topic.high_water(number)
        entry = PositionEntry(partition=f"t-{number}", major=0, minor=0, end=end or 0)
        queues[number] = MessageQueue(entry.partition, entry, end, decoder, bad_rows, cuts=cuts)
    return MessageSource(
        topic,
        queues,
        Transform(FEATURES),
        batch_size,
        bad_rows,
        endless=endless,
        poll_messages=3,
        total_samples=None,
    )


def messages(count: int, first: int = 0) -> list[bytes]:
    return [json.dumps(row(first + i)).encode() for i in range(count)]


def take(src: MessageSource, timeout: float = 0.01) -> Batch:
    batch = src.next_batch(timeout)
    assert batch is not None
    return batch


def drain(src: MessageSource) -> list[list[int]]:
    batches = []
    try:
        while True:
            batch = src.next_batch(0.01)
            assert batch is not None
            batches.append(batch.keys.tolist())
    except EndOfData:
        return batches


@pytest.mark.parametrize("gap", [0, 2])
def test_a_bounded_source_hands_out_full_batches_and_ends(gap):
    src = source(FakeTopic({0: messages(10), 3: messages(5, 100), 5: []}, gap))
    batches = drain(src)
    assert sorted(map(len, batches)) == [1, 2, 4, 4, 4]
    for numbers in (range(10), range(100, 105)):
        assert [i for batch in batches for i in batch if i in numbers] == list(numbers)
    assert {p.partition: p.major for p in src.positions()} == {"t-0": 10, "t-3": 5, "t-5": 0}
    assert src.lag() == (3 * gap if gap else 0)


def test_ranges_lie_end_to_end_over_bad_rows_too():
    bad = json.dumps({"y": 5, "id": 1}).encode()
    stream = [*messages(3), *[bad] * 6, b"{oops", *messages(3, 3)]
    src = source(FakeTopic({0: stream}), batch_size=3, limit=7)
    ranges = [take(src, 5.0).rows for _ in range(2)]
    assert [(r.first, r.last) for r in ranges] == [((0, 0), (3, 0)), ((3, 0), (13, 0))]


def test_bad_rows_before_a_cut_make_an_empty_batch():
    """A server that has applied up to the cut must not get a range that begins before it."""
    bad = json.dumps({"y": 5, "id": 1}).encode()
    src = source(FakeTopic({0: [*messages(3), bad, bad, *messages(3, 3)]}), limit=4, cuts=[(5, 0)])
    src._batch_size = 3  # the batch that ended at the cut was larger
    got = [take(src, 5.0) for _ in range(3)]
    assert [b.samples for b in got] == [3, 0, 3]
    assert [b.rows.last for b in got] == [(3, 0), (5, 0), (8, 0)]


def test_an_idle_endless_source_hands_out_what_waits_and_then_nothing():
    topic = FakeTopic({0: messages(5)})
    src = source(topic, endless=True)
    assert [take(src).samples for _ in range(2)] == [4, 1]
    assert src.next_batch(0.01) is None
    topic.messages[0] += messages(2, 5)
    assert take(src).keys.tolist() == [5, 6]
    assert src.lag() == 0


def test_a_trainer_without_partitions():
    with pytest.raises(EndOfData):
        source(FakeTopic({})).next_batch(0.01)
    assert source(FakeTopic({}), endless=True).next_batch(0.0) is None


def test_bad_messages_and_rows_are_counted_and_named(caplog):
    stream = [*messages(2), b"{oops", json.dumps({"y": 5, "id": 1}).encode(), *messages(2, 2)]
    with caplog.at_level("WARNING"):
        src = source(FakeTopic({0: stream}), limit=2)
        assert [i for batch in drain(src) for i in batch] == [0, 1, 2, 3]
    assert src.bad_rows == 2
    assert "t-0 offset 2: not JSON" in caplog.text
    assert "{oops" in caplog.text
    with pytest.raises(
        InvalidInput, match=r"2 bad rows, .*max_bad_rows allows 1; the last one: t-0"
    ):
        drain(source(FakeTopic({0: stream}), limit=1))


def test_a_silent_broker_is_probed_and_given_up(monkeypatch):
    monkeypatch.setattr(_message_source, "_PROBE_AFTER", 0.0)
    topic = FakeTopic({0: messages(1)})
    src = source(topic, endless=True)
    assert src.next_batch(0.0) is not None or src.next_batch(0.01) is not None
    monkeypatch.setattr(_message_source, "_GIVE_UP_AFTER", 0.0)
    assert src.next_batch(0.001) is None  # idle, but it answers
    topic.alive = False
    with pytest.raises(Unavailable, match="fake:9092"):
        src.next_batch(0.01)


@pytest.mark.parametrize(
    "url",
    [
        "kafka://host:9092",
        "kafka:///t",
        "kafka://h:9092/a/b",
        "kafka://h:port/t",
        "kafka://h:1,:x/t",
    ],
)
def test_urls_that_name_no_topic_are_refused(url):
    with pytest.raises(InvalidInput, match=r"data\.source"):
        KafkaUrl.parse(url)


def test_urls():
    parsed = KafkaUrl.parse("kafka://a:1,b/clicks")
    assert parsed == KafkaUrl(("a:1", "b:9092"), "clicks")
