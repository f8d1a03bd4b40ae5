"""API keys: known keys, the key of a request, and the routes that it opens. Only digests are kept; none is logged."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal

from polyhead.errors import ConfigError
from polyhead.serve.http import HttpError
from polyhead.values import Value

ADMIN_KEY = "polyhead.admin"  # in a scope: the name of the key for admin that was checked
HAS_KEYS = "polyhead.has_keys"  # in a scope: whether the server has any, so that nobody is exempt from them
Purpose = Literal["predict", "admin"]
FORM = "KEY, predict:KEY or admin:KEY in each line; what follows after ' #' is its name in the log"
_KEY = re.compile(r"[!-~]+")  # printable ASCII, as headers carry it
_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[\w.-]*))(?::\d*)?", re.ASCII)


class Key(Value):
    """One key: its digest alone."""

    name: str  # in the log
    purpose: Purpose
    digest: bytes


class AccessKeys:
    """The keys of a server. Where there are none, every request is answered, whatever key it has."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)
        self._is_needed = any(key.purpose == "predict" for key in self._keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def has(self, purpose: Purpose) -> bool:
        """Whether there is a key for this."""
        return any(key.purpose == purpose for key in self._keys)

    def opened(self, headers: Sequence[tuple[bytes, bytes]], access: Literal["open", "predict", "admin"]) -> Key | None:
        """The key with which a request opens a route; None where none is needed.

        A key for admin opens every route. Raises HttpError 401 without a key that is known, 403 for one that does not
        open this route.
        """
        if access == "open" or not (self._is_needed or (access == "admin" and self._keys)):
            return None
        value = _key_bytes(headers)
        key = None if value is None else self._key_of(value)
        if key is None:
            problem = "this needs a key, and none was given" if value is None else "the key is not known"
            do = "send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            raise HttpError(401, problem, do=do)
        if access == "admin" and key.purpose != "admin":
            raise HttpError(403, "the key does not open this route", allowed="a key for admin")
        return key

    def _key_of(self, value: bytes) -> Key | None:
        """The key with these bytes; every key is compared, each in constant time."""
        digest, known = sha256(value).digest(), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                known = key
        return known


NO_KEYS = AccessKeys()


def keys_in(text: str, *, source: str, purpose: Purpose = "predict", before: int = 0) -> list[Key]:
    """The keys in these lines; those without a purpose are for `purpose`. `before` keys were read elsewhere.

    Raises ConfigError, which quotes no key, for a line without a key.
    """
    keys = list[Key]()
    for number, line in enumerate(text.splitlines(), start=1):
        content, _, comment = f" {line}".partition(" #")
        content = content.strip()
        if not content:
            continue
        its: Purpose = purpose
        for prefix in ("predict", "admin"):
            if content.startswith(f"{prefix}:"):
                its, content = ("admin" if prefix == "admin" else "predict"), content[len(prefix) + 1 :].strip()
        if not _KEY.fullmatch(content):
            raise ConfigError(
                f"{source}, line {number}: this is no key",
                allowed=f"{FORM}; a key is of printable ASCII without spaces",
                do="make keys with `openssl rand -hex 32`",
            )
        name = comment.strip() or f"{its}-{before + len(keys) + 1}"
        keys.append(Key(name=name, purpose=its, digest=sha256(content.encode()).digest()))
    return keys


def check_keys(keys: AccessKeys, *, host: str, admin: bool, no_keys: bool) -> None:
    """Raises ConfigError for a server that anyone could use unasked: beyond this machine, or to change its tasks."""
    if no_keys and keys:
        raise ConfigError("there are keys, and the server was told to need none", do="leave out --keys or --no-keys")
    if not is_loopback(host) and not keys.has("predict") and not no_keys:
        raise ConfigError(
            "a server that other machines reach needs keys",
            got=host,
            allowed="--host 127.0.0.1 without keys",
            do="give --keys FILE, or --no-keys where something else checks who asks",
        )
    if admin and not keys.has("admin") and not (no_keys and is_loopback(host)):
        raise ConfigError(
            "changing tasks over HTTP needs a key of its own",
            do="add a line admin:KEY to the file of --keys, or give --no-keys on this machine alone",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; names are not resolved, only 'localhost' is known."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_host_name(host: str) -> bool:
    """Whether a host is a name that a web page may point at any machine: neither an address nor 'localhost'."""
    return _address(host) is None and host.lower() != "localhost"


def host_in(authority: str) -> str:
    """The host of `HOST` or `HOST:PORT`, without the brackets of an address; raises HttpError 400 for any other form.

    A dot at the end of a name is removed. The host of an empty string is "".
    """
    fit = _AUTHORITY.fullmatch(authority)
    if fit is None:
        raise HttpError(400, "the header 'Host' is no address", got=authority[:100], allowed="HOST or HOST:PORT")
    name = fit["address"] or fit["name"] or ""
    return name.removesuffix(".") or name


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _key_bytes(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The key of a request: of `Authorization: Bearer`, else of `x-api-key`."""
    fallback = None
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            fallback = value.strip()
    return fallback
