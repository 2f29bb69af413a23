"""Files that have no end, show as what they are not, or are written by several processes of which some are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dlplacer.core.errors import InputError
from dlplacer.files.formats import read_graph
from dlplacer.files.load import load_graph, load_plan, load_topology
from dlplacer.files.text import read_json, write_json

TINY = {"format": "dlplacer.graph/1", "nodes": [{"id": "a", "kind": "aten.mm", "time_s": 1.0}], "edges": []}


@pytest.mark.parametrize("load", [load_graph, load_plan, load_topology])
def test_a_device_without_an_end_is_not_read(load) -> None:
    with pytest.raises(InputError, match="cannot read /dev/zero: it is not a file; give a regular file or a pipe"):
        load("/dev/zero")


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(json.dumps(TINY)))
    writer.start()
    assert [op.id for op in read_graph(path).ops] == ["a"]
    writer.join()


WRITE = """
import sys
from dlplacer.files.text import write_json
mark, size = sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while True:
    write_json(sys.argv[1], {"mark": mark, "nodes": [{"id": mark}] * size})
"""


def writer(path: Path, mark: str) -> "subprocess.Popen[str]":
    """A process that writes a file again and again, once it has begun."""
    command = [sys.executable, "-c", WRITE, str(path), mark, "2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def whole(path: Path) -> str:
    """The mark of a file that one writer wrote from its beginning to its end."""
    value = read_json(path)
    assert [node["id"] for node in value["nodes"]] == [value["mark"]] * 2000
    return str(value["mark"])


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    chooser = random.Random(0)
    path = tmp_path / "plan.json"
    write_json(path, {"mark": "old", "nodes": [{"id": "old"}] * 2000})
    for number in range(4):
        process = writer(path, str(number))
        time.sleep(chooser.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert whole(path) in ("old", *map(str, range(number + 1)))
