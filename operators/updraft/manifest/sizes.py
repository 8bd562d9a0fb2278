"""Define sizes of resources by name, per learner: Updraft's own and those of FfDL. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Size:
    """The resources that a size gives each learner: CPU cores, memory with its unit, GPUs and their type."""

    cpus: float
    memory: str
    gpus: int = 0
    gpu_type: str | None = None

    def resources(self) -> dict[str, Any]:
        """Return the fields of `resources` that the size stands for."""
        return {"cpus": self.cpus, "memory": self.memory, "gpus": self.gpus, "gpu_type": self.gpu_type}


SizeName = Literal[
    "small", "medium", "large", "xlarge", "k80-1", "k80-2", "k80-4", "p100-1", "p100-2", "v100-1", "v100-2"
]
SIZES: dict[str, Size] = {
    "small": Size(1, "2GiB"),
    "medium": Size(2, "4GiB"),
    "large": Size(4, "8GiB"),
    "xlarge": Size(8, "16GiB"),
    "k80-1": Size(4, "24GB", 1, "nvidia-TeslaK80"),
    "k80-2": Size(8, "48GB", 2, "nvidia-TeslaK80"),
    "k80-4": Size(16, "96GB", 4, "nvidia-TeslaK80"),
    "p100-1": Size(8, "24GB", 1, "nvidia-TeslaP100"),
    "p100-2": Size(16, "48GB", 2, "nvidia-TeslaP100"),
    "v100-1": Size(26, "24GB", 1, "nvidia-TeslaV100"),
    "v100-2": Size(52, "48GB", 2, "nvidia-TeslaV100"),
}
