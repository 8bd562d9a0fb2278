"""Make the launcher one file that a pod's Python runs: the package `launcher` as a Python zip application."""

from __future__ import annotations

import io
from pathlib import Path

# Python 3.7 and older cannot read the package; this file it can.
_START = """\
import sys
if sys.version_info < (3, 8):
    sys.stderr.write(
        "updraft: launcher: the image has no Python 3.8 or newer, which resources.processes_per_learner and "
        "resources.mpi need; use an image that has, or leave these fields out and start the processes in the "
        "command\\n"
    )
    sys.exit(127)
from launcher.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def launcher_file() -> bytes:
    """Return the content of the file, which imports nothing but the standard library."""
    import zipfile  # only pods with a launcher need it

    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py"), _START)
        for source in sorted(Path(__file__).with_name("launcher").glob("*.py")):
            archive.writestr(zipfile.ZipInfo(f"launcher/{source.name}"), source.read_bytes())
    return made.getvalue()
