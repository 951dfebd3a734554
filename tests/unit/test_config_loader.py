"""The file is read once, and everything that is wrong with it is said with its place."""

from pathlib import Path

import pytest

from ingest.config.loader import Loaded, find, load, parse
from ingest.config.model import CursorToken, LinkHeader, Offset, PageNumber, SinglePage
from ingest.config.problems import ConfigErrors
from ingest.errors import ConfigError

EXAMPLES = """\
version: 1
sources:
  billing:                                            # token in the last record, newest first
    base_url: https://api.stripe.com/v1
    auth: {bearer: "${env:STRIPE_KEY}"}
    streams:
      charges:
        path: /charges
        params: {limit: 100}
        records: $.data
        id: id
        key: customer
        paginate: {type: cursor, from: last.id, param: starting_after, more: $.has_more}
        incremental: {type: feed, field: created, format: unix, since: {param: "created[gte]"}, lag: 1m, lookback: 10m}
        every: 1m
  github:                                             # Link header
    base_url: https://api.github.com
    auth: {bearer: "${env:GITHUB_TOKEN}"}
    defaults: {paginate: link, params: {per_page: 100}, id: id, records: $}
    streams:
      repos: {path: /orgs/acme/repos, params: {sort: full_name}}
      issues:
        path: /repos/acme/site/issues
        params: {state: all, sort: updated, direction: asc}
        version: updated_at
        incremental: {type: timestamp, field: updated_at, since: {param: since}, order: asc, lag: 30s}
  crm:
    base_url: https://crm.example.com/api
    auth: {api_key: {in: header, name: X-Api-Key, value: "${file:/run/secrets/crm}"}}
    streams:
      contacts:
        path: /contacts
        params: {sort: id}
        records: $.items
        id: id
        paginate: {type: offset, param: offset, size_param: limit, size: 200, total: $.meta.total, end: empty}
        every: 1h
"""


def stream(keys: str, *, source: str = "") -> str:
    """A file with one stream; `keys` stand in line 6, from column 15."""
    return (
        "version: 1\nsources:\n  api:\n"
        f"    base_url: https://api.example.com{source}\n    streams:\n"
        f"      items: {{{keys}}}\n"
    )


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        parse(text)
    return str(caught.value).splitlines()


def test_the_examples_are_read() -> None:
    config = parse(EXAMPLES).config
    charges = config.sources["billing"].streams["charges"]
    assert isinstance(charges.paginate, CursorToken)
    assert str(charges.paginate.from_) == "last.id"
    assert charges.incremental is not None
    assert (charges.incremental.type, charges.incremental.lookback, charges.every) == ("feed", 600.0, 60.0)
    assert isinstance(config.sources["crm"].streams["contacts"].paginate, Offset)
    assert config.sources["github"].auth is not None
    assert config.sources["github"].auth.bearer == "${env:GITHUB_TOKEN}"


def test_the_file_that_init_writes_is_valid() -> None:
    loaded = load(Path(__file__).parents[2] / "ingest/cli/init.yaml")
    assert list(loaded.config.consumers) == ["warehouse"]


def test_defaults_merge_maps_deeply_and_keep_their_places() -> None:
    loaded = parse(EXAMPLES)
    repos = loaded.config.sources["github"].streams["repos"]
    assert repos.params == {"per_page": 100, "sort": "full_name"}
    assert isinstance(repos.paginate, LinkHeader)
    assert loaded.where("sources.github.streams.repos.params.per_page") == "ingest.yaml:19:51"
    assert loaded.where("sources.github.streams.repos.params.sort") == "ingest.yaml:21:54"


def test_defaults_are_replaced_where_they_are_no_maps_or_of_another_kind() -> None:
    text = """\
version: 1
sources:
  api:
    base_url: https://api.example.com
    defaults:
      records: $.data
      id: [a, b]
      auth: {bearer: "${env:A}"}
      paginate: {type: page, size: 100, size_param: limit}
      incremental: updated_at
    streams:
      one: {path: /one, id: id, paginate: {size: 5}}
      two: {path: /two, paginate: link, incremental: none, auth: {basic: {user: u, password: "${env:B}"}}}
      three: {path: /three, paginate: {type: cursor, from: $.next, param: c}}
"""
    one, two, three = parse(text).config.sources["api"].streams.values()
    assert [str(path) for path in one.id] == ["id"]
    assert isinstance(one.paginate, PageNumber)
    assert (one.paginate.size, one.paginate.size_param) == (5, "limit")
    assert isinstance(two.paginate, LinkHeader)
    assert two.incremental is None
    assert two.auth is not None
    assert two.auth.basic is not None
    assert isinstance(three.paginate, CursorToken)
    assert three.incremental is not None


def test_a_stream_overrides_single_keys_of_the_sources_retry_and_timeout() -> None:
    text = stream(
        "path: /x, records: $, retry: {cap: 5s}", source="\n    retry: {attempts: 3}\n    timeout: {read: 5s}"
    )
    items = parse(text).config.sources["api"].streams["items"]
    assert items.retry is not None
    assert (items.retry.attempts, items.retry.cap) == (3, 5.0)
    assert items.timeout is None


def test_shorthands_are_written_out() -> None:
    text = stream("path: /x, records: $, id: id, paginate: page, incremental: updated_at")
    items = parse(text).config.sources["api"].streams["items"]
    assert isinstance(items.paginate, PageNumber)
    assert items.incremental is not None
    assert (items.incremental.type, str(items.incremental.field)) == ("timestamp", "updated_at")
    bare = (
        parse(stream("path: /x, records: $, paginate: none, incremental: none")).config.sources["api"].streams["items"]
    )
    assert isinstance(bare.paginate, SinglePage)
    assert bare.incremental is None


def test_a_bare_word_is_a_type_before_it_is_a_field() -> None:
    assert mistakes(stream("path: /x, records: $, incremental: integer")) == [
        "ingest.yaml:6:50: `type: integer` needs `field`: the field of a record that grows",
    ]


def test_what_is_sent_is_kept_as_it_is_spelt() -> None:
    text = stream(
        "path: /x, records: $, headers: {Api-Version: 2.10, Day: 2024-01-01}, "
        "params: {v: 1.10, n: 007, ok: true, l: [1.0, 2]}"
    )
    items = parse(text).config.sources["api"].streams["items"]
    assert items.headers == {"Api-Version": "2.10", "Day": "2024-01-01"}
    assert items.params == {"v": "1.10", "n": "007", "ok": True, "l": ["1.0", 2]}


def test_keys_that_look_like_numbers_are_text() -> None:
    text = stream("path: /x, records: $, params: {1: a, 1.0: b, true: c}").replace("items:", "2024:")
    streams = parse(text).config.sources["api"].streams
    assert streams["2024"].params == {"1": "a", "1.0": "b", "true": "c"}


def test_yaml_1_2_reads_no_as_text_and_a_clock_as_a_clock() -> None:
    items = (
        parse(stream("path: /x, records: $, params: {a: no, b: 12:30, c: 0o17}")).config.sources["api"].streams["items"]
    )
    assert items.params == {"a": "no", "b": "12:30", "c": "0o17"}


def test_aliases_stand_for_what_they_name() -> None:
    text = stream("path: /x, records: $, params: &p {a: 1}") + "      more: {path: /y, records: $, params: *p}\n"
    assert parse(text).config.sources["api"].streams["more"].params == {"a": 1}


def test_where_points_at_the_value_or_at_what_stands_around_it() -> None:
    loaded = parse(EXAMPLES, "conf/ingest.yaml")
    assert loaded.where("sources.billing.streams.charges.records") == "conf/ingest.yaml:10:18"
    assert loaded.where("sources.billing.streams.charges.retry.cap") == "conf/ingest.yaml:7:7"
    assert loaded.where("store") == "conf/ingest.yaml:1:1"
    assert loaded.within("sources.crm")("auth.api_key.value") == "conf/ingest.yaml:29:58"
    assert tuple(loaded.position("version")) == (1, 10)


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
version: 1
topcs: {}
sources:
  billing:
    base_url: api.stripe.com
    auth: {bearer: sk_live_1234}
    defaults: {evry: 5m}
    streams:
      charges:
        path: /charges
        paginate: {type: cursr}
        every: 5
      Refunds: {path: /refunds, records: $.data}
consumers:
  source: {kind: store, topics: []}
"""
    with pytest.raises(ConfigErrors) as caught:
        parse(text, "ingest.yaml")
    assert str(caught.value).splitlines() == [
        "ingest.yaml:2:1: unknown key `topcs`, did you mean `topics`?",
        "ingest.yaml:5:15: `base_url` must be an absolute http or https URL: https://api.example.com/v1",
        "ingest.yaml:6:20: secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}",
        "ingest.yaml:7:16: unknown key `evry`, did you mean `every`?",
        "ingest.yaml:9:7: `records` is missing",
        "ingest.yaml:11:26: `cursr` is not one of none, link, next_url, cursor, page, offset, keyset, object, did you"
        " mean `cursor`?",
        "ingest.yaml:12:16: `5` is no duration; write a number with a unit: 500ms, 30s, 5m, 12h, 7d",
        "ingest.yaml:13:7: a name has lower-case letters, digits, `_` and `-`, and begins with a letter or a digit",
        "ingest.yaml:15:3: no consumer may be called `source`: its dead letters are the poller's",
        "ingest.yaml:15:33: `topics` must not be empty",
    ]
    first = caught.value.errors[4]
    assert (first.file, first.line, first.column) == ("ingest.yaml", 9, 7)
    assert first.path == "sources.billing.streams.charges.records"
    assert "sk_live_1234" not in str(caught.value)


def test_find_takes_the_option_then_the_environment_then_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INGEST_CONFIG", raising=False)
    for name in ("ingest.yaml", "env.yaml", "option.yaml"):
        Path(name).write_text("version: 1\n")
    assert find(None) == Path("ingest.yaml")
    monkeypatch.setenv("INGEST_CONFIG", "env.yaml")
    assert find(None) == Path("env.yaml")
    assert find(Path("option.yaml")) == Path("option.yaml")


def test_a_missing_file_is_answered_with_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INGEST_CONFIG", raising=False)
    with pytest.raises(ConfigError, match=r"no file ingest.yaml in this directory; run `ingest init`"):
        find(None)
    with pytest.raises(ConfigError, match=r"no file other.yaml \(--config\)"):
        find(Path("other.yaml"))


def test_a_file_is_loaded_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "ingest.yaml"
    path.write_text(EXAMPLES)
    loaded = load(path)
    assert isinstance(loaded, Loaded)
    assert loaded.where("version") == f"{path}:1:10"
