"""Translation between jobs and Kubernetes objects. Everything that speaks to the pod API is in here.

objects.py   pure: a pod built by KubernetesPodOperator becomes a gang of pods, a service and a secret
policies.py  pure: what guards a launch (network policy, disruption budget), and who owns whom
claims.py    data on persistent volumes
clients.py   the one client of the cluster, from Airflow's connection
gang.py      create, observe and delete a gang through the synchronous client (workers)
watch.py     one watch shared by all triggers of a triggerer
kubeconfig.py  which context of a kubeconfig is meant
preflight.py   whether a cluster can run jobs, and what to do where it cannot
verbs.py       the rights that the platform needs
flow.py      how quickly logs are read
logs.py      follow a container's log with nanosecond timestamps (triggerer)
secrets.py   named secrets of a tenant
"""
