"""Certificates for connections that we make, and which of the files named for them does not fit."""

import ssl
from pathlib import Path

import certifi

EXPIRED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
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
        context = ssl.create_default_context(cafile=ca or _authorities())
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


def _authorities() -> str | None:
    """A file of them where the system has none, as in small images."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None or (paths.capath is not None and any(Path(paths.capath).iterdir())):
        return None
    return certifi.where()


def tls_failure(exc: BaseException) -> str | None:
    """What TLS failed at, and what a person can change about it; None: it is not TLS, or may work later."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "`tls.ca` must name the file with the certificate of who signed it"
        if cause.verify_code in HOST_MISMATCH:
            hint = "the URL must name the host that the certificate is for"
        elif cause.verify_code in EXPIRED:
            hint = "whoever runs the server must renew it, or the clock of this machine is wrong"
        return f"the server's certificate is not accepted: {cause.verify_message.rstrip('.')}; {hint}"
    reason = getattr(cause, "reason", None) or ""
    return next((text for part, text in _FAILURES.items() if part in reason), None)


_WANTED = "`tls.cert` and `tls.key` must name one that it trusts"
_REFUSED = f"the server does not accept our certificate, or wants one: {_WANTED}"
_FAILURES = {  # what OpenSSL calls it
    "WRONG_VERSION_NUMBER": "the server speaks no TLS on this port; write another port, or http://",
    "HTTP_REQUEST": "the server speaks no TLS on this port; write another port, or http://",
    "PROTOCOL_VERSION": "the server speaks no version of TLS that is still safe",
    "UNSUPPORTED_PROTOCOL": "the server speaks no version of TLS that is still safe",
    "ALERT_CERTIFICATE": _REFUSED,
    "ALERT_BAD_CERTIFICATE": _REFUSED,
    "ALERT_UNSUPPORTED_CERTIFICATE": _REFUSED,
    "ALERT_UNKNOWN_CA": _REFUSED,
    "ALERT_ACCESS_DENIED": _REFUSED,
    "ALERT_HANDSHAKE_FAILURE": f"the server ends the handshake; perhaps it wants a certificate of ours: {_WANTED}",
}


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
