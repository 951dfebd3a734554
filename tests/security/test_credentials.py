"""Files of `log.security` that are missing or unfit: who edits the file learns which line it is."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ingest.config.credentials import Credentials, credentials
from ingest.config.loader import parse
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from tests.harness.certificates import Authority


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path)
    client, other = authority.issue("client", "client.test"), authority.issue("other", "other.test")
    key = load_pem_private_key(client.key.read_bytes(), None)
    found = {"CA": authority.ca, "CERT": client.cert, "KEY": client.key, "OTHER_KEY": other.key}
    found |= {name: tmp_path / name.lower() for name in ("NOTHING", "TEXT", "BROKEN", "ENCRYPTED")}
    found["TEXT"].write_text("no certificate")
    found["BROKEN"].write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    found["ENCRYPTED"].write_bytes(locked)
    return found


def read(files: dict[str, Path], *keys: str) -> Credentials:
    text = "\n".join(f"    {key}: {files[name]}" for key, name in (pair.split(": ") for pair in keys))
    loaded = parse(f"version: 1\nlog:\n  security:\n{text}")
    assert loaded.config.log is not None
    return credentials(loaded.config.log.security, Redactor(), loaded.within("log.security"))


@pytest.mark.parametrize(
    ("keys", "line", "says"),
    [
        (["ca: NOTHING"], 4, "nothing cannot be read: No such file or directory"),
        (["ca: TEXT"], 4, "text is no PEM file with a certificate"),
        (["ca: KEY"], 4, "client.key.pem is no PEM file with a certificate"),
        (["ca: BROKEN"], 4, "broken holds no certificate that can be read"),
        (["ca: CA", "cert: NOTHING", "key: KEY"], 5, "nothing cannot be read: No such file or directory"),
        (["cert: CERT", "key: TEXT"], 5, "text is no PEM file with a private key"),
        (["cert: CERT", "key: OTHER_KEY"], 5, "is not the key of the certificate in "),
        (["cert: CERT", "key: ENCRYPTED"], 5, "encrypted is encrypted; write it without a passphrase"),
        (["cert: BROKEN", "key: KEY"], 5, "cannot be read: "),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_line(
    files: dict[str, Path], keys: list[str], line: int, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(files, *keys)
    assert str(caught.value).startswith(f"ingest.yaml:{line}:")
    assert says in str(caught.value)


def test_files_that_fit_are_taken(files: dict[str, Path]) -> None:
    found = read(files, "ca: CA", "cert: CERT", "key: KEY")
    assert found.protocol == "SSL" and found.tls is not None
    assert [dict(one)["serialNumber"] for one in found.tls.get_ca_certs()]
