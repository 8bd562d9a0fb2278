"""A real Kubernetes for tests, on one Linux machine, from a Go module and Debian's packages.

`layout` says where everything lies, `needs` what the machine must have, `building` makes the programs, `machines` are
the cluster's hosts (namespaces of this one), `parts` what runs on them, `running` starts and ends it all. `python
tests/cluster` and the tests beside it call it.
"""
