"""A plan as two tables of comma-separated values: its ops, and its transfers."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dlplacer.core.plan import Plan

OP_COLUMNS = ("op", "kind", "module", "phase", "device", "start_s", "end_s", "time_s", "output_bytes")
TRANSFER_COLUMNS = ("tensor", "source", "from", "target", "bytes", "start_s", "end_s", "time_s", "route")


def write_csv_tables(path: Path, plan: Plan) -> tuple[Path, Path]:
    """Write the ops to a file and the transfers beside it (``ops.csv`` and ``ops-transfers.csv``); returns both."""
    from dlplacer.files import write_text

    beside = path.with_name(f"{path.stem}-transfers{path.suffix}")
    write_text(path, _table(OP_COLUMNS, _ops(plan)))
    write_text(beside, _table(TRANSFER_COLUMNS, _transfers(plan)))
    return path, beside


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _ops(plan: Plan) -> Iterator[Sequence[object]]:
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        op = plan.graph.op(entry.op)
        times = entry.start_s, entry.end_s, entry.end_s - entry.start_s
        yield op.id, op.kind, op.module or "", op.phase or "", entry.device, *times, op.output_bytes


def _transfers(plan: Plan) -> Iterator[Sequence[object]]:
    for sent in sorted(plan.transfers, key=lambda sent: (sent.start_s, sent.end_s)):
        nodes = [sent.segments[0].route[0][0], *(end for segment in sent.segments for _, end in segment.route)]
        times = sent.start_s, sent.end_s, sent.end_s - sent.start_s
        source = plan.placement[sent.source]
        yield sent.tensor, sent.source, source, sent.target, sent.bytes, *times, " > ".join(nodes)
