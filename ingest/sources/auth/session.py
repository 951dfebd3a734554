"""A token that a login gives."""

import re

from ingest.config.model import Records, Session, Source, Stream
from ingest.errors import SourceChanged, SourceRefused
from ingest.paths import JsonPath, Root
from ingest.sources.answers import Answer, Undecodable, scalar
from ingest.sources.auth.errands import UNAUTHORIZED, Errands
from ingest.sources.auth.renewed import Place, Token
from ingest.sources.auth.static import credentials
from ingest.sources.exchange import Response
from ingest.sources.template import Template


class Login:
    """Logs in with the source's own headers and parameters, and those of the login."""

    def __init__(self, session: Session, source: Source, errands: Errands) -> None:
        self._session, self._errands = session, errands
        login = session.login
        as_stream = Stream.model_construct(
            records=Records(path=session.token),
            path=login.path,
            method=login.method,
            params=login.params,
            headers=login.headers,
            json_=login.json_,
            form=login.form,
        )
        template = Template(source, as_stream, errands.redactor.scrub)
        self._request = template.request()
        self._credentials = credentials(None, template.secret_params, template.secret_headers)

    async def obtain(self, refused: str | None) -> Token:
        asked_at = self._errands.monotonic()
        try:
            text = await self._errands.send(self._request, self._credentials, self._token)
        except SourceRefused as exc:
            raise SourceRefused(f"no session: {exc}; look at `auth.session.login`", UNAUTHORIZED) from exc
        ttl = self._session.ttl
        return Token(text) if ttl is None else Token(text, asked_at + ttl)

    def _token(self, response: Response) -> str:
        path = self._session.token
        token = _found(path, response)
        if not token:
            raise SourceChanged(
                f"no session: {self._errands.answered(response)} without a token at `auth.session.token: {path}`"
            )
        return token


def place(session: Session) -> Place:
    send = session.send
    if send is None:
        return Place("cookie", str(session.token.steps[0]))
    if send.header is not None:
        return Place("header", send.header.lower(), send.value)
    return Place("query", send.query) if send.query is not None else Place("cookie", send.cookie or "", send.value)


def _found(path: JsonPath, response: Response) -> str | None:
    name = str(path.steps[0]) if path.steps else ""
    if path.root is Root.HEADER:
        return response.headers.get(name.lower())
    if path.root is Root.COOKIE:  # cookies have no comma; the dates that they expire at do
        match = re.search(rf"(?:^|,)\s*{re.escape(name)}=([^;,]*)", response.headers.get("set-cookie", ""))
        return None if match is None else match[1].strip().strip('"')
    try:
        return scalar(Answer(response.body).first(path.steps))
    except (TypeError, UnicodeDecodeError):
        return None
    except Undecodable:
        if path.steps:
            raise
        return response.body.decode().strip()  # the token alone, as text
