"""Placement: even over domains, cheap for data, rotating."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from objckpt.config import CodeConfig, StoreConfig, TargetConfig, promise
from objckpt.transfer.placement import Site, place, tolerance


def sites(domains: str, costs: dict[str, float] | None = None) -> list[Site]:
    return [
        Site(name=f"t{i}", domain=domain, read_cost=(costs or {}).get(domain, 1.0)) for i, domain in enumerate(domains)
    ]


@pytest.mark.parametrize("domains", ["a", "ab", "abc", "aabbc", "abcdef", "aaabbbcc"])
@pytest.mark.parametrize("fragments", [1, 2, 3, 6, 11, 14, 16])
def test_no_domain_and_no_target_of_a_domain_holds_more_than_its_even_share(domains: str, fragments: int) -> None:
    places = sites(domains)
    domain = {site.name: site.domain for site in places}
    for turn in range(7):
        placed = place(places, fragments=fragments, turn=turn)
        assert len(placed) == fragments
        per_domain = Counter(domain[name] for name in placed)
        assert max(per_domain.values()) == -(-fragments // len(set(domains)))
        for letter, count in per_domain.items():
            members = [site.name for site in places if site.domain == letter]
            assert max(Counter(n for n in placed if n in members).values()) == -(-count // len(members))


def test_data_fragments_take_the_cheap_targets() -> None:
    placed = place(sites("abc", {"a": 5.0, "b": 1.0, "c": 1.0}), fragments=3, turn=0)
    assert placed[2] == "t0"
    assert set(placed[:2]) == {"t1", "t2"}


def test_equals_take_turns() -> None:
    parity = Counter(place(sites("abc"), fragments=3, turn=turn)[2] for turn in range(30))
    assert parity == {"t0": 10, "t1": 10, "t2": 10}


@pytest.mark.parametrize(
    ("domains", "data", "expected"),
    [
        (["a", "b", "c"], 2, 1),
        (["a", "a", "b", "b", "c", "c"], 4, 1),
        (["a", "b"], 2, 0),
        (["a"], 2, -1),
        ([], 1, -1),
        (["a", "a", "a"], 1, 0),
        (list("abcdef"), 4, 2),
        (["a", "a", "a", "b", "c"], 2, 1),
    ],
)
def test_tolerance_is_the_number_of_domains_that_can_be_lost(domains: list[str], data: int, expected: int) -> None:
    assert tolerance(domains, data=data) == expected
    most = len(set(domains))
    survived = -1
    for lost in range(most + 1):
        if all(
            sum(d not in gone for d in domains) >= data for gone in itertools.combinations(sorted(set(domains)), lost)
        ):
            survived = lost
        else:
            break
    assert survived == expected


@pytest.mark.parametrize(
    ("domains", "data", "parity"), [("abc", 2, 1), ("abc", 4, 2), ("abcdef", 4, 2), ("aabbcc", 4, 2)]
)
def test_placement_achieves_what_the_configuration_promises(domains: str, data: int, parity: int) -> None:
    """E11: parity is worth what the fullest domain leaves of it."""
    config = StoreConfig(
        run="r",
        targets=tuple(TargetConfig(name=f"t{i}", url=f"memory://p{i}", domain=d) for i, d in enumerate(domains)),
        code=CodeConfig(data=data, parity=parity),
    )
    domain = {site.name: site.domain for site in sites(domains)}
    for turn in range(6):
        placed = place(sites(domains), fragments=data + parity, turn=turn)
        assert tolerance([domain[name] for name in placed], data=data) == promise(config).fragment_tolerance
