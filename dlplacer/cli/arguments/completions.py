"""What a shell completes behind each argument: files, or the names of what ships."""

import argparse
from collections.abc import Iterator

_SHIPPED = {"TOPOLOGY": "topologies", "T": "topologies", "MODEL|GRAPH": "graphs"}
"""Metavar of an argument → folder whose names it takes beside files."""

_METHODS = "methods"
_FILES = frozenset({"PLAN", "GRAPH", "F", "FILE", "DIR", "MODEL", "GRAPH|PLAN", "EPOCHS"})
_BASH = '_dlplacer_{folder}() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n'
_ZSH = "_dlplacer_{folder}() {{ _alternative 'names:shipped name:({names})' 'files:file:_files'; }}\n"


def completed(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser."""
    import shtab

    from dlplacer.files.locate import shipped_names

    for action in _actions(parser):
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        names = _METHODS if action.dest == "method" else _SHIPPED.get(metavar)
        if names is not None:
            function = f"_dlplacer_{names}"
            action.complete = {"bash": function, "zsh": function, "tcsh": "f"}  # type: ignore[attr-defined]
        elif metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    lists = {folder: " ".join(shipped_names(folder)) for folder in dict.fromkeys(_SHIPPED.values())}
    lists[_METHODS] = " ".join(_method_names())
    written = {
        kind: "".join(text.format(folder=folder, names=names) for folder, names in lists.items())
        for kind, text in (("bash", _BASH), ("zsh", _ZSH))
    }
    return str(shtab.complete(parser, shell, preamble=written))  # type: ignore[arg-type]


def _method_names() -> list[str]:
    from dlplacer.solvers.methods import METHODS

    return list(METHODS)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
