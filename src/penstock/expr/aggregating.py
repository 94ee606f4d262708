"""The aggregates of an expression: `col("price").sum()`. Each method builds a description and computes nothing.

All take `where=`, a condition: rows for which it is not true do not count. Nulls do not count either, unless it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.expr.aggregates import Aggregate
from penstock.expr.evaluate import node_of
from penstock.expr.nodes import Node

__all__ = ["Aggregating"]


class Aggregating:
    """What has a node and can be aggregated: the base of `Expr`."""

    __slots__ = ()
    node: Node

    def sum(self, *, where: Any = None) -> Aggregate:
        return _aggregate("sum", self, where)

    def min(self, *, where: Any = None) -> Aggregate:
        return _aggregate("min", self, where)

    def max(self, *, where: Any = None) -> Aggregate:
        return _aggregate("max", self, where)

    def mean(self, *, where: Any = None) -> Aggregate:
        return _aggregate("mean", self, where)

    def count(self, *, where: Any = None) -> Aggregate:
        """The number of values that are not null."""
        return _aggregate("count", self, where)

    def variance(self, *, ddof: int = 1, where: Any = None) -> Aggregate:
        """The variance of a sample, or with `ddof=0` of all there is; null below two values (one with `ddof=0`)."""
        return _aggregate("variance", self, where, _ddof(ddof))

    def stddev(self, *, ddof: int = 1, where: Any = None) -> Aggregate:
        """The square root of the variance."""
        return _aggregate("stddev", self, where, _ddof(ddof))

    def first(self, *, ignore_nulls: bool = False, where: Any = None) -> Aggregate:
        """The value with the least event time, or without event time the one that came first; it may be null.

        Of equal times it is the one that came first.
        """
        return _aggregate("first", self, where, bool(ignore_nulls))

    def last(self, *, ignore_nulls: bool = False, where: Any = None) -> Aggregate:
        """The value with the greatest event time, or without event time the one that came last; it may be null.

        Of equal times it is the one that came last.
        """
        return _aggregate("last", self, where, bool(ignore_nulls))

    def collect(self, *, where: Any = None) -> Aggregate:
        """All values as a list, in the order they came. It grows with the rows: keep it for groups that stay small."""
        return _aggregate("collect", self, where)

    def top_k(self, k: int, *, where: Any = None) -> Aggregate:
        """The k greatest values as a list, the greatest first; NaN is greater than any number."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise PlanError(f"top_k needs how many, at least 1, and found {k!r}", fix=Fix("aggregate.top_k", "Write: .top_k(3)"))
        return _aggregate("top_k", self, where, k)

    def count_distinct(self, *, approx: bool = False, where: Any = None) -> Aggregate:
        """The number of different values. Exactly, keeping each of them; or with `approx=True` to about 1.6 %, in 4 KB."""
        return _aggregate("count_distinct", self, where, bool(approx))

    def quantile(self, q: float | Sequence[float], *, approx: bool = True, where: Any = None) -> Aggregate:
        """The value below or at which a share `q` of the values lies; a list of shares gives a list.

        From a sketch: the rank is off by 1.33 % at most (99 times in 100), exact up to 200 values, and beyond that not the
        same in every run. `approx=False` is exact, and keeps all values. NaN does not count.
        """
        several = not isinstance(q, int | float)
        shares = tuple(q) if isinstance(q, Sequence) else (q,)
        if isinstance(q, str) or not shares or not all(_is_share(share) for share in shares):
            raise PlanError(
                f"a quantile is a number from 0 to 1, or a list of them, and found {q!r}",
                fix=Fix("aggregate.quantile", "Write: .quantile(0.99), or .quantile([0.5, 0.99])"),
            )
        return _aggregate("quantile", self, where, tuple(map(float, shares)), several, bool(approx))


def _aggregate(kind: str, of: Aggregating, where: Any, *options: Any) -> Aggregate:
    return Aggregate(kind, of.node, None if where is None else node_of(where), options=options)


def _ddof(ddof: int) -> int:
    if ddof not in (0, 1) or isinstance(ddof, bool):
        raise PlanError(
            f"ddof is 1 (the variance of a sample) or 0 (of all there is), and found {ddof!r}",
            fix=Fix("aggregate.ddof", "Write: ddof=1, or ddof=0"),
        )
    return ddof


def _is_share(share: Any) -> bool:
    return isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
