"""``dlplacer completion``."""

import argparse

from dlplacer.cli.arguments.completions import completed

HELP = "Print a script that completes commands, options, files and shipped names in a shell."
EXAMPLES = (
    ("completion bash > ~/.local/share/bash-completion/completions/dlplacer", "for bash, from the next shell on"),
    ("completion zsh > ~/.zsh/completions/_dlplacer", "for zsh, with that folder in fpath"),
    ("completion tcsh >> ~/.cshrc", "for tcsh"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell to complete in")


def execute(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from dlplacer.cli.main import build_parser

    print(completed(build_parser(), arguments.shell))
    return 0
