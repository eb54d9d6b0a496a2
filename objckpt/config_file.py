"""Settings as text: TOML and URLs, read and written, and what is wrong with them.

It is handed the dataclasses of ``config`` and knows how they look in a file; which settings exist and what
goes with what, they say themselves. All that is wrong is told at once, in one error whose keys are
paths such as ``targets[1].url``. URLs get one normal form, so that two spellings of one place are
equal. Credentials have no place in a URL: one that holds any is refused, and never shown.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

from objckpt.errors import InvalidInputError
from objckpt.units import GiB, KiB, MiB, TiB, parse_size

T = TypeVar("T")

SCHEMES = ("s3", "gs", "file", "memory")
ALLOWED_URLS = "s3://bucket/prefix, gs://bucket/prefix, file:///directory, a path, memory://name"

_REQUIRED = object()
_SIZES = frozenset({"stripe_size", "memory_budget", "bandwidth"})
_LOOKALIKES = {"gcs": "gs", "google": "gs", "s3a": "s3", "s3n": "s3", "aws": "s3", "mem": "memory"}
_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
_ROOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9._=+@,:-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. ``text`` goes on where the key ends: ``is 0: allowed are whole numbers from 1 on``."""

    key: str
    text: str

    def under(self, prefix: str) -> Problem:
        """The same mistake, its key seen from further outside."""
        return Problem(prefix + self.key, self.text)


class InvalidConfigError(InvalidInputError):
    """Settings are wrong; ``problems`` lists all that was found."""

    def __init__(self, problems: Sequence[Problem], **facts: Any) -> None:
        many = f"{len(problems)} settings are wrong: " if len(problems) > 1 else ""
        super().__init__(many + "; ".join(f"{problem.key} {problem.text}" for problem in problems), **facts)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.problems, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket and prefix, a directory, or a named space in memory.

    Attributes:
        scheme: One of ``SCHEMES``.
        root: The bucket or the space; empty for directories.
        path: Segments of the prefix, or of the absolute directory.
    """

    scheme: str
    root: str
    path: tuple[str, ...]

    @classmethod
    def parse(cls, url: str) -> Place:
        """Reads a URL that ``url_flaw`` finds nothing wrong with; a relative path starts at the working directory."""
        scheme, rest = _split(url)
        if scheme == "file":
            directory = os.path.abspath(unquote(rest) if "://" in url else rest)
            return cls(scheme=scheme, root="", path=tuple(part for part in directory.split("/") if part))
        root, _, prefix = rest.partition("/")
        return cls(scheme=scheme, root=root, path=tuple(part for part in prefix.split("/") if part))

    @property
    def url(self) -> str:
        """The normal form, without a slash at the end; a plain path for directories."""
        if self.scheme == "file":
            return "/" + "/".join(self.path)
        return f"{self.scheme}://" + "/".join((self.root, *self.path))

    @property
    def parent(self) -> Place:
        return dataclasses.replace(self, path=self.path[:-1])

    def holds(self, other: Place) -> bool:
        """Whether ``other`` is this place or lies inside it, endpoints aside."""
        same_root = (self.scheme, self.root) == (other.scheme, other.root)
        return same_root and other.path[: len(self.path)] == self.path


def refuse(problems: Iterable[Problem], *, under: str = "", **facts: Any) -> None:
    """Raises if there are any.

    Raises:
        InvalidConfigError: There are; their keys begin with ``under``.
    """
    found = [problem.under(under) for problem in problems]
    if found:
        raise InvalidConfigError(found, **facts)


def wrong_types(settings: Any) -> list[Problem]:
    """Fields of a dataclass instance whose values are not what their annotations say."""
    hints = get_type_hints(type(settings))
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return [
        Problem(name, _type_flaw(value, hints[name])) for name, value in values.items() if not _fits(value, hints[name])
    ]


def exact_size(size: int) -> str:
    """A size as ``units.parse_size`` reads it back, byte for byte: ``"64MiB"``."""
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def is_mangled(text: str) -> bool:
    """Whether this is what ``pathlib.Path`` makes of a URL: ``s3:/bucket/key``."""
    return _MANGLED.match(text) is not None


def url_flaw(url: str) -> str | None:
    """What is wrong with a target's URL, to follow the key's name; None if nothing is."""
    if is_mangled(url):
        right = url.replace(":/", "://", 1)
        return f"is {shown_url(url)!r}, which is what a Path makes of a URL: write {shown_url(right)!r} as text"
    scheme, rest = _split(url)
    if scheme not in SCHEMES:
        return f"is {shown_url(url)!r}: {_about_scheme(scheme)}"
    if scheme == "file":
        return _path_flaw(url, rest)
    root, _, prefix = rest.partition("/")
    if "@" in root or "?" in rest or "#" in rest:
        return f"is {shown_url(url)!r}: allowed is a bucket and a prefix, no credentials and no query"
    if ":" in root:
        return f"is {url!r}: allowed is a bucket after {scheme}://; a host and its port go into endpoint_url"
    if not _ROOT.fullmatch(root):
        return f"is {url!r}: {root!r} is no name of a bucket; allowed are letters, digits, '.', '-' and '_'"
    for part in prefix.removesuffix("/").split("/") if prefix else ():
        if part in (".", "..") or not _SEGMENT.fullmatch(part):
            return (
                f"is {url!r}: {part!r} is no part of a prefix; allowed are letters, digits and any of . _ = + @ , : -"
            )
    return None


def endpoint_flaw(url: str) -> str | None:
    """What is wrong with an ``endpoint_url``, to follow the key's name; None if nothing is."""
    allowed = f"is {shown_url(url)!r}: allowed is http:// or https://, a host and perhaps a port, nothing secret"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return allowed
    secret = "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)
    return None if usable and not secret and " " not in url else allowed


def normal_endpoint(url: str | None) -> str:
    """One spelling of a valid endpoint, for comparing; empty for the provider's own."""
    if url is None:
        return ""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def shown_url(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    scheme, mark, rest = url.partition("://") if "://" in url else url.partition(":/")
    if not mark:
        scheme, rest = "", url
    authority, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    if "@" in authority:
        authority = "***@" + authority.rpartition("@")[2]
    return scheme + mark + authority + slash + path


def read_toml(path: str) -> dict[str, Any]:
    """Reads a file's tables.

    Raises:
        InvalidInputError: It cannot be read, or is not TOML; the text says at which line.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise InvalidInputError(
            "the configuration file does not exist", hint="`objckpt init` writes one", file=path
        ) from error
    except OSError as error:
        raise InvalidInputError(f"the configuration file cannot be read: {error.strerror}", file=path) from error
    except ValueError as error:
        raise InvalidInputError(f"the configuration file is not TOML: {error}", file=path) from error


def build(kind: type[T], tables: Mapping[str, Any], *, file: str) -> T:
    """Makes settings from a file's tables; relative paths start at the file's directory.

    Raises:
        InvalidConfigError: Unknown or missing keys, wrong values; all that was found, with the file's name.
    """
    builder = _Builder(os.path.dirname(os.path.abspath(file)))
    built = builder.build(kind, tables, "")
    refuse(builder.problems, file=file)
    return built  # type: ignore[no-any-return]


def render(config: Any) -> str:
    """Writes settings as commented TOML, every one with its default; ``build`` reads it back as the same."""
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    lines = [*_HEADING, *_setting("run", sections.pop("run"), _REQUIRED, _COMMENTS["run"])]
    for name, section in sections.items():
        for position, table in enumerate(section if isinstance(section, tuple) else (section,)):
            lines += ["", *(f"# {line}" for line in _SECTIONS[name] if position == 0)]
            lines.append(f"[[{name}]]" if isinstance(section, tuple) else f"[{name}]")
            for field in dataclasses.fields(table):
                value = getattr(table, field.name)
                # What the first target explains, the others repeat only where they set it.
                if position == 0 or value != _default(field):
                    comment = _COMMENTS[f"{name}.{field.name}"] if position == 0 else ("", "")
                    lines += _setting(field.name, value, _default(field), comment)
    return "\n".join(lines) + "\n"


class _Builder:
    def __init__(self, directory: str) -> None:
        self.problems: list[Problem] = []
        self._directory = directory

    def build(self, kind: Any, tables: Any, at: str) -> Any:
        """The settings, or None after adding to ``problems``; ``at`` ends with a dot unless it is empty."""
        if not isinstance(tables, dict):
            self.problems.append(Problem(at.removesuffix("."), f"is {tables!r}: allowed is a table"))
            return None
        before = len(self.problems)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints = get_type_hints(kind)
        for name in tables:
            if name not in fields:
                self.problems.append(Problem(at + name, f"is no setting: {_did_you_mean(name, fields)}"))
        for name, field in fields.items():
            if name not in tables and _default(field) is _REQUIRED:
                self.problems.append(Problem(at + name, f"is missing: allowed is {_wanted(hints[name])}"))
        values = {name: self._value(hints[name], name, tables[name], at + name) for name in fields if name in tables}
        if len(self.problems) > before:
            return None
        try:
            return kind(**values)
        except InvalidConfigError as error:
            self.problems += [problem.under(at) for problem in _without_section(error.problems, at)]
            return None

    def _value(self, hint: Any, name: str, value: Any, key: str) -> Any:
        if dataclasses.is_dataclass(hint):
            return self.build(hint, value, key + ".")
        if get_origin(hint) is tuple:
            if not isinstance(value, list):
                self.problems.append(Problem(key, f"is {value!r}: allowed are tables, each under [[{key}]]"))
                return None
            return tuple(self.build(get_args(hint)[0], item, f"{key}[{index}].") for index, item in enumerate(value))
        if name in _SIZES:
            return self._size(value, key)
        if name in ("url", "ca_bundle") and isinstance(value, str) and value and not re.match(r"[/~]|.*:/", value):
            return os.path.join(self._directory, value)
        return value

    def _size(self, value: Any, key: str) -> int | None:
        try:
            return parse_size(value, name=key)
        except InvalidInputError as error:
            text = error.message.removeprefix(key + " ")
            self.problems.append(Problem(key, f"{text}: {error.hint}" if error.hint else text))
            return None


def _rebuild(problems: Sequence[Problem], facts: dict[str, Any]) -> InvalidConfigError:
    return InvalidConfigError(problems, **facts)


def _without_section(problems: Sequence[Problem], at: str) -> list[Problem]:
    # Built in code, a section names itself, since nothing around it is known: `transfer.threads`, `target.url`.
    section = re.sub(r"s\[\d+\]", "", at)
    return [Problem(problem.key.removeprefix(section), problem.text) for problem in problems]


def _type_flaw(value: Any, hint: Any) -> str:
    if isinstance(value, os.PathLike) and is_mangled(str(value)):
        return url_flaw(str(value)) or ""
    shown = shown_url(value) if isinstance(value, str) else value
    return f"is {shown!r}: allowed is {_wanted(hint)}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed are {', '.join(words)}"


def _about_scheme(scheme: str) -> str:
    if scheme.lower() in ("http", "https"):
        return f"allowed are {ALLOWED_URLS}; the address of a server goes into endpoint_url"
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)
    likely = _LOOKALIKES.get(scheme.lower()) or (near[0] if near else None)
    return (f"did you mean {likely}://? " if likely else "") + f"Allowed are {ALLOWED_URLS}"


def _split(url: str) -> tuple[str, str]:
    scheme, mark, rest = url.partition("://")
    return (scheme, rest) if mark else ("file", url)


def _path_flaw(url: str, path: str) -> str | None:
    if not path:
        return f"is {url!r}: allowed are {ALLOWED_URLS}"
    if "://" in url and not path.startswith("/"):
        return f"is {url!r}: allowed is an absolute path after file://, which makes three slashes: file:///directory"
    if path.startswith("~"):
        return f"is {url!r}: ~ is not expanded; write the whole path"
    if not (unquote(path) if "://" in url else path).isprintable():
        return f"is {url!r}: unprintable characters are not allowed in it"
    return None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is str:
        # Unprintable characters in names and places are accidents; they would spoil logs and this file.
        return isinstance(value, str) and value.isprintable()
    return isinstance(value, hint)


def _wanted(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(option) for option in get_args(hint) if option is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(get_args(hint))
    if origin is tuple:
        return f"one or more {get_args(hint)[0].__name__}"
    words = {
        str: "text without unprintable characters",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    return words.get(hint) or f"a {hint.__name__}"


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED if field.default is dataclasses.MISSING else field.default


def _setting(name: str, value: Any, default: Any, comment: tuple[str, str]) -> list[str]:
    about, example = comment
    lines = [f"# {about}" + _default_remark(name, default)] if about else []
    # A default that is "nothing" can only be shown as an example, switched off.
    return [*lines, f"# {name} = {example}" if value is None else f"{name} = {_written(name, value)}"]


def _default_remark(name: str, default: Any) -> str:
    if default is _REQUIRED or default is None or default == "":
        return ""
    return f" Default: {_written(name, default)}."


def _written(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f'"{exact_size(value)}"' if name in _SIZES else repr(value)


_HEADING = [
    "# Where and how objckpt stores the checkpoints of a run. Every setting is here; what has a default may be left out.",
    "# Credentials never belong in this file: the cloud SDKs find them where they always do.",
    "",
]

_SECTIONS: dict[str, list[str]] = {
    "targets": [
        "Where fragments go: a bucket and prefix, or a directory. One [[targets]] table for each.",
        "Fragments are spread evenly over the failure domains.",
    ],
    "code": [
        "Each stripe becomes data + parity fragments; any `data` of them give it back.",
        "It holds for new checkpoints: what is stored says itself how it was coded.",
    ],
    "transfer": ["How bytes move; all of it is per process."],
    "read": ["What a load accepts."],
    "write": ["What a save accepts."],
}

_COMMENTS: dict[str, tuple[str, str]] = {
    "run": (
        "The run's name: letters, digits, '.', '_' and '-'. Keys begin with the target's prefix and this name.",
        "",
    ),
    "targets.name": (
        "A name of your own, written into checkpoints: lower-case letters, digits, '-' and '_'. Keep it.",
        "",
    ),
    "targets.url": ("s3://bucket/prefix, gs://bucket/prefix, or a directory (relative ones start at this file).", ""),
    "targets.domain": ("What fails together: a zone, a region, a provider. Default: the target's name.", ""),
    "targets.fragments": ("false makes the target a witness: it takes part in control and stores no fragments.", ""),
    "targets.read_cost": ("Relative cost of reading; data fragments prefer cheap targets.", ""),
    "targets.endpoint_url": (
        "The server, where it is not the provider's own (MinIO, Ceph, an emulator).",
        '"https://minio.example:9000"',
    ),
    "targets.region": ("S3: the bucket's region. Default: what the AWS SDK finds.", '"us-east-1"'),
    "targets.profile": ("S3: a profile of the AWS configuration. Default: what the AWS SDK finds.", '"training"'),
    "targets.project": ("GCS: the project. Default: what the Google SDK finds.", '"my-project"'),
    "targets.addressing_style": (
        'S3: "path" puts the bucket into the path, "virtual" into the host name; "auto": path with an endpoint_url.',
        "",
    ),
    "targets.ca_bundle": (
        "A file of certificates to trust for this server (relative ones start at this file).",
        '"ca.pem"',
    ),
    "targets.storage_class": ("The class that objects are stored in. Default: the bucket's.", '"STANDARD"'),
    "targets.sse": (
        'S3: encryption by the server: "AES256", "aws:kms" or "aws:kms:dsse". Default: the bucket\'s.',
        '"aws:kms"',
    ),
    "targets.kms_key": (
        "The key of that encryption; on S3 it needs sse. Default: the bucket's.",
        '"arn:aws:kms:us-east-1:123456789012:key/0"',
    ),
    "targets.user_project": ("GCS: the project that pays, for a bucket whose requesters pay.", '"my-project"'),
    "targets.expected_bucket_owner": (
        "S3: the account that must own the bucket, or every request is refused.",
        '"123456789012"',
    ),
    "code.data": ("k: how many fragments give a stripe back.", ""),
    "code.parity": ("m: how many fragments of a stripe may be lost. 0: no coding.", ""),
    "code.stripe_size": (
        "Bytes of a shard that are coded together. Default: fragments of up to 16 MiB, four stripes within memory_budget.",
        '"64MiB"',
    ),
    "transfer.memory_budget": ("Bytes of buffers in flight.", ""),
    "transfer.threads": ("Requests in flight.", ""),
    "transfer.bandwidth": ("At most so many bytes per second, over all targets. Default: no limit.", '"400MB"'),
    "transfer.operation_deadline_s": ("Seconds for which one operation on a store is tried again.", ""),
    "transfer.save_deadline_s": ("Seconds that all of one save may take. Default: no limit.", "1800.0"),
    "read.allow_pickles": (
        "true lets stored Python objects run code while they are loaded: only for stores you trust.",
        "",
    ),
    "write.min_tolerance": ("Every stripe of a save must survive the loss of so many further domains.", ""),
}
