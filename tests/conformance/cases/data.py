"""What stands in the records: numbers, text that is none, records without an id, versions out of turn."""

from dataclasses import replace

from tests.conformance.case import (
    CURSOR,
    PAGING,
    SINGLE,
    Case,
    Expect,
    Play,
    Run,
    Since,
    Stage,
    answered,
    ids,
    row,
    rows,
    up_to,
)
from tests.harness.listings import Answer


def raw(*records: bytes) -> Play:
    def play(stage: Stage) -> Run:
        answered(stage, b'{"data":[%s]}' % b",".join(records))
        yield None

    return play


def two_pages(*records: bytes) -> Play:
    """The records, and a good page after them."""

    def play(stage: Stage) -> Run:
        stage.serve([*records, *rows(2, first=8)], size=len(records))
        yield None

    return play


def written(body: bytes, kind: str) -> Play:
    def play(stage: Stage) -> Run:
        headers = (("Content-Type", kind),)
        stage.api.routes["/events"] = lambda request: Answer(request, headers=headers, body=body)
        yield None

    return play


def items(count: int) -> bytes:
    return b"<rss><channel>%s</channel></rss>" % b"".join(b"<item><id>r%d</id></item>" % n for n in range(1, count + 1))


CSV = replace(SINGLE, records="", format="csv", fields=["text"])
JSONL = replace(CSV, format="jsonl")
XML = replace(SINGLE, records="rss.channel.item", format="xml", fields=[])
QUOTED = b'id,text\r\nr1,"a, b"\r\nr2,"two\nlines"\r\n'
NUMBERED = replace(SINGLE, numeric=True, fields=["n"])
BIG = ("9007199254740993", "3241201784", "18446744073709551616")
TEXT = replace(SINGLE, fields=["text"])
TEXT_1, TEXT_3 = b'{"id":"r1","text":"a"}', b'{"id":"r3","text":"c"}'
GOOD, LAST = b'{"id":"r1","n":1}', b'{"id":"r3","n":3}'
AROUND = ids(1, 3)
NESTED = replace(SINGLE, since=Since("meta.updated_at"), fields=["meta"])

CASES = (
    *(
        Case(f"B60 {number}", f"ids are numbers: {number}", "every digit arrives", raw(b'{"id":%s}' % number.encode()),
             NUMBERED, Expect(values={number: {"id": number}}), stored=True)
        for number in BIG
    ),
    *(
        Case(f"B60 decimal {number}", f"a price is {number}", "every digit arrives",
             raw(b'{"id":"r1","n":%s}' % number.encode()), SINGLE, Expect(["r1"], values={"r1": {"n": number}}),
             stored=True)
        for number in ("0.1234567890123456789", "12345678901234567890.12")
    ),
    Case("B58", "a text holds \\u0000", "it is stored, and its neighbours too",
         raw(*(b'{"id":"r%d","text":"%s"}' % (n, b"a\\u0000b" if n == 2 else b"ab") for n in (1, 2, 3))),
         TEXT, Expect(up_to(3), values={"r2": {"text": '"a\\u0000b"'}}),
         stored=True),
    Case("odd control", "one record of three holds a raw control character",
         "its neighbours are read; it is set aside, not lost", raw(TEXT_1, b'{"id":"r2","text":"\x01"}', TEXT_3), TEXT,
         Expect(AROUND, full=up_to(3), dead_letters=1)),
    Case("odd surrogate", "a text holds a lone surrogate", "it is read, and its neighbours too",
         raw(TEXT_1, b'{"id":"r2","text":"\\ud800"}', TEXT_3), TEXT, Expect(up_to(3))),
    Case("odd NaN", "a number is NaN, which is no JSON", "by its policy it is null; the log holds valid JSON",
         raw(GOOD, b'{"id":"r2","n":NaN}', LAST), SINGLE, Expect(up_to(3), values={"r2": {"n": "null"}})),
    Case("odd UTF-8", "a text is Latin-1", "by its policy the character is replaced, and its neighbours are whole",
         raw(b'{"id":"r1","text":"\xc3\xa9"}', b'{"id":"r2","text":"\xe9"}'), TEXT,
         Expect(up_to(2), values={"r1": {"text": '"\\u00e9"'}, "r2": {"text": '"\\ufffd"'}})),
    Case("odd names", "a name stands twice in one record", "set aside by its policy: readers disagree on what it says",
         raw(GOOD, b'{"id":"r2","n":1,"n":2}', LAST), SINGLE, Expect(AROUND, dead_letters=1)),
    *(
        Case(f"X6 {name}", f"one record of three {what}", "its neighbours are read; it is set aside, not lost",
             raw(GOOD, bad, LAST), SINGLE, Expect(AROUND, dead_letters=1))
        for name, what, bad in (
            ("null", "has null as its id", b'{"id":null,"n":2}'), ("missing", "has no id", b'{"n":2}'),
            ("object", "has an object as its id", b'{"id":{"a":1},"n":2}'), ("number", "is a number", b"17"),
        )
    ),
    Case("X6 key", "the partition key of one record is null", "its id is the key", raw(GOOD, b'{"id":"r2","n":null}'),
         SINGLE, Expect(up_to(2)), keys={"key": "n"}),
    Case("X7", "a page holds two versions of a row, the older one last", "both arrive",
         raw(*(b'{"id":"r1","n":%d,"updated_at":"2024-01-0%dT00:00:00Z"}' % (n, n) for n in (2, 1))), SINGLE,
         Expect(up_to(1))),
    Case("BOM", "answers begin with a byte order mark", "it is left out", lambda stage: _with_bom(stage), SINGLE,
         Expect(up_to(2))),
    Case("CSV", "answers in CSV, with quoted commas and line ends", "every field arrives as it is",
         written(QUOTED, "text/csv"), CSV,
         Expect(up_to(2), values={"r1": {"text": '"a, b"'}, "r2": {"text": '"two\\nlines"'}})),
    Case("JSON Lines", "answers in JSON Lines", "every line is a record",
         written(b'{"id":"r1"}\n{"id":"r2"}\n', "application/x-ndjson"), JSONL, Expect(up_to(2))),
    Case("JSON Lines cut off", "answers in JSON Lines, and the last line breaks off", "not a success",
         written(b'{"id":"r1"}\n{"id":"r2', "application/x-ndjson"), JSONL, Expect([], [False])),
    *(
        Case(f"XML {count}", f"answers in XML, with {count} item(s)", "a list, also where it holds one",
             written(items(count), "application/xml"), XML, Expect(up_to(count)))
        for count in (1, 3)
    ),
    Case("nested", "the field that grows is nested", "it is found", lambda stage: _nested(stage), NESTED,
         Expect(up_to(2))),
    Case("B60 pages", "a bad record on page 1 of 2", "page 2 is read", two_pages(GOOD, b'{"id":null}', LAST),
         replace(CURSOR, paging=PAGING["cursor"]), Expect(ids(1, 3, 8, 9), dead_letters=1)),
)  # fmt: skip


def _with_bom(stage: Stage) -> Run:
    answered(stage, b'\xef\xbb\xbf{"data":[{"id":"r1"},{"id":"r2"}]}')
    yield None


def _nested(stage: Stage) -> Run:
    def one(n: int) -> dict[str, object]:
        return {"id": f"r{n}", "meta": {"updated_at": row(n)["updated_at"]}}

    answered(stage, {"data": [one(1)]})
    yield None
    answered(stage, {"data": [one(1), one(2)]})
    yield None
    bound = stage.asked[0].query.get("since", "")
    stage.must(bound.startswith("2024-01-01T00:00:01"), f"asks from {bound!r}, not from the highest")
