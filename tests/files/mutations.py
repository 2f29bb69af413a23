"""Files that were right once: bytes changed, moved and lost, and values of JSON replaced by junk."""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

_BYTES = [
    b"{",
    b"[",
    b"]",
    b"}",
    b'"',
    b",",
    b"1e999",
    b"NaN",
    b"-",
    b"9" * 5000,
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\x00",
]
_BYTES += [b"<", b">", b"&", b"[" * 3000, b'{"a":' * 3000, b"\n", b"0", b"1.2.3"]
_JUNK: list[Any] = [None, True, -1, 0, 1.5, 1e308, 5e-324, 2**63, 10**30, 10**400, "", "a", "\x00", "5 GB", "1e400 GB"]
_JUNK += ["１２", "²", "NaN", "x" * 3000, [], [1], [[]], {}, {"id": "a"}, [None], {"": ""}]


def mutated(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """So many mutations of a file; every second one is of its values, if it is JSON."""
    draw = Random(seed)
    value = json.loads(content) if content.startswith(b"{") else None
    for number in range(count):
        if value is not None and number % 2:
            yield json.dumps(_of_value(value, draw)).encode()
        else:
            yield _of_bytes(content, draw)


def _of_bytes(content: bytes, draw: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        end = place + draw.randint(1, 50)
        chance = draw.random()
        if chance < 0.4:
            changed[place : place + 1] = bytes([draw.randrange(256)])
        elif chance < 0.55:
            changed[place:place] = draw.choice(_BYTES)
        elif chance < 0.75:
            del changed[place:end]
        elif chance < 0.9:
            target = draw.randrange(len(changed) + 1)
            changed[target:target] = changed[place:end]
        else:
            del changed[place:]
    return bytes(changed)


def _of_value(value: Any, draw: Random) -> Any:
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        places = _places(value)
        if not places:
            break
        (container, key), (other, other_key) = draw.choice(places), draw.choice(places)
        chance = draw.random()
        if chance < 0.5:
            container[key] = draw.choice(_JUNK)
        elif chance < 0.65:
            container[key] = copy.deepcopy(other[other_key])
        elif chance < 0.8 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif chance < 0.9 and isinstance(container, dict):
            container[draw.choice(("zz", "id", "", "time_s"))] = draw.choice(_JUNK)
        else:
            del container[key]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [value]
    while waiting:
        holder = waiting.pop()
        entries = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, entry in entries:
            found.append((holder, key))
            waiting.append(entry)
    return found
