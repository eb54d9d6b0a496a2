"""Settings: frozen dataclasses that check themselves, read from TOML, from URLs, or built in code.

With ``config_file``, which knows how settings look as text, the only module that reads TOML and the
environment. Credentials are never settings: the cloud SDKs' own chains find them. Kept here: settings
that exist are whole and fit together, wherever they came from; what is wrong is one error that names
every key, its value and what is allowed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from objckpt.coding.geometry import BLOCK_SIZE, MAX_FRAGMENTS, MAX_STRIPE_SIZE
from objckpt.config_file import (
    InvalidConfigError,
    Place,
    Problem,
    build,
    endpoint_flaw,
    exact_size,
    is_mangled,
    normal_endpoint,
    read_toml,
    refuse,
    render,
    shown_url,
    url_flaw,
    wrong_types,
)
from objckpt.units import MiB, ceil_div

__all__ = [
    "CodeConfig",
    "InvalidConfigError",
    "Promise",
    "ReadPolicy",
    "StoreConfig",
    "TargetConfig",
    "TransferConfig",
    "WritePolicy",
    "default_code",
    "environment",
    "load_config",
    "promise",
    "template",
]

_MAX_FRAGMENT = 16 * MiB
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")

_STORES_WITH: dict[str, tuple[str, ...]] = {
    "endpoint_url": ("s3", "gs"),
    "region": ("s3",),
    "profile": ("s3",),
    "project": ("gs",),
    "addressing_style": ("s3",),
    "ca_bundle": ("s3", "gs"),
    "storage_class": ("s3", "gs"),
    "sse": ("s3",),
    "kms_key": ("s3", "gs"),
    "user_project": ("gs",),
    "expected_bucket_owner": ("s3",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One place for fragments.

    Attributes:
        name: Stable name, ``[a-z0-9][a-z0-9_-]*``; it is written into manifests.
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///directory``, a plain absolute or
            relative path, or ``memory://name`` (within one process; tests). It is kept in its normal form:
            without a slash at the end, directories as plain absolute paths.
        domain: What fails together; defaults to the target's own name.
        fragments: False makes it a witness: control objects only.
        read_cost: Relative cost of reading; data fragments prefer cheap targets.
    """

    name: str
    url: str
    domain: str = ""
    fragments: bool = True
    read_cost: float = 1.0
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    project: str | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    ca_bundle: str | None = None
    storage_class: str | None = None
    sse: str | None = None
    kms_key: str | None = None
    user_project: str | None = None
    expected_bucket_owner: str | None = None

    def __post_init__(self) -> None:
        refuse(wrong_types(self) or _target_problems(self), under="target.", target=self.name)
        object.__setattr__(self, "url", self.place.url)
        object.__setattr__(self, "domain", self.domain or self.name)
        if self.ca_bundle is not None:
            object.__setattr__(self, "ca_bundle", os.path.abspath(self.ca_bundle))

    @property
    def place(self) -> Place:
        """The url, taken apart."""
        return Place.parse(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeConfig:
    """How stripes are coded: ``data`` + ``parity`` fragments.

    ``stripe_size`` None means ``data * min(16 MiB, memory_budget / (4 * (data + parity)))``, in whole blocks.
    """

    data: int
    parity: int
    stripe_size: int | None = None

    def __post_init__(self) -> None:
        refuse(wrong_types(self) or _code_problems(self), under="code.")

    @property
    def fragments(self) -> int:
        """n = k + m."""
        return self.data + self.parity


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How bytes move.

    Attributes:
        memory_budget: Bytes of buffers in flight per process.
        threads: Requests in flight per process.
        bandwidth: Cap in bytes per second per process; None for none.
        operation_deadline_s: How long one store operation is retried.
        save_deadline_s: How long all of one save may take; None for no bound.
    """

    memory_budget: int = 256 * MiB
    threads: int = 32
    bandwidth: int | None = None
    operation_deadline_s: float = 120.0
    save_deadline_s: float | None = None

    def __post_init__(self) -> None:
        refuse(wrong_types(self) or _transfer_problems(self), under="transfer.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """What a load accepts. ``allow_pickles`` lets stored Python objects run code while they are loaded."""

    allow_pickles: bool = False

    def __post_init__(self) -> None:
        refuse(wrong_types(self), under="read.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePolicy:
    """What a save accepts: every stripe must survive the loss of ``min_tolerance`` further domains."""

    min_tolerance: int = 0

    def __post_init__(self) -> None:
        refuse(wrong_types(self) or _at_least("min_tolerance", self.min_tolerance, 0), under="write.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Everything ``objckpt.open`` needs to know."""

    run: str
    targets: tuple[TargetConfig, ...]
    code: CodeConfig
    transfer: TransferConfig = field(default_factory=TransferConfig)
    read: ReadPolicy = field(default_factory=ReadPolicy)
    write: WritePolicy = field(default_factory=WritePolicy)

    def __post_init__(self) -> None:
        # Whether code, targets and budget go together is asked only once there are sound targets.
        refuse(wrong_types(self) or list(_own_problems(self)) or list(_fit_problems(self)))

    @property
    def fragment_targets(self) -> tuple[TargetConfig, ...]:
        """The targets that store fragments: all but the witnesses."""
        return tuple(target for target in self.targets if target.fragments)

    @property
    def domains(self) -> tuple[str, ...]:
        """All failure domains, witnesses' included, in the order in which targets first name them."""
        return tuple(dict.fromkeys(target.domain for target in self.targets))

    @property
    def fragment_domains(self) -> tuple[str, ...]:
        """The failure domains that hold fragments, in order."""
        return tuple(dict.fromkeys(target.domain for target in self.fragment_targets))

    @property
    def control_targets(self) -> tuple[TargetConfig, ...]:
        """The target that speaks for its domain, one for each: the first listed."""
        first: dict[str, TargetConfig] = {}
        for target in self.targets:
            first.setdefault(target.domain, target)
        return tuple(first.values())

    @property
    def stripe_size(self) -> int:
        """Bytes of a shard that are coded together: ``code.stripe_size``, or its default."""
        if self.code.stripe_size is not None:
            return self.code.stripe_size
        share = self.transfer.memory_budget // (4 * self.code.fragments)
        fragment = min(_MAX_FRAGMENT, share, MAX_STRIPE_SIZE // self.code.data)
        return self.code.data * max(1, fragment // BLOCK_SIZE) * BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a configuration survives while nothing is lost yet.

    Attributes:
        fragment_tolerance: f, how many domains can be lost with every stripe still readable.
        control_tolerance: c, how many can be lost with saves and loads still knowing what exists.
        promised: g, the smaller of the two.
        advice: What would help, where g is 0 or the domains are not as apart as they are called.
    """

    fragment_tolerance: int
    control_tolerance: int
    promised: int
    advice: str | None


def load_config(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | StoreConfig, *, run: str | None = None
) -> StoreConfig:
    """Reads settings from where they are.

    Args:
        source: A TOML file; or one URL or directory of a run, or a list of them, whose last component is the
            run's name; or settings themselves.
        run: The run's name. It wins over the one in a file; URLs then name the targets' places without it.

    Raises:
        InvalidInputError: What is wrong, by key, value and what is allowed.
    """
    if isinstance(source, StoreConfig):
        config = source if run is None else replace(source, run=run)
    elif isinstance(source, (str, os.PathLike)):
        config = (
            _from_file(os.fspath(source), run) if _names_a_file(source) else _from_urls([source], run, key="source")
        )
    elif isinstance(source, (list, tuple)):
        config = _from_urls(source, run, key="source[{}]")
    else:
        allowed = "a TOML file, a URL, a list of URLs, a StoreConfig"
        raise InvalidConfigError([Problem("source", f"is {source!r}: allowed are {allowed}")])
    return _on_emulator(config)


def default_code(targets: int) -> CodeConfig:
    """The code where none is given, for so many fragment targets: all of them are used, two may be lost from four on."""
    small = {1: (1, 0), 2: (1, 1), 3: (2, 1), 4: (2, 2)}
    data, parity = small.get(targets) or (min(targets, MAX_FRAGMENTS) - 2, 2)
    return CodeConfig(data=data, parity=parity)


def promise(config: StoreConfig) -> Promise:
    """What these settings survive: f, c and g = min(f, c)."""
    code = config.code
    f = _fragment_tolerance(code.data, code.parity, len(config.fragment_domains))
    c = (len(config.domains) - 1) // 2
    advice = [*(_advice(config, f, c) if min(f, c) == 0 else ()), *_shared_buckets(config)]
    return Promise(fragment_tolerance=f, control_tolerance=c, promised=min(f, c), advice="; ".join(advice) or None)


def template(config: StoreConfig | None = None) -> str:
    """The commented TOML file of these settings, or of an example to fill in; ``load_config`` reads it back as the same."""
    return render(config or _from_urls(_EXAMPLE_URLS, "my-run", key="source[{}]"))


def environment(name: str) -> str | None:
    """An environment variable; None if it is unset or empty. Nothing else reads the environment."""
    return os.environ.get(name) or None


_EXAMPLE_URLS = ["s3://my-bucket-a/checkpoints", "s3://my-bucket-b/checkpoints", "gs://my-bucket-c/checkpoints"]


# Sources


def _names_a_file(source: str | os.PathLike[str]) -> bool:
    text = os.fspath(source)
    if not isinstance(text, str) or "://" in text or is_mangled(text) or os.path.isdir(text):
        return False
    return text.endswith(".toml") or os.path.isfile(text)


def _from_file(path: str, run: str | None) -> StoreConfig:
    tables = read_toml(path)
    if run is not None:
        tables["run"] = run
    return build(StoreConfig, tables, file=path)


def _from_urls(sources: Sequence[object], run: str | None, *, key: str) -> StoreConfig:
    if not sources:
        refuse([Problem("source", "is an empty list: allowed are one URL or more")])
    keys = [key.format(index) for index in range(len(sources))]
    urls = [os.fspath(source) if isinstance(source, os.PathLike) else source for source in sources]
    refuse(Problem(key, flaw) for key, url in zip(keys, urls, strict=True) if (flaw := _source_flaw(url)))
    places = [Place.parse(str(url)) for url in urls]
    if run is None:
        run, places = _common_run(keys, places)
    shared = Counter((place.scheme, place.root) for place in places)
    names = _names(places)
    targets = tuple(
        TargetConfig(
            name=name,
            url=place.url,
            domain=_bucket(place) if place.root and shared[place.scheme, place.root] > 1 else "",
        )
        for name, place in zip(names, places, strict=True)
    )
    domains = len({target.domain for target in targets})
    return StoreConfig(run=run, targets=targets, code=default_code(domains if domains > 1 else len(targets)))


def _source_flaw(url: object) -> str | None:
    if not isinstance(url, str):
        return f"is {url!r}: allowed is a URL or a path"
    if _names_a_file(url):
        return f"is {url!r}, which is a file: allowed in a list are URLs and directories; give a TOML file alone"
    return url_flaw(url)


def _common_run(keys: Sequence[str], places: Sequence[Place]) -> tuple[str, list[Place]]:
    refuse(
        Problem(
            key,
            f"is {place.url!r}, which ends in no run's name: write {place.url.rstrip('/') + '/RUN'!r}, or give run=",
        )
        for key, place in zip(keys, places, strict=True)
        if not place.path or not _RUN.fullmatch(place.path[-1])
    )
    run = places[0].path[-1]
    refuse(
        Problem(key, f"is {place.url!r}, which ends in another run's name than {run!r}: give run=, or one name to all")
        for key, place in zip(keys, places, strict=True)
        if place.path[-1] != run
    )
    return run, [place.parent for place in places]


def _names(places: Sequence[Place]) -> list[str]:
    # Names are written into manifests, so they depend on the place alone and not on the order of the list.
    short = [re.sub(r"[^a-z0-9_-]", "-", _short_name(place).lower()) for place in places]
    uses = Counter(short)
    return [
        name if uses[name] == 1 else f"{name}-{hashlib.sha256(place.url.encode()).hexdigest()[:8]}"
        for name, place in zip(short, places, strict=True)
    ]


def _short_name(place: Place) -> str:
    return f"{place.scheme}-{place.root or (place.path[-1] if place.path else 'root')}"


def _bucket(place: Place) -> str:
    return f"{place.scheme}://{place.root}"


def _on_emulator(config: StoreConfig) -> StoreConfig:
    host = environment("STORAGE_EMULATOR_HOST")
    if host is None or not any(_wants_emulator(target) for target in config.targets):
        return config
    endpoint = host if "://" in host else f"http://{host}"
    refuse(Problem("STORAGE_EMULATOR_HOST", flaw) for flaw in [endpoint_flaw(endpoint)] if flaw)
    targets = (replace(t, endpoint_url=endpoint) if _wants_emulator(t) else t for t in config.targets)
    return replace(config, targets=tuple(targets))


def _wants_emulator(target: TargetConfig) -> bool:
    return target.place.scheme == "gs" and target.endpoint_url is None


# Checks


def _at_least(key: str, value: float | None, least: int, *, size: bool = False) -> list[Problem]:
    if value is None or value >= least:
        return []
    return [Problem(key, f"is {value!r}: allowed is {least}{' byte' if size else ''} or more")]


def _more_than_none(key: str, value: float | None) -> list[Problem]:
    return [] if value is None or value > 0 else [Problem(key, f"is {value!r}: allowed is more than 0")]


def _target_problems(target: TargetConfig) -> list[Problem]:
    problems = _at_least("read_cost", target.read_cost, 0)
    if not _NAME.fullmatch(target.name):
        allowed = "lower-case letters, digits, '-' and '_', beginning with a letter or a digit"
        problems.append(Problem("name", f"is {target.name!r}: allowed are {allowed}"))
    if target.domain != target.domain.strip():
        problems.append(Problem("domain", f"is {target.domain!r}: spaces around it are not allowed"))
    flaw = url_flaw(target.url)
    if flaw is not None:
        return [*problems, Problem("url", flaw)]
    return [*problems, *_option_problems(target, target.place.scheme)]


def _option_problems(target: TargetConfig, scheme: str) -> Iterator[Problem]:
    for key, schemes in _STORES_WITH.items():
        value = getattr(target, key)
        if value is None or (key == "addressing_style" and value == "auto"):
            continue
        if scheme not in schemes:
            stores = " and ".join(f"{scheme}://" for scheme in schemes)
            shown = repr(shown_url(value) if key == "endpoint_url" else value)
            yield Problem(key, f"is {shown}, which {scheme} targets do not have: allowed for {stores} only")
        elif value == "":
            yield Problem(key, "is '': allowed is a text that is not empty; leave the key out for the default")
        elif key == "endpoint_url" and (flaw := endpoint_flaw(value)):
            yield Problem(key, flaw)
    if scheme == "s3":
        yield from _s3_problems(target)
    if target.ca_bundle is not None and target.ca_bundle.startswith("~"):
        yield Problem("ca_bundle", f"is {target.ca_bundle!r}: ~ is not expanded; write the whole path")
    elif target.ca_bundle and (target.endpoint_url or "").startswith("http://"):
        yield Problem("ca_bundle", f"is {target.ca_bundle!r}: not allowed where endpoint_url is http://, without TLS")


def _s3_problems(target: TargetConfig) -> Iterator[Problem]:
    if target.sse and target.sse not in ("AES256", "aws:kms", "aws:kms:dsse"):
        yield Problem("sse", f"is {target.sse!r}: allowed are AES256, aws:kms, aws:kms:dsse")
    if target.kms_key and not (target.sse or "").startswith("aws:kms"):
        yield Problem("kms_key", f'is {target.kms_key!r}: allowed only with sse = "aws:kms" or "aws:kms:dsse"')
    if target.expected_bucket_owner and not re.fullmatch(r"\d{12}", target.expected_bucket_owner, re.ASCII):
        yield Problem(
            "expected_bucket_owner", f"is {target.expected_bucket_owner!r}: allowed are an account's 12 digits"
        )
    if target.storage_class in _ARCHIVES:
        yield Problem(
            "storage_class", f"is {target.storage_class!r}: not allowed, since a load could not read it at once"
        )


def _code_problems(code: CodeConfig) -> list[Problem]:
    problems = [*_at_least("data", code.data, 1), *_at_least("parity", code.parity, 0)]
    if problems:
        return problems
    if code.fragments > MAX_FRAGMENTS:
        text = f"+ parity is {code.data} + {code.parity} = {code.fragments}: allowed are {MAX_FRAGMENTS} at most"
        return [Problem("data", text)]
    size = code.stripe_size
    if size is not None and not code.data <= size <= MAX_STRIPE_SIZE:
        allowed = f"{code.data} bytes (one per data fragment) up to {exact_size(MAX_STRIPE_SIZE)}"
        return [Problem("stripe_size", f"is {size!r}: allowed are {allowed}")]
    return []


def _transfer_problems(transfer: TransferConfig) -> list[Problem]:
    return [
        *_at_least("memory_budget", transfer.memory_budget, 1, size=True),
        *_at_least("threads", transfer.threads, 1),
        *_at_least("bandwidth", transfer.bandwidth, 1, size=True),
        *_more_than_none("operation_deadline_s", transfer.operation_deadline_s),
        *_more_than_none("save_deadline_s", transfer.save_deadline_s),
    ]


def _own_problems(config: StoreConfig) -> Iterator[Problem]:
    if not _RUN.fullmatch(config.run):
        allowed = "1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        yield Problem("run", f"is {config.run!r}: allowed are {allowed}")
    if not config.fragment_targets:
        found = "none" if not config.targets else f"{len(config.targets)}, all with fragments = false"
        yield Problem("targets", f"is {found}: allowed is at least one that stores fragments")
    for index, target in enumerate(config.targets):
        for earlier in range(index):
            yield from _pair_problems(config.targets[earlier], target, earlier, index)


def _pair_problems(first: TargetConfig, second: TargetConfig, earlier: int, index: int) -> Iterator[Problem]:
    if first.name == second.name:
        yield Problem(
            f"targets[{index}].name", f"is {second.name!r}, as targets[{earlier}].name is: allowed is each name once"
        )
    if normal_endpoint(first.endpoint_url) == normal_endpoint(second.endpoint_url):
        one, other = first.place, second.place
        relation = "at" if one == other else "inside" if one.holds(other) else "around" if other.holds(one) else None
        if relation:
            text = f"is {second.url!r}, which lies {relation} targets[{earlier}].url ({first.url!r})"
            yield Problem(f"targets[{index}].url", f"{text}: allowed are places apart")
    if first.domain == second.domain and not (first.fragments and second.fragments):
        witness = earlier if not first.fragments else index
        text = f"is {second.domain!r}, which is not the domain of this witness alone: a witness counts only in a domain of its own"
        yield Problem(f"targets[{witness}].domain", text)


def _fit_problems(config: StoreConfig) -> Iterator[Problem]:
    """What is wrong between code, targets and budget, each of them sound by itself."""
    code, domains = config.code, len(config.fragment_domains)
    if domains >= 2 and code.parity >= 1 and (fullest := ceil_div(code.fragments, domains)) > code.parity:
        # ceil((k + m) / D) <= m holds from m = ceil(k / (D - 1)) on, and from D = ceil((k + m) / m) on.
        enough_parity, enough_domains = ceil_div(code.data, domains - 1), ceil_div(code.fragments, code.parity)
        yield Problem(
            "code.parity",
            f"is {code.parity}, but with {code.data} + {code.parity} fragments over {domains} domains one domain holds {fullest}, "
            f"so that none could be lost: allowed is a parity of {enough_parity} or more, or {enough_domains} domains or more",
        )
    elif config.write.min_tolerance > (f := _fragment_tolerance(code.data, code.parity, domains)):
        text = f"is {config.write.min_tolerance}, but this code over {domains} domains survives the loss of {f}"
        yield Problem("write.min_tolerance", f"{text}: allowed are 0 to {f}")
    fragment = ceil_div(config.stripe_size, code.data)
    if (least := code.fragments * fragment) > config.transfer.memory_budget:
        yield Problem(
            "transfer.memory_budget",
            f"is {exact_size(config.transfer.memory_budget)}, but one stripe takes {code.fragments} fragments of "
            f"{exact_size(fragment)}: allowed is {exact_size(least)} or more, or a smaller code.stripe_size",
        )


# What is promised


def _fragment_tolerance(data: int, parity: int, domains: int) -> int:
    """f under the most even placement, which is the one that ``transfer.placement`` makes."""
    share, rest = divmod(data + parity, domains)
    # Among the fullest r domains, `rest` hold one fragment more than the others.
    return max(r for r in range(domains + 1) if r * share + min(r, rest) <= parity)


def _advice(config: StoreConfig, f: int, c: int) -> Iterator[str]:
    domains, parity = len(config.fragment_domains), config.code.parity
    yield "the loss of one failure domain is not survived (g = 0)"
    if domains == 1:
        yield "all fragments are in one domain: add targets in two other domains, and parity for the loss of one"
    elif f == 0:
        yield f"code.parity is 0: set it to {ceil_div(config.code.data, domains - 1)} or more"
    if c == 0 and domains > 1:
        yield (
            "with two domains neither can go on without the other: add a witness in a third one, "
            "for instance a small bucket with `fragments = false`"
        )
    if domains == 1 and parity == 0:
        yield "and without parity the loss of a single object loses a checkpoint"


def _shared_buckets(config: StoreConfig) -> Iterator[str]:
    holders: dict[tuple[str, str, str], list[TargetConfig]] = {}
    for target in config.targets:
        if target.place.root:
            key = (normal_endpoint(target.endpoint_url), target.place.scheme, target.place.root)
            holders.setdefault(key, []).append(target)
    for targets in holders.values():
        if len({target.domain for target in targets}) > 1:
            names = ", ".join(target.name for target in targets)
            yield f"{names} are called separate domains but share the bucket {_bucket(targets[0].place)}, which fails as one"
