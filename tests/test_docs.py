"""The documentation: its examples print what they say, its commands parse, its links lead somewhere."""

import dataclasses
import doctest
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlplacer.cli.main import build_parser
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.plan import DeviceMemory, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link
from dlplacer.files.formats import GraphFile, PlanFile, ProblemFile, TopologyFile
from dlplacer.files.load import load_graph, load_plan, load_topology
from dlplacer.measure.run_report import RunReport
from dlplacer.measure.selftest import Check, Selftest
from dlplacer.planning.compare import compare
from dlplacer.planning.hybrid.epochs import EpochsFile, read_epochs
from dlplacer.planning.place import place

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

if not DOCS.is_dir():
    pytest.skip("the documentation is in the checkout only", allow_module_level=True)

PAGES = [
    path for path in sorted(DOCS.rglob("*.md")) if not {"_build", "generated", "gallery_pages"}.intersection(path.parts)
]
TEXTS = [*PAGES, ROOT / "README.md"]


def fences(path: Path, language: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the code blocks of a language."""
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, flags=re.S | re.M):
        indent = len(found[1])
        lines = [line[indent:] for line in found[2].splitlines()]
        yield text.count("\n", 0, found.start()) + 2, "\n".join(lines) + "\n"


def commands(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of everything that begins with ``dlplacer`` in a code block; a comment ends it."""
    for line, block in fences(path, "(?:text|console|sh|bash)?"):
        joined = re.sub(r"\\\n\s*", " ", block)
        for number, row in enumerate(joined.splitlines()):
            if row.startswith("dlplacer "):
                yield line + number, shlex.split(row, comments=True)[1:]


COMMANDS = [(path, line, words) for path in TEXTS for line, words in commands(path)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_examples_print_what_they_say(path: Path) -> None:
    namespace: dict[str, object] = {}
    runner = doctest.DocTestRunner(verbose=False)
    failed: list[str] = []
    for line, block in fences(path, "pycon"):
        test = doctest.DocTestParser().get_doctest(block, namespace, str(path), str(path), line - 1)
        runner.run(test, out=failed.append, clear_globs=False)
        namespace.update(test.globs)
    assert not failed, "".join(failed)


@pytest.mark.parametrize(("path", "line", "words"), COMMANDS, ids=[f"{path.name}-{line}" for path, line, _ in COMMANDS])
def test_commands_parse(path: Path, line: int, words: list[str]) -> None:
    code: object = 0
    try:
        build_parser().parse_args(words)
    except SystemExit as ended:
        code = ended.code
    assert not code, f"{path}:{line}: dlplacer {shlex.join(words)} is refused"


def test_the_commands_are_found() -> None:
    assert {path.name for path, _, _ in COMMANDS} >= {"README.md", "first_steps.md", "pipelines.md", "tight_memory.md"}
    assert len(COMMANDS) > 40


def test_files_shown_are_read(tmp_path: Path) -> None:
    shown = [block for path in TEXTS for _, block in fences(path, "json") if '"format"' in block]
    readers = {"graph": load_graph, "topology": load_topology, "plan": load_plan, "epochs": read_epochs}
    kinds = []
    for block in shown:
        kind = json.loads(block)["format"].split(".")[1].split("/")[0]
        path = tmp_path / f"{kind}.json"
        path.write_text(block, encoding="utf-8")
        assert readers[kind](str(path)) is not None
        kinds.append(kind)
    assert {"graph", "topology", "plan", "epochs"} == set(kinds)


def test_every_field_of_a_file_is_documented() -> None:
    text = (DOCS / "reference" / "formats.md").read_text(encoding="utf-8")
    models = (GraphFile, TopologyFile, PlanFile, ProblemFile, EpochsFile)
    records = (Op, Edge, TensorSpec, Device, Link, ScheduledOp, Transfer, TransferSegment, DeviceMemory)
    fields = {name for model in models for name in model.model_fields}
    fields |= {field.name for record in records for field in dataclasses.fields(record)}
    assert not sorted(name for name in fields if f"`{name}`" not in text)


def test_every_field_that_a_command_prints_is_documented() -> None:
    text = (DOCS / "reference" / "printed.md").read_text(encoding="utf-8")
    records = RunReport, Check
    graph, machine = load_graph("inception_v3-infer"), load_topology("dgx1-v100-2gpu")
    printed = {**place(graph, machine, method="list").to_dict(), **compare(graph, machine, methods=["list"]).to_dict()}
    names = {field.name for record in records for field in dataclasses.fields(record)}
    names |= {*printed, *printed["bounds"], *printed["methods"][0], *Selftest((), (), {}).to_dict()}
    assert not sorted(name for name in names if f"`{name}`" not in text)


def test_links_lead_to_files() -> None:
    for path in TEXTS:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path}: there is no {target}"


def test_every_page_is_reached() -> None:
    listed = {
        (path.parent / f"{entry}.md").resolve()
        for path in PAGES
        for _, block in fences(path, r"\{toctree\}")
        for entry in block.split()
        if not entry.startswith(":")
    }
    included = {
        (path.parent / name).resolve() for path in PAGES for name in re.findall(r"\{include\} (\S+)", path.read_text())
    }
    assert {path.resolve() for path in PAGES} - listed - included == {(DOCS / "index.md").resolve()}
