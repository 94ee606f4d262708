"""Memory that a worker keeps for its next batch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from penstock.runners.memory import keep_memory
{kept}
def work():
    return [bytearray({size}) for _ in range(4)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about the GNU C library")
@pytest.mark.parametrize("size", [1 << 20, 40 << 20])
def test_arrays_made_again_and_again_cost_page_faults_only_once(size: int) -> None:
    faults = []
    for kept in ("", "assert keep_memory()"):
        code = FAULTS.format(kept=kept, size=size)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        faults.append(int(ran.stdout))
    usual, fewer = faults
    assert fewer * 10 < usual
