"""Builds the requests of a stream: what the configuration says, its placeholders filled, and what paging and
incremental reading put in.

Each value is encoded for where it stands (path, query, header, body). What has no value yet (`{cursor}` on a first run
that is unfiltered) is left out, with the parameter, header or member of the body that holds it. Secrets among the
parameters are no part of a request: credentials put them on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from urllib.parse import unquote_plus, urlsplit, urlunsplit

from ingest.config import placeholders
from ingest.config.model import Keyset, Source, Stream
from ingest.config.placeholders import Pattern
from ingest.errors import ConfigError
from ingest.sources.auth import with_params
from ingest.sources.content import Content
from ingest.sources.filling import NO_VALUES, Values, filled, header_value, path_segment, percent
from ingest.sources.formats import ACCEPT
from ingest.sources.parameters import filled_params, listed, texts
from ingest.sources.placement import Put, as_text
from ingest.sources.request import Request

NOTHING: Sequence[Put] = ()
OURS = "{base_url}"  # stands in a saved URL for a base_url with a secret in it


class Template:
    """The requests of one stream, references resolved. `scrub` takes secrets out of a text.

    `secret_params` and `secret_headers` are for credentials, which put them on."""

    def __init__(self, source: Source, stream: Stream, scrub: Callable[[str], str]) -> None:
        self._base_url = source.base_url.rstrip("/")
        self._base_is_secret = scrub(self._base_url) != self._base_url
        self._path, self._query, in_path = _address(source.base_url, stream.path, scrub)
        self._names_cursor = isinstance(self._path, Pattern) and "cursor" in self._path.names
        params = {**in_path, **texts({**source.params, **stream.params})}
        later = set(_set_later(stream, "param", "size_param"))
        secret = {name: value for name, value in params.items() if name not in later and _is_secret(value, scrub)}
        self._style = stream.list_style
        self._params = {name: value for name, value in params.items() if name not in secret}
        self._headers = {name.lower(): value for name, value in {**source.headers, **stream.headers}.items()}
        self._content = Content(stream)
        if self._content.kind is not None:
            self._headers.setdefault("content-type", self._content.kind)
        if (wanted := ACCEPT.get(stream.format)) is not None:
            self._headers.setdefault("accept", wanted)
        set_later = {put.lower() for put in _set_later(stream, "header")}
        self.secret_headers = {
            name: value for name, value in self._headers.items() if name not in set_later and _is_secret(value, scrub)
        }
        self._headers = {name: value for name, value in self._headers.items() if name not in self.secret_headers}
        self._headers_vary = any(isinstance(value, Pattern) for value in self._headers.values())
        self._method = stream.method or ("GET" if self._content.kind is None else "POST")
        self.secret_params = listed(secret, stream.list_style)

    def request(
        self,
        values: Values = NO_VALUES,
        puts: Sequence[Put] = NOTHING,
        url: str | None = None,
        keep: Collection[str] = (),
    ) -> Request:
        """What is put in replaces the same name; of two, the later one stays. `url`: that the API named for the next
        page, with parameters of its own; `keep`: those of ours that it gets where it lacks them.

        Raises SourceChanged for a value that cannot stand where it should, ConfigError for a path that has none yet."""
        return Request(
            url=self._url(values, puts) if url is None else self._kept(url, values, puts, keep),
            method=self._method,
            headers=self._filled_headers(values, puts),
            body=self._content.body(values, puts),
        )

    def _url(self, values: Values, puts: Sequence[Put]) -> str:
        put = {one.where.param: as_text(one.value) for one in puts if one.where.param is not None}
        params = {**filled_params(self._params, values), **put}
        pairs = [pair for pair in self._query if _name(pair) not in put]
        query = [text for pair in pairs if (text := filled(pair, values, percent)) is not None]
        path = self._filled_path(values, puts)
        return with_params(f"{path}?{'&'.join(query)}" if query else path, listed(params, self._style))

    def _kept(self, url: str, values: Values, puts: Sequence[Put], keep: Collection[str]) -> str:
        if not keep:
            return url
        parts = urlsplit(url)
        has = {_name(pair) for pair in parts.query.split("&")}
        ours = urlsplit(self._url(values, puts)).query.split("&")
        added = [pair for pair in ours if (name := _name(pair)) in keep and name not in has]
        return urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, *added]))))

    def relative(self, url: str) -> str:
        """Without base_url where that holds a secret: what is saved must not."""
        base = self._base_url
        return OURS + url.removeprefix(base) if self._base_is_secret and url.startswith(base) else url

    def absolute(self, url: str) -> str:
        """The reverse."""
        return self._base_url + url.removeprefix(OURS) if url.startswith(OURS) else url

    def _filled_path(self, values: Values, puts: Sequence[Put]) -> str:
        tokens = [as_text(put.value) for put in puts if put.where.in_path]
        if tokens and self._names_cursor:
            values = {**values, "cursor": tokens[-1]}
        path = filled(self._path, values, path_segment)
        if path is None:
            raise ConfigError(f"`path: {self._path}` has no value yet for its placeholder: give `since` a `first`")
        return f"{path.rstrip('/')}/{path_segment(tokens[-1])}" if tokens and not self._names_cursor else path

    def _filled_headers(self, values: Values, puts: Sequence[Put]) -> Mapping[str, str]:
        if not self._headers_vary and not any(put.where.header for put in puts):
            return self._headers
        headers = {
            name: header_value(name, text) if text is not value else value
            for name, value in self._headers.items()
            if (text := filled(value, values)) is not None
        }
        for put in puts:
            if (name := put.where.header) is not None:
                headers[name] = header_value(name, as_text(put.value))
        return headers


def _address(base_url: str, path: str, scrub: Callable[[str], str]) -> tuple[str, Sequence[str], dict[str, str]]:
    """The URL without its query, the query's pairs as they are written, and those that hold secrets, decoded."""
    address, *query = placeholders.cut(placeholders.behind(base_url.rstrip("/") + "/", path), "?", 1)
    pairs = placeholders.cut(query[0], "&") if query else []
    secret = [pair for pair in pairs if _is_secret(pair, scrub) and not isinstance(pair, Pattern)]
    named = {unquote_plus(name): unquote_plus(value) for name, _, value in (pair.partition("=") for pair in secret)}
    return address, [pair for pair in pairs if pair and pair not in secret], named


def _name(pair: str) -> str:
    """Of a parameter, without the brackets of a list."""
    return unquote_plus(pair.partition("=")[0]).removesuffix("[]")


def _set_later(stream: Stream, *keys: str) -> Iterator[str]:
    """What paging and incremental reading set: no credentials, whatever is configured for it. `keys`: of the parts that
    name it."""
    since = stream.incremental and stream.incremental.since
    for part in (stream.paginate, stream.incremental, since, getattr(stream.incremental, "until", None)):
        for key in keys:
            if name := getattr(part, key, None):
                yield name
    yield from stream.paginate.fields.values() if isinstance(stream.paginate, Keyset) else ()


def _is_secret(value: str | list[str], scrub: Callable[[str], str]) -> bool:
    """A value that holds a placeholder changes, and no credential does."""
    texts = [value] if isinstance(value, str) else value
    return any(scrub(one) != one for one in texts) and not any(isinstance(one, Pattern) for one in texts)
