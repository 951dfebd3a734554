"""Certificates for connections that we make, and which of the files named for them does not fit."""

import ssl
from pathlib import Path

HOST_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


class UnfitFile(Exception):
    """`key`: ca, cert or key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Paths of PEM files. The other side's certificate and host name are always checked; without `ca` those count that
    the system trusts. Raises UnfitFile."""
    if ca is not None:
        _expect("ca", ca, "CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as exc:
        raise UnfitFile("ca", f"the file {ca} holds no certificate that can be read: {exc.reason}") from exc
    if cert is not None and key is not None:
        _expect("cert", cert, "CERTIFICATE")
        _expect("key", key, "PRIVATE KEY")
        try:
            context.load_cert_chain(cert, key, password=_no_passphrase)
        except ssl.SSLError as exc:
            if exc.reason == "KEY_VALUES_MISMATCH":
                raise UnfitFile("key", f"the file {key} is not the key of the certificate in {cert}") from exc
            raise UnfitFile("key", f"the files {cert} and {key} cannot be read: {exc.reason}") from exc
        except _Encrypted as exc:
            raise UnfitFile("key", f"the key in {key} is encrypted; write it without a passphrase") from exc
    return context


class _Encrypted(Exception):
    pass


def _no_passphrase() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise _Encrypted


def _expect(key: str, path: str, what: str) -> None:
    try:
        content = Path(path).read_bytes()
    except OSError as exc:
        raise UnfitFile(key, f"the file {path} cannot be read: {exc.strerror}") from exc
    if f"{what}-----".encode() not in content or b"-----BEGIN " not in content:
        raise UnfitFile(key, f"the file {path} is no PEM file with a {what.lower()}")
