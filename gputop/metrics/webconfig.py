"""The file of ``--web-config``: TLS, client certificates and passwords, in the keys of Prometheus' exporter-toolkit.

https://prometheus.io/docs/prometheus/latest/configuration/https/. It is read again whenever it, or a certificate, has changed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import stat
import threading
import time
from typing import Any

from msgspec import Struct

from gputop.system.errors import UserError
from gputop.system.text import clean, one_line

MOST_BYTES = 1 << 16  # of the file
MOST_KNOWN = 64  # passwords whose check is remembered
LEAST_GAP_S = 0.25  # s between two checks of a password: bcrypt takes 50 to 500 ms of CPU, and anybody may ask
_NOBODY = b"$2b$10$C6UzMDM.H6dfI/f/IKcEeO4v3Ny0bHM8dCSrMSlrvFvGLYVOPq9tq"  # for users that are not there: they must not be told by the time
_AUTH = {
    "": ssl.CERT_NONE, "NoClientCert": ssl.CERT_NONE, "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}  # fmt: skip
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_TLS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version")
_TOP = ("tls_server_config", "basic_auth_users")


class _Loaded(Struct):
    """What the file says."""

    signature: list[tuple[object, ...]]  # of the files that were read, the config first: changes when they do
    context: ssl.SSLContext | None = None
    users: dict[str, bytes] = {}
    problem: str = ""  # why it cannot be used


class WebConfig:
    """The file, as it stands at each request."""

    def __init__(self, path: str) -> None:
        """Raises UserError where it cannot be used."""
        self._path = path
        self._lock, self._check_lock = threading.Lock(), threading.Lock()
        self._fitting: set[bytes] = set()  # digests of users with a password that fits the hash
        self._checked_s = 0.0
        self._loaded = _load(path)
        self.now()

    def now(self) -> _Loaded:
        """What it says now. Raises UserError while it cannot be used."""
        with self._lock:
            if self._loaded.signature != [_state_of(str(path)) for path, *_ in self._loaded.signature]:
                self._loaded = _load(self._path)
            if self._loaded.problem:
                raise UserError(self._loaded.problem)
            return self._loaded

    def allows(self, authorization: str) -> bool:
        """Whether a request's header Authorization is that of a user, or none is asked for. Raises UserError as `now` does."""
        users = self.now().users
        if not users:
            return True
        scheme, _, word = authorization.partition(" ")
        try:
            user, colon, password = base64.b64decode(word.strip(), validate=True).decode().partition(":")
        except ValueError:
            return False
        return scheme.lower() == "basic" and bool(colon) and self._fits(user, password.encode(), users.get(user, _NOBODY))

    def _fits(self, user: str, password: bytes, hashed: bytes) -> bool:
        key = hashlib.sha256(b"\0".join((user.encode(), password, hashed))).digest()
        if key in self._fitting:
            return True
        import bcrypt

        with self._check_lock:  # one after the other
            time.sleep(max(0.0, self._checked_s + LEAST_GAP_S - time.monotonic()))
            fits = bcrypt.checkpw(password[:72], hashed) and hashed is not _NOBODY  # bcrypt knows the first 72 bytes
            self._checked_s = time.monotonic()
        if fits:
            if len(self._fitting) >= MOST_KNOWN:
                self._fitting.clear()
            self._fitting.add(key)
        return fits


def _state_of(path: str) -> tuple[object, ...]:
    try:
        state = os.stat(path)
    except OSError as error:
        return path, error.errno
    return path, state.st_mtime_ns, state.st_size, state.st_ino, state.st_mode


def _load(path: str) -> _Loaded:
    """Read it; a file that cannot be used has a ``problem``."""
    loaded = _Loaded([_state_of(path)])
    try:
        asked = _read(path)
        loaded.users = _users(asked.get("basic_auth_users") or {}, path)
        if asked.get("tls_server_config"):
            loaded.context = _context(asked["tls_server_config"], path, loaded)
    except UserError as error:
        loaded.problem = f"--web-config {clean(path)}: {error}"
    return loaded


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        asked = yaml.safe_load(text) if len(text) <= MOST_BYTES else None
    except OSError as error:
        raise UserError(error.strerror or "it cannot be read") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "it cannot be read"
        raise UserError(f"no YAML{f', line {mark.line + 1}' if mark else ''}: {why}") from None
    return _table({} if not text.strip() else asked, _TOP, "the file")


def _table(asked: Any, keys: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(asked, dict):
        raise UserError(f"{what} must be a table of {', '.join(keys)}")
    for key in asked:
        if key not in keys:
            raise UserError(f"gputop knows no {clean(str(key), 60)!r} in {what}: it knows {', '.join(keys)}")
    return asked


def _users(asked: Any, path: str) -> dict[str, bytes]:
    if not isinstance(asked, dict) or not all(isinstance(one, str) for pair in asked.items() for one in pair):
        raise UserError("basic_auth_users must be a table: a name, and the bcrypt hash of its password")
    for user, hashed in asked.items():
        if not re.fullmatch(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}", hashed):
            raise UserError(f'the password of {clean(user, 60)!r} is no bcrypt hash: htpasswd -nBC 10 "" makes one')
    if asked and os.stat(path).st_mode & stat.S_IROTH:
        raise UserError("everybody can read it, and it holds passwords: chmod o= it")
    if asked:
        try:
            import bcrypt  # noqa: F401
        except ImportError:
            raise UserError("passwords need bcrypt: pip install 'gputop-ebpf[prometheus]'") from None
    return {user: hashed.encode() for user, hashed in asked.items()}


def _context(asked: Any, path: str, loaded: _Loaded) -> ssl.SSLContext:
    asked = _table(asked, _TLS, "tls_server_config")
    auth = str(asked.get("client_auth_type") or "")
    if auth not in _AUTH:
        raise UserError(f"client_auth_type {clean(auth, 60)!r}: gputop knows {', '.join(filter(None, _AUTH))}")
    names = {key: os.path.join(os.path.dirname(path), str(asked[key])) for key in _TLS[:3] if asked.get(key)}
    loaded.signature += map(_state_of, names.values())
    if "cert_file" not in names or "key_file" not in names:
        raise UserError("tls_server_config needs cert_file and key_file")
    if _AUTH[auth] != ssl.CERT_NONE and "client_ca_file" not in names:
        raise UserError(f"client_auth_type {auth} needs client_ca_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version = _VERSIONS[asked.get("min_version") or "TLS12"]
        context.maximum_version = _VERSIONS[asked.get("max_version") or "TLS13"]
    except (KeyError, TypeError):
        raise UserError("min_version and max_version are TLS12 or TLS13") from None
    try:
        context.load_cert_chain(names["cert_file"], names["key_file"], password=_no_password)
        if "client_ca_file" in names:
            context.load_verify_locations(names["client_ca_file"])
            context.verify_mode = _AUTH[auth]
    except (OSError, ValueError) as error:
        raise UserError(f"a certificate or key cannot be used: {one_line(str(error))}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")
