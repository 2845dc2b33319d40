"""Counts what was cut, for the summary at the end of the tests. No test lives here."""

from __future__ import annotations

from collections import Counter

crossed: dict[str, set[tuple[str, int, str]]] = {}
"""Transitions at which something died, by what died: (scenario, number, kind)."""
resumed: Counter[str] = Counter()
"""Runs from a durable state to the end, by scenario."""
catches: dict[str, dict[str, str]] = {}
"""What each breakage made each test say; empty for nothing."""


def cut(what: str, scenario: str, number: int, kind: str) -> None:
    """Something died at a transition."""
    crossed.setdefault(what, set()).add((scenario, number, kind))


def resumes(scenario: str) -> None:
    """A run continued from a durable state."""
    resumed[scenario] += 1


def counted() -> tuple[
    dict[str, set[tuple[str, int, str]]], dict[str, int], dict[str, dict[str, str]]
]:
    """All of it, as one process of several sends it to the one that prints the summary."""
    return crossed, dict(resumed), catches


def add(
    other: tuple[dict[str, set[tuple[str, int, str]]], dict[str, int], dict[str, dict[str, str]]],
) -> None:
    """What another process counted."""
    for what, transitions in other[0].items():
        crossed.setdefault(what, set()).update(transitions)
    resumed.update(other[1])
    catches.update(other[2])


def table() -> list[str]:
    """The summary's lines."""
    lines: list[str] = []
    if crossed:
        names = list(crossed)
        by_kind = {name: Counter(kind for _, _, kind in crossed[name]) for name in names}
        kinds = sorted(
            {kind for counts in by_kind.values() for kind in counts},
            key=lambda k: (k.split(" ", 1)[1], k),
        )
        lines.append("transitions at which something died, by kind")
        lines.append(f"{'':56}" + "".join(f"{name:>14}" for name in names))
        lines += [
            f"{kind:56}" + "".join(f"{by_kind[name][kind] or '':>14}" for name in names)
            for kind in kinds
        ]
        lines.append(f"{'all':56}" + "".join(f"{len(crossed[name]):>14}" for name in names))
        if resumed:
            lines.append(f"{sum(resumed.values())} runs resumed from different durable states")
    for breakage, tests in catches.items():
        lines.append(f"broken on purpose: {breakage}")
        lines += [f"    {test:44} {said or 'does not notice'}" for test, said in tests.items()]
    return lines
