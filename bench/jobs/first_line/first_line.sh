# What bench/benchmarks/figures/pod_start.py waits for.
echo first line
