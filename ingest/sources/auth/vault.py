"""What an issuer gave us for the last refresh token, kept in the state store and sealed.

The key is derived from the first refresh token, which stands in the configuration by reference and nowhere else. So who
reads the state reads no token, a client secret may change, and a new first token makes a new beginning.
"""

import os

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from checkpoints import Tokens
from ingest.errors import ConfigError

KEY, NAME, NONCE = 32, 16, 12  # bytes


class Kept(msgspec.Struct, frozen=True):
    refresh: str
    access: str
    until: float | None = None  # seconds since 1970 at which the access token ends; None: nobody knows
    life: float | None = None  # seconds that it had from its beginning


class Vault:
    """One row of the state store. `issuer`: whose tokens these are, such as a token endpoint and a client id."""

    def __init__(self, tokens: Tokens, first: str, *issuer: str) -> None:
        self._tokens = tokens
        info = b"\0".join([b"ingest refresh token", *(part.encode() for part in issuer)])
        derived = HKDF(SHA256(), KEY + NAME, salt=None, info=info).derive(first.encode())
        self._cipher = AESGCM(derived[:KEY])
        self.name = f"refresh_token:{derived[KEY:].hex()}"

    async def load(self) -> tuple[int, Kept | None]:
        """What was saved last, and its version. (0, None): nothing was."""
        found = await self._tokens.load(self.name)
        if found is None:
            return 0, None
        try:
            opened = self._cipher.decrypt(found.content[:NONCE], found.content[NONCE:], self.name.encode())
            return found.version, msgspec.json.decode(opened, type=Kept)
        except (InvalidTag, msgspec.DecodeError, ValueError) as exc:
            what = f"the saved token {self.name} is damaged: delete its row from the table `tokens`"
            raise ConfigError(what) from exc

    async def replace(self, version: int, kept: Kept) -> bool:
        """As `Tokens.replace`."""
        nonce = os.urandom(NONCE)
        sealed = self._cipher.encrypt(nonce, msgspec.json.encode(kept), self.name.encode())
        return await self._tokens.replace(self.name, version, nonce + sealed)
