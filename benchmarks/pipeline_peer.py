"""google-tunix beside us: its script runs in a virtual environment of its own.

BENCH_PEERS names a folder with `tunix/` (the virtual environment) and BENCH_PEER_SCRIPT the script; without
them the peer is looked for in .venv-peers/ and benchmarks/peers/. What is absent is said, never made up.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CANDIDATES = (ROOT / "benchmarks/peers/tunix_bench.py", ROOT.parent / "shared/peers/tunix_bench.py")
TIMEOUT_S = 420.0


def peer(arguments: Sequence[str]) -> list[Mapping[str, Any]] | str:
    """The results of the peer's script, or why there are none."""
    python = Path(os.environ.get("BENCH_PEERS", ROOT / ".venv-peers")) / "tunix" / "bin" / "python"
    given = os.environ.get("BENCH_PEER_SCRIPT")
    script = next((path for path in ([Path(given)] if given else CANDIDATES) if path.is_file()), None)
    if not python.is_file() or script is None:
        return f"absent: {python if not python.is_file() else 'tunix_bench.py'} is not there"
    command = [str(python), str(script), *arguments, "--out", str(ROOT / "bench-out" / "peer" / "tunix.jsonl")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"not measured: it took longer than {TIMEOUT_S:.0f} s"
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return found or f"not measured: it ended with {done.returncode}: {done.stderr.strip()[-300:]}"
