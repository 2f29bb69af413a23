"""A plan as two tables of comma-separated values: its ops, and its transfers."""

from pathlib import Path

from dlplacer.core.plan import Plan


def write_csv_tables(path: Path, plan: Plan) -> tuple[Path, Path]:
    """Write the ops to a file and the transfers beside it (``ops.csv`` and ``ops-transfers.csv``); returns both.

    Columns are those of `Plan.to_frame` and `Plan.transfers_frame`.
    """
    from dlplacer.files import write_text

    beside = path.with_name(f"{path.stem}-transfers{path.suffix}")
    write_text(path, plan.to_frame().to_csv(index=False))
    write_text(beside, plan.transfers_frame().to_csv(index=False))
    return path, beside
