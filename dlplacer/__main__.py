"""The entry of ``python -m dlplacer`` and of the script ``dlplacer``."""

from dlplacer.cli.interruption import end_on_interrupt, end_with_launcher


def main() -> int:
    """Run the command that the arguments name; returns its exit code."""
    end_on_interrupt()
    end_with_launcher()
    from dlplacer.cli.main import main as run_command

    return run_command()


if __name__ == "__main__":
    raise SystemExit(main())
