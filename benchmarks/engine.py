"""The engine beside the machine's limits and beside peers: `make bench-engine`.

Prints one table and writes bench-out/engine.json. Runs are interleaved and figures are medians. Peers live in
virtual environments of their own, under BENCH_PEERS; one that is absent is said to be, and has no figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine_decode import NEW, PROMPT, Decoding, bandwidth, report, weight_bytes
from benchmarks.peers.process import Peer
from tunix_core.errors import UsageError
from tunix_core.models import fetched, open_policy, save_huggingface

MODEL = "smollm2-135m"
SLOTS = (1, 8, 32, 64)
ROUNDS = {1: 2, 8: 2, 32: 3, 64: 2}
HERE = Path(__file__).parent
PEERS = Path(os.environ.get("BENCH_PEERS") or ".venv-peers")
OUT = Path("bench-out/engine.json")
PEER_LIMIT_S = 400.0
WARM_PASSES = 5


async def decoding(folder: Path) -> list[dict[str, Any]]:
    """A row for each slot count: ours, the roofline, and transformers."""
    policy = open_policy(fetched(MODEL))
    save_huggingface(policy, folder)
    floor_s = weight_bytes(policy) / bandwidth()
    rows = []
    with Peer(PEERS / "torch", HERE / "peers/transformers_generate.py", str(folder), limit_s=PEER_LIMIT_S) as peer:
        for slots in SLOTS:
            said: list[dict[str, float]] = []
            found = await Decoding(policy, slots).measure(
                ROUNDS[slots], lambda slots=slots, said=said: said.extend(peer.ask(f"{slots} {PROMPT} {NEW}"))
            )
            row = report(found, slots, floor_s)
            best = min((median(form) for form in zip(*(s.values() for s in said), strict=True)), default=None)
            row["transformers_tokens_per_s"] = slots / best if best else None
            row["vs_transformers"] = best / found["sampled"] if best else None
            rows.append(row)
            print(decoding_line(row), flush=True)
    return rows


def decoding_line(row: dict[str, Any]) -> str:
    kinds = "".join(f"{row[f'{kind}tokens_per_s']:9.0f}" for kind in ("", "greedy_", "top_p_", "roofline_"))
    peer = f"{row['transformers_tokens_per_s']:13.0f}{row['vs_transformers']:7.2f}x" if row["vs_transformers"] else ""
    return f"{row['slots']:5d}{kinds}{row['roofline_share']:8.0%}{row['overhead_share']:9.0%}{peer}"


HEADING = "slots  sampled   greedy    top-p roofline   share overhead transformers  ratio"


def episodes() -> dict[str, Any]:
    """Three-turn episodes, ours and google-tunix's, cold and warm; seconds of a pass of 64."""
    ours, peer = [_ours()], {"warm": _google_tunix("warm", 1 + WARM_PASSES)}
    ours.append(_ours())
    peer["cold"] = _google_tunix("cold", 1)
    ours.append(_ours())
    warm, cold = peer["warm"], peer["cold"]
    return {
        "cold_s": median(run["cold_s"] for run in ours),
        "warm_s": median(seconds for run in ours for seconds in run["warm_s"]),
        "compile_s": median(run["compile_s"] for run in ours),
        "programs": ours[0]["programs"],
        "workers": ours[0]["workers"],
        "prefill_ratio": median(run["prefill_tokens"] / run["new_tokens"] for run in ours),
        "tunix_cold_s": cold["seconds"][0] if cold else None,
        "tunix_warm_s": median(warm["seconds"][1:]) if warm else None,
    }


def _ours() -> dict[str, Any]:
    """A fresh process without a compilation cache."""
    where = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-m", "benchmarks.engine_episodes", "--passes", str(WARM_PASSES)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=True, timeout=PEER_LIMIT_S)
    return json.loads(done.stdout.splitlines()[-1])


def _google_tunix(how: str, passes: int) -> dict[str, Any] | None:
    with Peer(PEERS / "tunix", HERE / "peers/google_tunix_rollout.py", how, str(passes), limit_s=PEER_LIMIT_S) as peer:
        return peer.first


def episodes_lines(found: dict[str, Any]) -> str:
    setting = f"{found['programs']:.0f} programs, {found['workers']} workers"
    lines = ["", f"64 three-turn episodes, a million weights; {setting}"]
    for how in ("cold", "warm"):
        own, other = found[f"{how}_s"], found[f"tunix_{how}_s"]
        beside = f", google-tunix {64 / other:.2f}: {other / own:.1f}x" if other else ""
        lines.append(f"  {how}: {own:.2f} s, {64 / own:.1f} episodes/s{beside}")
    lines.append(f"  prompt tokens computed / new: {found['prefill_ratio']:.2f}")
    return "\n".join(lines)


def main() -> None:
    print(HEADING)
    rows: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = asyncio.run(decoding(Path(folder)))
    except UsageError as error:  # the model isn't fetched
        print(f"({error})")
    played = episodes()
    print(episodes_lines(played))
    at_32 = next((row for row in rows if row["slots"] == 32), {})

    def beside(how: str) -> float | None:
        return played[f"tunix_{how}_s"] / played[f"{how}_s"] if played[f"tunix_{how}_s"] else None

    OUT.parent.mkdir(exist_ok=True)
    keys = {
        "roofline_share_32": at_32.get("roofline_share"),
        "overhead_share_32": at_32.get("overhead_share"),
        "vs_transformers_32": at_32.get("vs_transformers"),
        "vs_tunix_warm": beside("warm"),
        "vs_tunix_cold": beside("cold"),
        "prefill_ratio": played["prefill_ratio"],
    }
    OUT.write_text(json.dumps(keys | {"decoding": rows, "episodes": played}, indent=2) + "\n")
    print(f"\n{json.dumps(keys)}\nwritten to {OUT}")


if __name__ == "__main__":
    main()
