"""What users test their pipelines with, and what Penstock itself is tested with."""

from __future__ import annotations

from penstock.runners.simulated import Simulated

__all__ = ["Simulated"]
