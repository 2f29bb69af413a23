"""Sixty fits of layers over unequal devices: ten decoders on six machines, memory 1.02 to 2 times the need.

``python tests/benchmarks/fit_problems.py [--only NAME] [--json FILE]`` prints a row for each, then how many are proven
within ten seconds, the longest answer, and the geometric mean of each simple split ÷ the fit where that split fits.
"""

import argparse
import json
import math
import time
from collections import defaultdict
from dataclasses import replace

import dlplacer as dp
from dlplacer.core.errors import InfeasibleError
from dlplacer.frontend.configs import decoder_of_config
from dlplacer.planning.fit.decoder import Decoder, Serving
from dlplacer.planning.fit.fit import Fit, Question, fit

RESERVE = 2**29


def _dense(
    kind: str, hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int, **more: int
) -> dict:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        **more,
    }


SHAPES = {
    "llama-8b": (_dense("llama", 4096, 14336, 32, 32, 8, 128256), 16),
    "llama-70b": (_dense("llama", 8192, 28672, 80, 64, 8, 128256), 4.89),
    "mistral-small-24b": (_dense("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128), 8.5),
    "qwen2-72b": (_dense("qwen2", 8192, 29568, 80, 64, 8, 152064), 4.5),
    "qwen3-32b": (_dense("qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128), 6.5625),
    "gemma2-27b": (_dense("gemma2", 4608, 36864, 46, 32, 16, 256000, head_dim=128, sliding_window=4096), 8.5),
    "phi-4": (_dense("phi3", 5120, 17920, 40, 40, 10, 100352), 16),
    "gpt-neox-20b": (_dense("gpt_neox", 6144, 24576, 44, 64, 64, 50432), 16),
    "mixtral-8x7b": (_dense("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2), 4.5),
    "qwen3-30b-a3b": (
        _dense(
            *("qwen3_moe", 2048, 6144, 48, 32, 4, 151936),
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
        8.5,
    ),
}
MACHINES = {
    "2x RTX3090, RTX3060": {},
    "RTX4090, RTX4070TiSuper, RTX3060": {},
    "RTX4090, 64 GB DDR5-5600": {},
    "2x RTX3090, RTX3060, 64 GB DDR4-3200": {},
    "M4Max 36GB; M3Ultra 96GB; M1Ultra 64GB; M3Max 36GB": {"network": "10gbe"},
    "2x RTX3090; RTX4090, RTX3060": {"network": "1gbe"},
}
ROOM = (1.02, 1.1, 1.25, 1.5, 1.75, 2.0)


def problem(decoder: Decoder, machine: dp.Topology, room: float, serving: Serving) -> dp.Topology:
    """The machine with memory scaled to so many times what the decoder needs."""
    question = Question(decoder, machine, serving, RESERVE, "layers")
    needed = float(question.sizes(serving.context).sum())
    there = sum(device.memory_bytes or 0 for device in machine.devices)
    aside = RESERVE + question.working_bytes
    scaled = (
        replace(device, memory_bytes=int(aside + room * needed * (device.memory_bytes or 0) / there))
        for device in machine.devices
    )
    return replace(machine, devices=tuple(scaled))


def solved(decoder: Decoder, machine: dp.Topology, serving: Serving) -> tuple[Fit | None, float]:
    """The fit, or None if none exists, and the seconds it took."""
    began = time.monotonic()
    try:
        found = fit(decoder, machine, serving, reserve_bytes=RESERVE, time_limit_s=10)
    except InfeasibleError:
        found = None
    return found, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a name of a shape or machine")
    parser.add_argument("--objective", default="token")
    parser.add_argument("--json", help="file to write")
    given = parser.parse_args()
    rows, ratios = [], defaultdict(list)
    for number, (name, (config, bits)) in enumerate(SHAPES.items()):
        decoder = decoder_of_config(config, name, bits)
        for place, (words, more) in enumerate(MACHINES.items()):
            if given.only not in f"{name} {words}":
                continue
            room = ROOM[(number + place) % len(ROOM)]
            serving = Serving(8192, objective=given.objective)
            machine = problem(decoder, dp.new_topology(words, **more), room, serving)
            found, took_s = solved(decoder, machine, serving)
            if found is None:
                print(f"{name:18} {words:52} {room:4} infeasible, {took_s:.1f} s", flush=True)
                continue
            others = {one.name: one.value_s for one in found.alternatives if one.value_s is not None}
            for other, value_s in others.items():
                ratios[other].append(value_s / found.value_s)
            best = min(others.values(), default=math.inf) / found.value_s
            print(
                f"{name:18} {words:52} {room:4} {found.value_s * 1e3:9.2f} ms gap {found.gap:.1e} "
                f"best other {best:.3f}x {found.binds:9} {took_s:.1f} s",
                flush=True,
            )
            rows.append({"shape": name, "machine": words, "room": room, **found.to_dict(), "took_s": took_s})
    proven = sum(row["status"] == "optimal" for row in rows)
    print(f"{proven} of {len(rows)} proven; the longest answer took {max(row['took_s'] for row in rows):.1f} s")
    for other, found_ratios in ratios.items():
        mean = math.exp(sum(map(math.log, found_ratios)) / len(found_ratios))
        worse = sum(ratio < 1 - 1e-9 for ratio in found_ratios)
        print(f"{other:14} fits {len(found_ratios)} times, {mean:.3f}x as long; shorter {worse} times")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
