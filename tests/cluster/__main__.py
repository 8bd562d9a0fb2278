"""A real Kubernetes for tests, on this machine: `python tests/cluster up`, `down`, `status`, `load ARCHIVE`, `test`.

`make cluster`, `make cluster-down` and `make test-cluster` call it. docs/howto/cluster.md says what it is good for.
"""

from __future__ import annotations

import sys

from kubecluster.command import main

sys.exit(main(sys.argv[1:]))
