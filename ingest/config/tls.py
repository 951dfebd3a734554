"""Certificates for the connections to an API: the part `tls` of a source."""

from collections.abc import Iterable

from ingest.config.part import Mistake, Part
from ingest.config.security import PemPath


class Tls(Part):
    """PEM files. The API's certificate and host name are always checked."""

    ca: PemPath | None = None
    """Who signs the API's certificate; absent: whom the system trusts."""
    cert: PemPath | None = None
    """Our certificate, where the API asks for one."""
    key: PemPath | None = None
    """Its private key, without a passphrase."""

    def mistakes(self) -> Iterable[Mistake]:
        if not self.model_fields_set:
            yield "", "is empty: name a file, or leave it out"
        for one, other in (("cert", "key"), ("key", "cert")):
            if getattr(self, one) is not None and getattr(self, other) is None:
                yield one, f"`{one}` without `{other}`: a client's certificate needs both"
