"""Prices of machines: a CSV file in the form of SkyPilot's catalogue.

The columns used are InstanceType, Region, Price and SpotPrice (USD per hour); others, such as
AvailabilityZone, are ignored. If a type and region have several rows, the cheapest counts.
"""

from __future__ import annotations

import csv
from pathlib import Path

from regrow.infra.clusters.description import Market
from regrow.tasks.errors import UserError

_COLUMNS = ("InstanceType", "Region", "Price", "SpotPrice")


class Prices:
    """Prices by type, region and market. `file` None: none. Raises UserError for a bad file."""

    def __init__(self, file: Path | None) -> None:
        self._known: dict[tuple[str, str, Market], float] = {}
        if file is None:
            return
        try:
            with file.open(newline="", encoding="utf-8") as lines:
                rows = csv.DictReader(lines)
                if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
                    raise UserError(
                        f"{file}: has no column {missing[0]}; its columns are to be"
                        f" {','.join(_COLUMNS)}"
                    )
                for row in rows:
                    self._take(row, f"{file}:{rows.line_num}")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: the prices cannot be read: {error}") from error

    def of(self, instance: str, region: str, market: Market) -> float | None:
        """Return USD per hour; None if unknown."""
        return self._known.get((instance, region, market))

    def _take(self, row: dict[str, str], where: str) -> None:
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
