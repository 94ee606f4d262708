"""Memory that a worker keeps for its next batch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, numpy as np
from penstock.runners.memory import keep_memory
{kept}
def work():
    return [np.ones(1 << 20, np.uint8) for _ in range(8)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about the GNU C library")
def test_arrays_made_again_and_again_cost_page_faults_only_once() -> None:
    faults = []
    for kept in ("", "assert keep_memory()"):
        code = FAULTS.format(kept=kept)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        faults.append(int(ran.stdout))
    usual, fewer = faults
    assert fewer * 10 < usual
