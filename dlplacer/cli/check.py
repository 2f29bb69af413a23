"""``dlplacer check``."""

import argparse
import json
from pathlib import Path

from dlplacer.cli.output.tables import stated
from dlplacer.core.errors import CheckError

HELP = "Check a plan against every rule of the problem."
EXAMPLES = (("check plan.json", "exit code 5 if it breaks a rule"),)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Print every violation; exit code 5 if there is one."""
    from dlplacer.check import violations
    from dlplacer.files.load import load_plan

    plan = load_plan(arguments.plan)
    found = violations(plan)
    if arguments.json:
        listed = [{"rule": violation.rule, "message": violation.message} for violation in found]
        print(json.dumps({"valid": not found, "violations": listed}))
        return CheckError.exit_code if found else 0
    if found:
        raise CheckError([str(violation) for violation in found])
    print(f"{arguments.plan}: {len(plan.ops)} ops and {len(plan.transfers)} transfers keep every rule")
    print(f"as the file states, not proved again: {stated(plan)}")
    return 0
