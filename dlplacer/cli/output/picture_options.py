"""The options that ask for pictures, as `dlplacer.report.plot.pictures` lists them."""

import argparse
from pathlib import Path

from dlplacer.cli.output.output_files import output_file
from dlplacer.core.errors import InputError
from dlplacer.report.plot.pictures import pictures_of
from dlplacer.report.plot.style.formats import picture_format


def picture_file(text: str) -> Path:
    """As `output_file`, for a picture: the suffix must be one of its formats."""
    try:
        if text:
            picture_format(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return output_file(text)


def add_picture_options(parser: argparse.ArgumentParser, subject: str) -> None:
    """An option for every picture of what the command finds."""
    for picture in pictures_of(subject):
        parser.add_argument(f"--{picture.option}", metavar="F", type=picture_file, help=picture.help)


def save_pictures(arguments: argparse.Namespace, subject: str, shown: object) -> list[Path]:
    """Draw the pictures of a subject that the command line asks for; returns the files."""
    asked = [picture for picture in pictures_of(subject) if getattr(arguments, picture.option, None) is not None]
    for picture in asked:
        from dlplacer.report.plot import save_picture

        chosen = {name: getattr(arguments, name) for name in picture.settings}
        settings = {name: value for name, value in chosen.items() if value is not None}
        save_picture(getattr(arguments, picture.option), picture.plot, shown, **settings)
    return [getattr(arguments, picture.option) for picture in asked]
