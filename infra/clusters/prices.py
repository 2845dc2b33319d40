"""Prices of machines: a list in the cluster file, or a CSV file in the form of SkyPilot's
catalogue.

The columns used are InstanceType, Region, Price and SpotPrice (USD per hour); others, such as
AvailabilityZone, are ignored. If a type and region have several rows, the cheapest counts.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from regrow.infra.clusters.description import Market, Price, WithPrices
from regrow.infra.machine.given_files import checked
from regrow.tasks.errors import UserError

_COLUMNS = ("InstanceType", "Region", "Price", "SpotPrice")
_MOST_BYTES = 256 << 20
"""Most bytes of a file; SkyPilot's catalogue of AWS has 10 MB."""


class Prices:
    """Prices by type, region and market."""

    def __init__(self, given: Path | Sequence[Price] | None) -> None:
        """Take a list, whose prices hold in every region, or read a file; None: there are none.
        Raises UserError for a bad file.
        """
        self._known: dict[tuple[str, str, Market], float] = {}
        if isinstance(given, Path):
            self._read(given)
            return
        for one in given or ():
            if one.on_demand is not None:
                self._known[one.type, "", "on-demand"] = one.on_demand
            if one.spot is not None:
                self._known[one.type, "", "spot"] = one.spot

    @classmethod
    def of_cluster(cls, cluster: WithPrices) -> Prices:
        """Return the prices that a cluster file names. Raises UserError for a bad file."""
        given = cluster.prices
        return cls(Path(given) if isinstance(given, str) else given)

    def _read(self, file: Path) -> None:
        try:
            with checked(file, _MOST_BYTES).open(newline="", encoding="utf-8") as lines:
                rows = csv.DictReader(lines)
                if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
                    raise UserError(
                        f"{file}: has no column {missing[0]}; its columns are to be"
                        f" {','.join(_COLUMNS)}"
                    )
                for row in rows:
                    self._add(row, f"{file}:{rows.line_num}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file}: the prices cannot be read: {error}") from error

    def of(self, instance: str, region: str, market: Market) -> float | None:
        """Return the price per hour; None if unknown."""
        everywhere = self._known.get((instance, "", market))
        return self._known.get((instance, region, market), everywhere)

    def _add(self, row: dict[str, str], where: str) -> None:
        markets: tuple[tuple[Market, str], ...] = (("on-demand", "Price"), ("spot", "SpotPrice"))
        for market, column in markets:
            if not (text := (row[column] or "").strip()):
                continue  # not offered in this market
            try:
                price = float(text)
            except ValueError:
                raise UserError(
                    f"{where}: {column}: {text!r} is not a number; write USD an hour"
                ) from None
            key = row["InstanceType"], row["Region"], market
            self._known[key] = min(price, self._known.get(key, price))
