"""The settings about the network between GPUs."""

from __future__ import annotations

import pytest

from updraft.fabric import read_labels, read_nccl, read_rdma


def test_variables_of_nccl_may_hold_commas() -> None:
    text = "NCCL_IB_HCA=mlx5_0,mlx5_1  NCCL_SOCKET_IFNAME==eth0"
    assert read_nccl(text) == {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert read_nccl("") == {}


@pytest.mark.parametrize("text", ["LD_PRELOAD=/x.so", "NCCL_DEBUG", "nccl_debug=INFO", "NCCL_=1", "=1"])
def test_other_variables_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no variable of NCCL"):
        read_nccl(text)


def test_a_device_for_rdma_has_a_number() -> None:
    assert read_rdma("rdma/hca_shared_devices_a=2") == {"rdma/hca_shared_devices_a": 2}
    assert read_rdma("rdma/hca") == {"rdma/hca": 1}
    assert read_rdma(" ") == {}


@pytest.mark.parametrize("text", ["hca=1", "rdma/hca=0", "rdma/hca=-1", "rdma/hca=one", "rdma/=1"])
def test_what_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no resource and number"):
        read_rdma(text)


def test_labels_of_nodes() -> None:
    assert read_labels("example.org/rack, topology.kubernetes.io/zone") == (
        "example.org/rack",
        "topology.kubernetes.io/zone",
    )
    with pytest.raises(ValueError, match="is no label of a node"):
        read_labels("rack=a")
