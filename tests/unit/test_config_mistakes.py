"""Each mistake has its place and its words; and no text whatever makes the loader fail in another way."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.config.loader import MAX_BYTES, Loaded, load, parse
from ingest.config.notbuilt import NOT_BUILT, NOT_BUILT_VALUES
from ingest.config.problems import ConfigErrors
from ingest.config.shape import every_key
from tests.unit.test_config_loader import EXAMPLES, mistakes, stream

STREAM = "path: /x, records: $"  # what follows begins in column 37


def one(keys: str) -> str:
    """The only mistake in a stream with these keys, as `column: message`."""
    [line] = mistakes(stream(f"{STREAM}, {keys}"))
    place, _, message = line.partition(": ")
    assert place.startswith("ingest.yaml:6:")
    return f"{place.removeprefix('ingest.yaml:6:')}: {message}"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("every: 5ms", "44: `every` must be at least 10ms"),
        ("every: 40000d", "44: `40000d` is more than 100 years: no database has a time for that"),
        ("every: 5", "44: `5` is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d"),
        ('every: 5m, cron: "0 6 * * *"', "54: `every` and `cron` both say when; write one of them"),
        (
            "cron: 0 6 * * * *",
            "43: `0 6 * * * *` has 6 fields; a cron expression has five, and none of them for seconds: minute, hour,"
            " day of the month, month, day of the week",
        ),
        ("cron: 0 0 30 2 *", "43: `0 0 30 2 *` never fires: there is no such date"),
        ("cron: 0 25 * * *", "43: `0 25 * * *`: `25` is no hour"),
        ('cron: "${env:WHEN}"', "43: a cron expression holds no reference"),
        (
            "cron: 0 6 * * *, timezone: Europe/Berln",
            "64: unknown time zone `Europe/Berln`, did you mean `Europe/Berlin`?",
        ),
        ("cron: 0 6 * * *, timezone: berlin", "64: unknown time zone `berlin`, did you mean `Europe/Berlin`?"),
        (
            "cron: 0 6 * * *, overlap: queue",
            "63: `queue` is not one of skip, queue_one, allow, cancel_previous, did you mean `queue_one`?",
        ),
        ("cron: 0 6 * * *, dst: {gap: shfit}", "65: `shfit` is not one of shift, skip, did you mean `shift`?"),
        (
            "cron: 5 * * * *, dst: {fold: last}",
            "59: `5 * * * *` is for every hour of the day and goes by elapsed time: `dst` means nothing",
        ),
        ("every: 1d, timezone: UTC", "58: `timezone` is of `cron`, which is not here: `every` knows no time of day"),
        ("every: {interval: 5m, cron: 0 6 * * *}", "65: `every` and `cron` both say when; write one of them"),
        (
            "every: {interval: 5m, intervall: 1m}",
            "44: a mapping is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d",
        ),
        (
            "every: {interval: 5m, jitter: 1x}",
            "67: `1x` is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d",
        ),
        ("catch_up: none, catch_up_window: 1h", "70: `catch_up_window` means nothing: `catch_up` is `none`"),
        ("max_catch_up: 3", "51: `max_catch_up` is of `catch_up: all`; here it is `latest`"),
        ("attempts: 0", "47: `attempts` must be at least 1"),
        ("seen_limit: 1.5", "49: `seen_limit` must be a whole number, not `1.5`"),
        ('seen_limit: "${env:N}"', "49: a number carries no reference"),
        ('key: "$.["', "42: cannot read the path '$.[' at '.['"),
        ('key: "${env:KEY}"', "42: a path holds no reference"),
        ("id: [id, 5]", "46: write a path: id, a.b, $.data"),
        ("parent: {stream: repos, skip_on: [200]}", "71: `skip_on` must be at least 400"),
        ("parent: {stream: repos, state: global}", "68: `state` must be `per_parent`"),
        (
            "id: a, deletes: {soft: 'a ='}",
            "60: `a =` is no JMESPath expression: Bad jmespath expression: Unknown token '=':",
        ),
        (
            "conditional: true, paginate: link",
            "50: only with `paginate: none`: a first page that is the same says nothing of the second",
        ),
        ("conditional: true, json: {a: b}", "50: `conditional` means nothing to a request that is no GET"),
        ("parent: {stream: a, changed: true}", "57: unknown key `changed`, did you mean `changed_only`?"),
        ("id: ^.", "41: an empty path"),
        ("id: header.x, key: ^.a.", "56: cannot read the path '^.a.' at '.'"),
        ("format: yaml", "45: `yaml` is not one of auto, json, jsonl, csv, xml"),
        ("decode: {nan: drop}", "51: `drop` is not one of as_null, as_text, fail"),
        ("decode: {nans: fail}", "46: unknown key `nans`, did you mean `nan`?"),
        ("transform: {drop: a}", "48: `transform` must be a list, not a mapping: write […]"),
        (
            "transform: [drop]",
            "49: `transform` must be a mapping (key: value), not text;"
            " its keys: drop, rename, cast, add, filter, explode",
        ),
        ("transform: [{}]", "49: name exactly one of drop, rename, cast, add, filter, explode"),
        ("transform: [{drop: a, filter: b}]", "49: name exactly one of drop, rename, cast, add, filter, explode"),
        ("transform: [{drop: [a, $]}]", "60: `drop` is the whole record; write a `filter`"),
        ("transform: [{dorp: a}]", "50: unknown key `dorp`, did you mean `drop`?"),
        ('transform: [{rename: {"a[*]": b}}]', "59: `a[*]` does not end with a name"),
        ("transform: [{cast: {a: number}}]", "60: `number` is not one of text, integer, decimal, boolean"),
        ("transform: [{cast: {$: text}}]", "57: write a field of the record: a.b, lines[*].amount"),
        ("transform: [{add: {a: [1]}}]", "59: `a` must be text, a number, true, false or null"),
        ("transform: [{add: {a: .nan}}]", "59: `a` must be a number that JSON has"),
        ('transform: [{add: {"a[*].b": 1}}]', "55: `a[*].b` is no single place in objects; write a.b"),
        (
            'transform: [{filter: "a[?"}]',
            "58: `a[?` is no JMESPath expression: Invalid jmespath expression: Incomplete expression:",
        ),
        (
            "transform: [{filter: a}, {explode: b}, {explode: c}]",
            "86: a record is taken apart once; write one path: $.orders[*].lines",
        ),
        ("schema: {on_violation: warn}", "45: `file` is missing"),
        ("version: {hash: [a, 5]}", "57: write a path: id, a.b, $.data"),
        ('version: {except: "^.a"}', "55: cannot read the path '^.a' at '^.a'"),
        ("version: {except: [a, $]}", "59: `except` is the whole record: nothing would be left"),
        ("version: {path: a, except: b}", "64: a version is either a path or a hash"),
        ("headers: {a b: x}", "47: `a b` is no name of a header: letters, digits and -"),
        ('headers: {a: "x\\ny"}', "50: `a` holds a line break or another control character"),
        ("params: {a: {b: 1}}", "49: `a` must be text, a number, true or false, or a list of them"),
        ("params: {a: }", "48: `a` must be text, a number, true or false, or a list of them"),
        ("topic: a b", "44: `a b` is no name of a topic: letters, digits, `.`, `_` and `-`"),
        ('topic: "{sourc}.x"', "44: a topic knows the placeholders {source} and {stream} only"),
        ("topic: x.dlq.y", "44: `.dlq.` in a topic is kept for dead letters"),
        (f"topic: {'x' * 181}", "44: a topic of 181 characters; 180 at most"),
        (
            'auth: {bearer: "${env:}"}',
            "52: malformed reference; write ${env:NAME}, ${env:NAME:-default} or ${file:/run/secrets/name}",
        ),
        ('auth: {bearer: "${TOKEN}"}', "52: `${TOKEN}` is no reference; did you mean `${env:TOKEN}`?"),
        ("auth: {}", "43: name exactly one of bearer, basic, api_key, oauth2, session, jwt, hmac"),
        (
            "auth: token",
            "43: `auth` must be a mapping (key: value), not text;"
            " its keys: bearer, basic, api_key, oauth2, session, jwt, hmac, probe",
        ),
        ('auth: {api_key: {in: body, name: k, value: "${env:K}"}}', "58: `body` is not one of header, query, cookie"),
        (
            'auth: {api_key: {name: "a b", value: "${env:K}"}}',
            "60: `a b` is no name of a header: letters, digits and -",
        ),
        (
            "auth: {api_key: {name: k, value: plain}}",
            "70: secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}",
        ),
        (
            "auth: {basic: {user: u, password: plain}}",
            "71: secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}",
        ),
        (
            "headers: {Authorization: Bearer plain}",
            "62: secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}",
        ),
        ("auth: ", "42: empty: requests would go out without credentials; fill it in, or leave it out"),
        (
            "method: post",
            "45: `post` is not one of GET, POST, PUT, PATCH, QUERY, SEARCH, REPORT, PROPFIND, did you mean `POST`?",
        ),
        ("list_style: csv", "49: `csv` is not one of repeat, comma, brackets, json"),
        ("json: {a: .nan}", "43: `nan` is no number of JSON"),
        ('json: {"{cursor}": 1}', "43: `{cursor}` is a name; a placeholder stands in a value"),
        ("json: {}, form: {}", "53: a request has one body; `json` is one already"),
        ("form: {a: {b: 1}}", "47: `a` must be text, a number, true or false, or a list of them"),
        ("graphql: {variables: {}}", "46: `query` is missing"),
        (
            'graphql: {query: "{a(b: {parent.id})}"}',
            "54: `query` holds `{parent.id}`, which is not filled here; put it into `variables`",
        ),
        ("graphql: {query: q, variables: []}", "68: `variables` must be a mapping (name: value)"),
        ("paginate: {type: cursor, from: $.n}", "47: where does it go? write one of param, header, body, in_path"),
        (
            "paginate: {type: cursor, from: $.n, param: p, header: H}",
            "91: it goes to one place; `param` says so already",
        ),
        ("paginate: {type: page, header: H, in_path: true}", "80: it goes to one place; `header` says so already"),
        ('paginate: {type: page, body: "$.a[*]"}', "66: `$.a[*]` is no single place; write a.b or $.a.b"),
        (
            "form: {}, paginate: {type: page, body: $.a.b}",
            "76: `$.a.b` leads into something nested; a form has names only",
        ),
        (
            "graphql: {query: q}, paginate: {type: page, body: $.after}",
            "87: `$.after` is no variable; write $.variables.after",
        ),
        ("errors: {}", "45: `errors` must be a list, not a mapping: write […]"),
        ("errors: [{do: fail}]", "46: `when` is missing"),
        (
            "errors: [{when: {}, do: fail}]",
            "53: every answer would match; write one of status, has, header, where",
        ),
        ("errors: [{when: {status: 99}, do: fail}]", "62: `status` must be at least 100"),
        ("errors: [{when: {status: [200, x]}, do: fail}]", "68: `status` must be a whole number, not `x`"),
        (
            "errors: [{when: {status: 200}, do: ignore}]",
            "72: `ignore` is not one of retry, rate_limited, fail, skip, end, refresh_auth, restart_listing",
        ),
        (
            "errors: [{when: {where: 'a =='}, do: fail}]",
            "61: `a ==` is no JMESPath expression: Invalid jmespath expression: Incomplete expression:",
        ),
        ('errors: [{when: {has: "$.a[*]"}, do: fail}]', "59: `$.a[*]` reaches several values; one is needed here"),
        ("retry: {attempts: 0}", "55: `attempts` must be at least 1"),
        ("retry: {statuses: [200]}", "56: `statuses` must be at least 300"),
        ("retry: {statuses: 429}", "55: `statuses` must be a list, not one value: write […]"),
        ("retry: {base: 2m}", "51: `base` is longer than `cap`"),
        ("timeout: {read: 0}", "53: `read` must be at least 1ms"),
        (
            "paginate: lnik",
            "47: `lnik` is not one of none, link, next_url, cursor, page, offset, keyset, object, did you mean `link`?",
        ),
        ("paginate: {size: 5}", "47: `type` is missing, or write the type alone: `paginate: link`"),
        (
            "paginate: {type: link, siz: 5}",
            "60: unknown key `siz`; known here: max_pages, max_empty_pages, listing_cap, end, type, rel, rebase",
        ),
        ("paginate: {type: page, siz: 5}", "60: unknown key `siz`, did you mean `size`?"),
        ("paginate: keyset", "47: `fields` is missing"),
        ("paginate: {type: keyset, fields: {}}", "70: `fields` must not be empty"),
        ('paginate: {type: keyset, fields: {"a[*]": b}}', "70: `a[*]` is no single place; write a.b or $.a.b"),
        ("paginate: {type: keyset, fields: {a: b, c: b}}", "70: `b` cannot carry two values"),
        ("paginate: {type: keyset, fields: {a: b}, size_param: b, size: 1}", "90: `b` cannot carry two values"),
        (
            "paginate: {type: keyset, fields: {a: b}, end: short}",
            "83: `end: short` needs `size`: how many rows a full page has",
        ),
        (
            "paginate: {type: object, from: $.a, end: repeat}",
            "78: `end: repeat` does not go with `type: object`; write one of auto, no_token, empty",
        ),
        (
            "paginate: {type: object, from: header.X, param: y}",
            "78: unknown key `param`; known here: max_pages, max_empty_pages, listing_cap, end, type, from",
        ),
        (
            "paginate: {type: page, listing_cap: 9}",
            "73: `listing_cap` begins again at the last cursor value, and needs `incremental` by a time or a number",
        ),
        (
            "paginate: {type: page, listing_cap: 9}, incremental: updated_at",
            "73: `listing_cap` begins again at the last cursor value, and needs `incremental.since`: how the API is"
            " asked for it",
        ),
        (
            "paginate: {type: page, listing_cap: 9}, incremental: {type: integer, field: id, since: {param: s}}",
            "73: `listing_cap` begins again at the last cursor value, and needs `incremental.order: asc`, and an API"
            " that sorts by it",
        ),
        (
            "id: i, paginate: {type: page, listing_cap: 9}, deletes: {sweep: {every: 1d}},"
            " incremental: {type: integer, field: id, since: {param: s}, order: asc}",
            "101: `deletes.sweep` would never conclude anything: behind `listing_cap` nobody sees the records that lack"
            " the incremental field; if every record has it, write `incremental: {…, on_null: fail}`",
        ),
        (
            "paginate: {type: offset, overlap: 5, size: 5}",
            "71: `overlap` must be less than `size`, or no page would go on",
        ),
        ("paginate: {type: page, end: total}", "65: `end: total` needs `total_pages`: where the API says it"),
        ("paginate: {type: offset, end: total}", "67: `end: total` needs `total`: where the API says it"),
        ("paginate: {type: offset, end: short}", "67: `end: short` needs `size`: how many rows a full page has"),
        ("paginate: {type: page, size_param: n}", "72: `size_param` needs `size`: what to send"),
        ("paginate: {type: page, size_param: page, size: 5}", "72: `page` cannot carry both the place and the size"),
        (
            "paginate: {type: link, end: total}",
            "65: `end: total` does not go with `type: link`; write one of auto, no_token, empty",
        ),
        (
            "paginate: {type: page, end: no_token}",
            "65: `end: no_token` does not go with `type: page`; write one of auto, empty, short, total",
        ),
        ('paginate: {type: next_url, from: "$.a[*]"}', "70: `$.a[*]` reaches several values; one is needed here"),
        (
            "incremental: {type: time, field: x}",
            "57: `time` is not one of timestamp, integer, token, keyset, feed, snapshot, did you mean `timestamp`?",
        ),
        ("incremental: {type: feed, field: x, window: 1d}", "81: `window` means nothing with `type: feed`"),
        ("incremental: {type: snapshot, field: x}", "74: `field` means nothing with `type: snapshot`"),
        ("incremental: {type: timestamp}", "50: `type: timestamp` needs `field`: the field of a record that grows"),
        (
            "incremental: {type: timestamp, field: x, since: {param: a}, until: {param: b}, window: 1d}",
            "124: `window` needs `since.first`: where the first window begins",
        ),
        (
            "incremental: {type: feed, field: x, since: {header: X, param: y}}",
            "89: it goes to one place; `param` says so already",
        ),
        (
            "incremental: {type: feed, field: x, since: {param: q, value: now}}",
            "98: names no bound; write {cursor}, {window.start} or {window.end} where it belongs",
        ),
        (
            "incremental: {type: feed, field: x, format: iso}",
            '81: `iso` is no time format; write rfc3339, unix, unix_ms or a pattern such as "%Y-%m-%d"',
        ),
        (
            'incremental: {type: feed, field: x, format: "%Y %Q"}',
            "81: strptime does not know the pattern `%Y %Q`: 'Q' is a bad directive in format '%Y %Q'",
        ),
        (
            'incremental: {type: feed, field: x, format: "%Y-%m-%d %H:%M"}',
            "81: `%Y-%m-%d %H:%M` has no offset (%z); say what its times mean: `timezone: UTC`",
        ),
        (
            'incremental: {type: feed, field: x, parse: ["%c"]}',
            "81: `%c` has no offset (%z); say what its times mean: `timezone: UTC`",
        ),
        (
            "incremental: {type: feed, field: x, timezone: Mars}",
            "83: unknown time zone `Mars`; write an IANA name: UTC, Europe/Berlin",
        ),
        (
            "incremental: {type: feed, field: x, lookback: 5}",
            "83: `5` is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d",
        ),
        (
            "incremental: {type: integer, field: x, lookback: 5m}",
            "86: `lookback` must be a whole number, as the field is one",
        ),
        ("incremental: {type: integer, field: x, lag: 5m}", "81: `lag` means nothing with `type: integer`"),
        (
            "incremental: {type: integer, field: x, since: {param: p, first: soon}}",
            "101: `first` must be a whole number or `unfiltered`",
        ),
        ("id: id, deletes: {}", "54: says nothing; write `sweep`, `soft` or `feed`"),
        ("deletes: {sweep: {every: 1d}}", "46: `deletes` needs `id`: what is gone has no record to hash"),
        ("expect: {max_drop: 5}", "56: `5` is no share; write a percentage: 50%"),
        ("incremental: keyset", "50: `type: keyset` needs `paginate: {type: keyset}`: its fields are the cursor"),
        ("incremental: token", "50: `type: token` needs `from`: where what starts the next run stands"),
        (
            "incremental: {type: timestamp, field: x, since: {param: a, first: 2024-01-01}, window: 1d}",
            "124: `window` needs `until`, or {window.end} in the request",
        ),
        (
            "incremental: {type: timestamp, field: x, until: {}}",
            "85: where does it go? write one of param, header, body",
        ),
        ("incremental: {type: feed, field: x, order: up}", "80: `up` is not one of asc, desc, none"),
    ],
)
def test_a_mistake_in_a_stream(keys: str, message: str) -> None:
    assert one(keys) == message


@pytest.mark.parametrize(
    ("format_", "first", "fine"),
    [
        ("rfc3339", "2024-01-01", True),
        ("rfc3339", "2024-01-01T00:00:00Z", True),
        ("rfc3339", "2024-01-01T00:00:00.5+02:00", True),
        ("rfc3339", "2024-01-01T00:00:00", False),
        ("rfc3339", "2024-13-01", False),
        ("rfc3339", "1700000000", False),
        ("unix", "1700000000", True),
        ("unix", "2024-01-01", False),
        ("unix_ms", "1700000000000", True),
        ("unix_ms", "soon", False),
        ('"%d.%m.%Y"', "01.02.2024", True),
        ('"%d.%m.%Y"', "2024-01-01", False),
        ("rfc3339", "unfiltered", True),
        ("unix", "unfiltered", True),
    ],
)
def test_the_first_value_must_be_one_that_the_format_sends(format_: str, first: str, fine: bool) -> None:
    keys = f"incremental: {{type: timestamp, field: x, since: {{param: since, first: {first}}}, format: {format_}}}"
    if fine:
        assert parse(stream(f"{STREAM}, {keys}"))
    else:
        assert one(keys).startswith("107: `" + first)


@pytest.mark.parametrize("incremental", ["{type: integer, field: n, since: {param: p}}", "snapshot"])
def test_only_a_time_has_an_upper_bound(incremental: str) -> None:
    message = one(f'params: {{to: "{{window.end}}"}}, incremental: {incremental}')
    assert "`{window.end}` is a time: it needs `type: timestamp`" in message


def test_a_time_zone_settles_what_naive_times_mean() -> None:
    zoned = 'type: feed, field: x, format: "%Y-%m-%dT%H:%M:%S", timezone: Europe/Berlin'
    zoned += ", since: {param: p, first: 2024-01-01T00:00:00}"
    assert parse(stream(f"{STREAM}, incremental: {{{zoned}}}"))
    assert parse(stream(STREAM + ', incremental: {type: feed, field: x, format: "%Y-%m-%d"}'))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/x/{parent.id}", "nothing fills `{parent.id}`: it needs `parent`, the stream whose records do"),
        ("/x/{window.start}", "nothing fills `{window.start}`: it needs `incremental`"),
        ("/x/{cursor}", "nothing fills `{cursor}`: it needs `incremental`, or `paginate` with `in_path: true`"),
        ("/x/{parnet.id}", "`{parnet.id}` is no placeholder; did you mean `{parent.FIELD}`? (`{{` writes a brace)"),
        ("/x/{Cursor}", "`{Cursor}` is no placeholder; did you mean `{cursor}`? (`{{` writes a brace)"),
        ("https://x.example/y", "`path` is a whole URL; write what follows base_url: /charges"),
        ("/x#y", "`path` holds a fragment (#…), which is never sent"),
        ("/x y", "`path` holds white space; write it as %20"),
    ],
)
def test_a_mistake_in_a_path(path: str, message: str) -> None:
    assert mistakes(stream(f'path: "{path}", records: $')) == [f"ingest.yaml:6:21: {message}"]


@pytest.mark.parametrize("name", ["params: {q: ", "headers: {X-Q: ", "form: {q: ", "json: {q: {r: ["])
def test_placeholders_are_looked_for_wherever_they_may_stand(name: str) -> None:
    end = "]}}" if "[" in name else "}"
    filled = f'{name}"id > {{cursor}}"{end}'
    assert f"{37 + len(name)}: nothing fills `{{cursor}}`" in one(filled)
    assert parse(stream(f"{STREAM}, incremental: updated_at, {filled}"))
    missed = one(f'{name}"{{window.strat}}"{end}')
    assert "`{window.strat}` is no placeholder; did you mean `{window.start} or {window.end}`?" in missed


def test_a_token_in_the_path_needs_a_first_one_where_the_path_names_it() -> None:
    keys = 'path: "/x/{cursor}", records: $, paginate: {type: cursor, from: $.n, in_path: true'
    [line] = mistakes(stream(keys + "}"))
    assert line.endswith("the first page has no token for the `{cursor}` in `path`; write `first`")
    assert parse(stream(keys + ", first: a}"))


FAMILY = """version: 1
sources:
  api:
    base_url: https://api.example.com
    streams:
      repos: {{path: /repos, records: $, {above}}}
      issues: {{path: "/x/{{parent.id}}", records: $, {keys}}}
"""


@pytest.mark.parametrize(
    ("keys", "above", "message"),
    [
        ("parent: repo", "id: id", "7:60: no stream `repo` in this source; it has repos, issues"),
        ("parent: issues", "id: id", "7:60: `issues` would be listed for its own records"),
        ("parent: repos", "every: 5m", "7:60: `repos` has no `id`, which its children's ids begin with"),
        (
            "parent: {stream: repos, changed_only: true}",
            "id: id, incremental: snapshot",
            "7:90: nothing tells which of `repos` changed: it has no `incremental`",
        ),
        (
            "parent: {stream: repos, skip_on: [404, 503]}",
            "id: id",
            "7:91: 503 is tried again until it fails; take it out of `retry.statuses`",
        ),
        (
            "id: i, deletes: {sweep: {every: 1d}}, parent: repos",
            "id: id, paginate: {type: page, listing_cap: 9}, incremental: {type: integer, field: n, since: {param: s},"
            " order: asc}",
            "7:98: in `repos`: `deletes.sweep` would never conclude anything: behind `listing_cap` nobody sees the"
            " records that lack the incremental field; if every record has it, write `incremental: {…, on_null: fail}`",
        ),
        (
            "path: /x, parent: repos",
            "id: id",
            "7:46: every parent would be asked for the same: write {parent.FIELD} into `path` or `params`",
        ),
    ],
)
def test_parents_that_are_none_are_refused(keys: str, above: str, message: str) -> None:
    text = FAMILY.format(keys=keys, above=above)
    if keys.startswith("path"):
        text = text.replace('path: "/x/{parent.id}", records: $, ', "records: $, ")
    assert mistakes(text) == [f"ingest.yaml:{message}"]


CREATE, ASKED = "create: {id: a}", "poll: {path: '/x/{job.id}', status: s, done: d}"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (f"{CREATE}, {ASKED}", "42: `download` is missing"),
        (f"create: {{}}, {ASKED}, download: {{path: /y}}", "51: `id` is missing: where the answer names the job"),
        (f"{CREATE}, poll: {{}}, download: {{path: /y}}", "66: where is it asked for? write one of path, url"),
        (
            f"{CREATE}, poll: {{path: /x, url: a}}, download: {{path: /y}}",
            "73: where is it asked for? write one of path, url",
        ),
        (
            f"{CREATE}, poll: {{path: /x, status: s}}, download: {{path: /y}}",
            "85: `status` says how far it is; write `done`: what it says when the report is ready",
        ),
        (
            f"{CREATE}, poll: {{path: /x, failed: s}}, download: {{path: /y}}",
            "85: `failed` is what stands at `status`; say where that is",
        ),
        (
            f"{CREATE}, poll: {{path: '/x/{{job.a}}'}}, download: {{path: /y}}",
            "73: nothing fills `{job.a}` yet; {job.id} is all that there is",
        ),
        (
            f"create: {{id: a, params: {{b: '{{job.id}}'}}}}, {ASKED}, download: {{path: /y}}",
            "71: nothing fills `{job.id}`: there is no job yet",
        ),
        (f"{CREATE}, {ASKED}, download: {{}}", "119: where is it? write `path`, or `url` where an answer names it"),
        (
            f"{CREATE}, {ASKED}, download: {{url: u, params: {{a: b}}}}",
            "136: the API names the whole URL; `params` go with a `path`",
        ),
        (
            f"{CREATE}, {ASKED}, download: {{path: /y, params: {{a: '${{env:B}}'}}}}",
            "142: a secret of the source's or the stream's `params` goes along; write it there",
        ),
    ],
)
def test_jobs_that_come_to_nothing_are_refused(job: str, message: str) -> None:
    assert one(f"job: {{{job}}}") == message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("paginate: page", "the API names the URL of a report; only `link` and `next_url` lead on from there"),
        (
            "paginate: {type: link, listing_cap: 9},"
            " incremental: {type: integer, field: a, order: asc, since: {param: b}}",
            "a report is whole; `incremental.window` asks for smaller ones",
        ),
        ("conditional: true", "`conditional` means nothing to a report that is made anew"),
        (
            "headers: {a: '{job.id}'}",
            "nothing fills `{job.id}`: it needs a job, and to stand in `job.poll` or `job.download`",
        ),
    ],
)
def test_what_does_not_go_with_a_job_is_refused(keys: str, message: str) -> None:
    assert one(f"job: {{{CREATE}, {ASKED}, download: {{url: u}}}}, {keys}").partition(": ")[2] == message


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ("{stream: repo, id: a}", "100: no stream `repo` in this source; it has repos, issues"),
        (
            "{stream: issues, id: a}",
            "100: `issues` is this stream; rows that say of themselves that they are gone are `soft`",
        ),
        ("{stream: repos}", "91: `id` is missing"),
        ("{stream: repos, id: []}", "111: `id` must not be empty"),
        ('{stream: repos, id: a, match: "("}', "121: `(` is no regular expression:"),
        ("{stream: repos, id: [a, b], match: x}", "126: `match` looks at one text; `id` has several paths"),
        ('{stream: repos, id: a, where: "a ="}', "121: `a =` is no JMESPath expression:"),
    ],
)
def test_feeds_that_tell_nothing_are_refused(feed: str, message: str) -> None:
    text = FAMILY.format(keys=f"id: id, parent: repos, deletes: {{feed: {feed}}}", above="id: id")
    [line] = mistakes(text)
    assert line.startswith(f"ingest.yaml:7:{message}")


def test_a_placeholder_of_the_source_must_be_filled_in_every_stream() -> None:
    text = stream(STREAM).replace("    streams:", '    params: {q: "{cursor}"}\n    streams:')
    assert mistakes(text) == [
        "ingest.yaml:5:17: in `items` nothing fills `{cursor}`: it needs `incremental`, or `paginate` with"
        " `in_path: true`"
    ]


@pytest.mark.parametrize("text", ['{"cursor":1}', "{param}", "{}", "{ }", "{currency}", "{id}", "{a: parent}"])
def test_braces_of_other_languages_are_no_near_misses(text: str) -> None:
    assert parse(stream(f"{STREAM}, params: {{q: '{text}'}}"))


def test_other_braces_are_literal() -> None:
    items = (
        parse(stream('path: "/x/{{cursor}/{id}", records: $, params: {q: "{}"}')).config.sources["api"].streams["items"]
    )
    assert items.path == "/x/{{cursor}/{id}"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("rate: 100", "7: `100` is no rate; write so many a second, minute, hour or day: 100/s, 80/m, 5000/h"),
        ("rate: 0/s", "7: `0/s` is no rate; write so many a second, minute, hour or day: 100/s, 80/m, 5000/h"),
        ("rate: 9/w", "7: `9/w` is no rate; write so many a second, minute, hour or day: 100/s, 80/m, 5000/h"),
        ("burst: 5", "8: `burst` says how many requests of `rate` may leave at once: name a `rate` too"),
        ("rate: 1/s, burst: 0", "19: `burst` must be at least 1"),
        ("concurrency: 0", "14: `concurrency` must be at least 1"),
    ],
)
def test_a_mistake_in_the_limits(limits: str, message: str) -> None:
    before = "sources: {a: {base_url: https://x, streams: {b: {path: /x, records: $}}, limits: {"
    column, said = message.split(":", 1)
    [found] = mistakes(f"version: 1\n{before}{limits}}}}}}}")
    assert found == f"ingest.yaml:2:{len(before) + int(column)}:{said}"


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("api.example.com", "must be an absolute"),
        ("ftp://api.example.com", "must be an absolute"),
        ("https://", "must be an absolute"),
        ("https://x:99999", "must be an absolute"),
        ("https://me:pw@api.example.com", "holds a user name or password"),
        ("https://api.example.com?a=1", "holds a query"),
        ("https://api.example.com/#x", "holds a fragment"),
    ],
)
def test_a_base_url_is_absolute_and_nothing_but_a_base(url: str, wrong: str) -> None:
    text = stream(STREAM).replace("https://api.example.com", f'"{url}"')
    [line] = mistakes(text)
    assert line.startswith(f"ingest.yaml:4:15: `base_url` {wrong}")
    assert "pw" not in line.replace("password", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("version: 2", "ingest.yaml:1:10: `version` must be `1`"),
        ("{}", "ingest.yaml:1:1: `version` is missing"),
        ("[]", "ingest.yaml:1:1: must be a mapping (key: value), not a list"),
        (
            "version: 1\nlog: amqp://x",
            "ingest.yaml:2:6: `amqp://` is no event log; write kafka://HOST:9092,HOST:9092 or sqlite:///PATH",
        ),
        ("version: 1\nlog: {url: amqp://x}", "ingest.yaml:2:12: `amqp://` is no event log"),
        ("version: 1\nlog: [kafka://x]", "ingest.yaml:2:6: `log` must be a mapping (key: value), not a list"),
        (
            "version: 1\nstore: mysql://u:pw@x",
            "ingest.yaml:2:8: `mysql://` is no database that is known here; write postgresql://… or sqlite:///PATH",
        ),
        (
            "version: 1\nstate: sqlite://x",
            "ingest.yaml:2:8: a SQLite URL is sqlite:///PATH (relative) or sqlite:////PATH (absolute)",
        ),
        ("version: 1\ninclude: [x]", "ingest.yaml:2:1: `include` is not supported by this version"),
        (
            "version: 1\nnotify: {url: https://hooks.example.com/T0/x}",
            "ingest.yaml:2:15: secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}",
        ),
        (
            'version: 1\nnotify: {url: "${env:HOOK}", on: [job.died]}',
            "ingest.yaml:2:35: `job.died` is not one of job.dead, stream.failed, did you mean `job.dead`?",
        ),
        ("version: 1\nops: {listen: 9090}", 'ingest.yaml:2:15: `listen` must be text; write it in quotes: "…"'),
        (
            "version: 1\nops: {listen: localhost}",
            "ingest.yaml:2:15: `localhost` is no address to listen on; write HOST:PORT: 0.0.0.0:9090",
        ),
        ("version: 1\ntopics: {create: yes}", "ingest.yaml:2:18: `create` must be true or false, not `yes`"),
        ("version: 1\ntopics: {replication: 1}", "ingest.yaml:2:23: min_insync (2) is more than replication (1)"),
        (
            "version: 1\ntopics: {overrides: {a.b: {replication: 1}}}",
            "ingest.yaml:2:27: min_insync (2) is more than replication (1)",
        ),
        (
            "version: 1\ntopics: {max_message: 1}",
            "ingest.yaml:2:23: `1` is no size; write a number with a unit: 500KB, 64MB",
        ),
        ("version: 1\nsources:", "ingest.yaml:2:9: `sources` is empty; it must be a mapping (key: value)"),
        (
            "version: 1\nsources: {a: {base_url: https://x, streams: {}}}",
            "ingest.yaml:2:45: `streams` must not be empty",
        ),
        (
            "version: 1\nsources: {a: {base_url: https://x, defaults: 1, streams: {b: {path: /x, records: $}}}}",
            "ingest.yaml:2:36: `defaults` must be a mapping: what the streams of this source share",
        ),
        (
            "version: 1\nconsumers: {a: {kind: archive, path: x}}",
            "ingest.yaml:2:23: `kind: archive` is not supported by this version",
        ),
        (
            "version: 1\nconsumers: {a: {kind: store, topics: [x], current: true}}",
            "ingest.yaml:2:43: `current` is not supported by this version",
        ),
        (
            "version: 1\nconsumers: {a: {kind: store, topics: x}}",
            "ingest.yaml:2:38: `topics` must be a list, not text: write […]",
        ),
        (
            "version: 1\nconsumers: {a: {kind: store, topics: [a b]}}",
            "ingest.yaml:2:39: `a b` matches no topic; write a topic or a glob: billing.charges, billing.*",
        ),
        ("", "ingest.yaml:1:1: the file is empty; run `ingest init` to write one"),
        ("# nothing", "ingest.yaml:1:1: the file is empty; run `ingest init` to write one"),
        ("version: 1\nversion: 1", "ingest.yaml:2:1: `version` is here twice (first in line 1)"),
        (
            "version: 1\n<<: {a: 1}",
            "ingest.yaml:2:1: `<<` is not part of YAML 1.2; what streams share stands in `defaults`",
        ),
        ("version: 1\n? [a]\n: 1", "ingest.yaml:2:3: a key must be text"),
        ("version: !!python/none 1", "ingest.yaml:1:10: tags (tag:yaml.org,2002:python/none) mean nothing here"),
        ("version: 1\na: b: c", "ingest.yaml:2:5: no YAML: mapping values are not allowed here"),
        ("version: 1\n\tx: 1", "ingest.yaml:2:1: no YAML: "),
        ("version: 1\nlog: \x01", "ingest.yaml:2:6: no YAML: a character that is not allowed in it"),
        ('version: 1\nlog: "\\ud800"', "ingest.yaml:2:6: half a surrogate pair is no character"),
        ("version: 1\nlog: &a [*a]", "ingest.yaml:2:6: more than 32 levels deep, or an alias that contains itself"),
        ("[" * 3000, "ingest.yaml:1:1: more than 32 levels deep"),
    ],
)
def test_a_mistake_in_the_rest_of_the_file(line: str, message: str) -> None:
    assert any(said.startswith(message) for said in mistakes(line))


def test_an_alias_that_multiplies_itself_is_stopped() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefg", "abcdef", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    [line] = mistakes(text)
    assert "more than 100,000 values" in line


def test_defaults_that_multiply_themselves_are_stopped() -> None:
    wide = ", ".join(f"p{n}: 1" for n in range(1000))
    streams = "\n".join(f"      s{n}: {{path: /x}}" for n in range(200))
    text = "version: 1\nsources:\n  a:\n    base_url: https://x\n"
    text += f"    defaults: {{params: {{{wide}}}}}\n    streams:\n{streams}\n"
    [line] = mistakes(text)
    assert "more than 100,000 values once `defaults` are merged" in line


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigErrors, match="larger than 1,048,576 bytes"):
        load(path)


def test_a_file_that_is_not_utf_8_is_refused_where_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    with pytest.raises(ConfigErrors) as caught:
        load(path)
    assert str(caught.value) == f"{path}:2:6: not UTF-8"


def test_topics_that_differ_only_in_dot_and_underscore_are_refused() -> None:
    text = stream("path: /x, records: $, topic: api_items") + "      a_b: {path: /y, records: $}\n  api_a:\n"
    text += "    base_url: https://x\n    streams: {b: {path: /y, records: $}}\n"
    assert mistakes(text) == [
        "ingest.yaml:10:18: the topics `api_a.b` and `api.a_b` differ only in `.` and `_`: Kafka's metrics mix them up"
    ]


def test_two_streams_may_share_one_topic() -> None:
    text = stream("path: /x, records: $, topic: shared") + "      more: {path: /y, records: $, topic: shared}\n"
    assert parse(text)


def test_a_mistake_in_defaults_is_said_once_and_there() -> None:
    text = EXAMPLES.replace("defaults: {paginate: link,", "defaults: {paginate: lnik,")
    [line] = mistakes(text)
    assert line.startswith("ingest.yaml:19:26: `lnik` is not one of")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("5", "34: write a path: id, a.b, $.data"),
        ("", "33: write a path: id, a.b, $.data"),
        ("^.a", "34: cannot read the path '^.a' at '^.a'"),
        ("{absent: empty}", "34: `path` is missing"),
        ("{path: $, absent: skip}", "52: `skip` is not one of fail, empty"),
        ("{path: $, pth: x}", "44: unknown key `pth`, did you mean `path`?"),
        (
            "{path: $, keep: {a: b}}",
            "54: write ^.NAME for what encloses the list, ^~ for the record's name in it, header.NAME or parent.FIELD",
        ),
        ("{path: $, keep: {a: parent.id}}", "54: `parent.id` needs `parent`, the stream whose records have it"),
        ('{path: $, keep: {a: "^.b[*]"}}', "54: `^.b[*]` reaches several values; one is needed here"),
    ],
)
def test_mistakes_in_records_are_said_where_they_stand(records: str, message: str) -> None:
    assert mistakes(stream(f"path: /x, records: {records}")) == [f"ingest.yaml:6:{message}"]


def test_what_is_not_built_leaves_no_echo() -> None:
    """One line for each: not also a missing key, or a value of the wrong kind."""
    text = "version: 1\nserve: 5\nconsumers: {a: {kind: archive, path: {b: 1}}, c: {kind: store, topics: [x], sign: 5}}"
    assert [line.split(": ", 1)[1] for line in mistakes(text)] == [
        "`serve` is not supported by this version",
        "`kind: archive` is not supported by this version",
        "`sign` is not supported by this version",
    ]


def test_nothing_that_is_built_is_called_not_built() -> None:
    built = {".".join(path) for path in every_key()}
    assert not built & NOT_BUILT
    assert not {key for key in NOT_BUILT_VALUES if key not in built}


KEYS = st.sampled_from([*NOT_BUILT, "<<", "a", "defaults", *(step for path in every_key() for step in path)])
WORDS = st.sampled_from(
    [
        "1",
        "link",
        "cursor",
        "$.data",
        "5m",
        "none",
        "https://x",
        "${env:A}",
        "${",
        "{cursor}",
        "feed",
        "unix",
        "~",
        "store",
        ".",
    ]
)
SCALARS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=30,
)


def outcome(text: str) -> Loaded | ConfigErrors:
    try:
        return parse(text)
    except ConfigErrors as exc:
        assert exc.errors
        return exc


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!%@`'\"|>#?,~.<=${}01 \n\t\r\ufeff\x85\u2028é\0"), max_size=60))
def test_any_text_gives_a_configuration_or_its_mistakes(text: str) -> None:
    outcome(text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES, st.booleans())
def test_any_tree_gives_a_configuration_or_its_mistakes(tree: object, inside: bool) -> None:
    text = json.dumps({"version": 1, "sources": {"a": tree}} if inside else tree, ensure_ascii=True)
    outcome(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_edit_of_a_good_file_gives_a_configuration_or_its_mistakes(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(EXAMPLES)))
    gone = data.draw(st.integers(0, 5))
    new = data.draw(st.text(alphabet="ab:-[]{}&*!#$ \n\"'", max_size=4))
    outcome(EXAMPLES[:at] + new + EXAMPLES[at + gone :])
