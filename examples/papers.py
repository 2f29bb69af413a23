"""All numbers of the five papers beside those that dlplacer computes: a page for each, and one that counts them.

Run it: ``python examples/papers.py --output docs`` (some minutes; ``--short`` leaves out what is solved or
trained).
"""

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import paper_000_htc
import paper_001_easgd
import paper_002_ibatch
import paper_003_dlplacer
import paper_004_terngrad
from _paper_table import Page

import dlplacer as dp

_INTRODUCTION = """# The papers, number by number

These pages compare the numbers in the texts of five papers with the numbers that dlplacer computes. Every number has
its inputs, which are stated in the text, derived from it, or assumed. `make papers` writes these pages. The verdicts
are:

- *agrees*: our number rounds to the text's number, or lies within the error that the text allows.
- *differs*: our number does not agree; the row has a note.
- *follows*: the text has no number; ours follows from the inputs.
- *circle*: the inputs include the text's number, a number solved from it, or a number chosen to fit it. So the row is
  no comparison. The code marks inputs that equal the text's number, even by chance; fitted inputs are declared.

| paper | rows | agree | differ | follow | circles | rest on an assumption |
| --- | --- | --- | --- | --- | --- | --- |
"""


def pages(short: bool) -> dict[str, Page]:
    """Name of a file → page."""
    found = {
        "paper_000": paper_000_htc.PAGE,
        "paper_001": paper_001_easgd.PAGE,
        "paper_002": paper_002_ibatch.PAGE,
        "paper_003": replace(paper_003_dlplacer.PAGE, title="Pal et al. 2019: DLPlacer"),
        "paper_004": paper_004_terngrad.PAGE,
    }
    if not short:
        import paper_003_figures
        import paper_004_digits

        placed = paper_003_figures.page()
        found["paper_003"] = replace(found["paper_003"], missing=found["paper_003"].missing + placed.missing)
        computed = {
            "paper_000": paper_000_htc.planned(),
            "paper_002": paper_002_ibatch.planned(),
            "paper_003": placed.rows,
            "paper_004": paper_004_digits.rows(),
        }
        found |= {name: replace(found[name], rows=found[name].rows + rows) for name, rows in computed.items()}
    return found


def overview(found: dict[str, Page]) -> str:
    """The page that counts."""
    lines = []
    for name, page in found.items():
        counts = [len(page.rows), *(page.count(kind) for kind in ("agrees", "differs", "follows", "circle"))]
        resting = sum(row.basis == "assumed" for row in page.rows)
        lines.append("| " + " | ".join([f"[{page.title}](papers/{name}.md)", *map(str, counts), str(resting)]) + " |")
    tree = "\n".join(["", "```{toctree}", ":hidden:", "", *(f"papers/{name}" for name in found), "```", ""])
    return _INTRODUCTION + "\n".join(lines) + "\n" + tree


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder of papers.md and papers/ (demo)")
    parser.add_argument("--short", action="store_true", help="without the rows that are solved or trained, minutes")
    arguments = parser.parse_args()
    # Types of devices with other rates are not in the table, on purpose.
    warnings.simplefilter("ignore", dp.DlplacerWarning)
    found = pages(arguments.short)
    folder = arguments.output / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in found.items():
        (folder / f"{name}.md").write_text(page.markdown(), encoding="utf-8")
        print(f"{page.title}: {page.summary()}")
    (arguments.output / "papers.md").write_text(overview(found), encoding="utf-8")


if __name__ == "__main__":
    main()
