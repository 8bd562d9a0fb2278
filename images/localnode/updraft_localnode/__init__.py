"""The local node: the part of the Kubernetes pod API that Updraft uses, for one machine without a cluster.

Started as `python -m updraft_localnode` (by `updraft.stack`). It runs containers as process groups of the host, counts
CPUs, memory and declared GPUs, and can misbehave on request. It isolates nothing between tenants.

Layers, each importing only those to its right:
`__main__` > `node` > `server` > `faultlab` > `nodes`, `runtime` > `worker` > `containers` > `podreport` > `kubelet` >
`scheduler`, `lifecycle`, `partition` > `processes`, `volumes`, `environment` > `store`, `events`, `validation`,
`affinity`, `selectors`, `translate`, `resources`, `errors`. `leftovers` is a program of its own, above `processes`.
"""
