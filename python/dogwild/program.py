"""The program `dogwild`: where it is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from .errors import DogwildError


def program() -> str:
    """Path of the program ``dogwild``: ``$DOGWILD_BIN``, that of this installation, or on ``PATH``."""
    named = os.environ.get("DOGWILD_BIN")
    if named:
        return named
    for scheme in (None, f"{os.name}_user"):
        folder = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
        file = Path(folder) / "dogwild"
        if file.is_file():
            return str(file)
    found = shutil.which("dogwild")
    if found:
        return found
    raise DogwildError(
        "the program dogwild is not on PATH: install the wheel, or name it in DOGWILD_BIN"
    )


def main() -> None:
    """Becomes the program, with the arguments of this one."""
    try:
        path = program()
    except DogwildError as error:
        sys.exit(str(error))
    os.execv(path, [path, *sys.argv[1:]])
