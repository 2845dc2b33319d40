"""The options that a sampler or a scheduler takes."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.options import build


class Base:
    def __init__(self, setting: str, *, count: int = 3, share: float = 0.5) -> None:
        self.setting, self.count, self.share = setting, count, share


class Narrower(Base):
    """Passes on what it does not know."""

    def __init__(
        self, setting: str, *, share: float = 0.25, more: bool = False, **options: Any
    ) -> None:
        super().__init__(setting, share=share, **options)
        self.more = more


class Between(Narrower):
    pass


class Closed(Base):
    """Has options of its own only."""

    def __init__(self, setting: str, *, more: bool = False) -> None:
        super().__init__(setting)
        self.more = more


@pytest.mark.parametrize("kind", [Narrower, Between])
def test_a_class_that_passes_options_on_takes_those_of_its_base(kind: type[Narrower]) -> None:
    made = build(kind, {"count": 7, "more": True}, key="search.narrower", setting="s")
    assert (made.setting, made.count, made.share, made.more) == ("s", 7, 0.25, True)
    with pytest.raises(SpecError, match=r"search\.narrower\.conut.*did you mean 'count'"):
        build(kind, {"conut": 7}, key="search.narrower", setting="s")
    with pytest.raises(
        SpecError, match=r"search\.narrower\.count.*not a whole number.*the default is 3"
    ):
        build(kind, {"count": "many"}, key="search.narrower", setting="s")


def test_its_own_default_counts_and_comes_in_the_bases_order() -> None:
    with pytest.raises(SpecError, match=r"known: count, share, more"):
        build(Narrower, {"zzz": 1}, key="search.narrower", setting="s")
    with pytest.raises(SpecError, match=r"the default is 0\.25"):
        build(Narrower, {"share": "half"}, key="search.narrower", setting="s")


def test_a_class_that_passes_nothing_on_does_not() -> None:
    with pytest.raises(SpecError, match=r"search\.closed\.count.*unknown option.*known: more"):
        build(Closed, {"count": 7}, key="search.closed", setting="s")
