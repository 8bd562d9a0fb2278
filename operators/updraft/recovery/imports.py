"""Say which line of the manifest adds a module that a program could not import. Pure."""

from __future__ import annotations

import re

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z_][A-Za-z0-9_]{0,99})")
# Distributions that are called otherwise than their module.
DISTRIBUTIONS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "jwt": "pyjwt",
    "pytorch_lightning": "pytorch-lightning",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


def line_to_add(line: str) -> str:
    """Return what to write into the manifest for a program's line about a missing module; empty for another line."""
    found = _MISSING.search(line)
    if found is None:
        return ""
    name = DISTRIBUTIONS.get(found[1], found[1].replace("_", "-"))
    return f"add to the manifest: environment: {{requirements: [{name}]}}, if it is no module of your own"
