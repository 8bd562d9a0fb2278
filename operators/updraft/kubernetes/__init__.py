"""Translate between jobs and Kubernetes objects. Only this package makes requests to the pod API.

objects.py       pure: turn a pod that KubernetesPodOperator built into a gang of pods, a service and a secret
launch.py        pure: make all objects of a launch from one value
policies.py      pure: what protects a launch (network policy, disruption budget), and which object owns which
claims.py        data on persistent volumes
clients.py       the client of the cluster, from Airflow's connection
gang.py          create, observe and delete a gang with the synchronous client (workers)
watch.py         one watch shared by all triggers of a triggerer
kubeconfig.py    choose the context of a kubeconfig
preflight.py     check whether a cluster can run jobs, and say what to do if it cannot
rbac.py          the rights that the platform needs
token_bucket.py  limit how fast logs are read
logs.py          follow a container's log with nanosecond timestamps (triggerer)
secrets.py       a tenant's named secrets
"""
