"""The native sidecar: everything that leaves a learner's pod, and the loopback MLflow endpoint for the program."""
