"""The hardware of the TensorOpt paper's Figure 7: two machines, with different links."""

from __future__ import annotations

from dataclasses import replace

from tensoropt.profiling.hardware import Hardware, named


def with_links(name: str, level: str, speed: tuple[float, float], why: str) -> Hardware:
    """Return the paper's two machines with other links at one level: (latency in microseconds, bytes per second)."""
    usual = named("v100-2x8")
    latency_us, bytes_per_s = speed
    levels = tuple(
        replace(each, latency_us=latency_us, bytes_per_s=bytes_per_s) if each.name == level else each
        for each in usual.levels
    )
    provenance = {**usual.provenance, "levels": f"{usual.provenance['levels']}. But for {level}: {why}"}
    return replace(usual, name=name, levels=levels, provenance=provenance)


def between_machines() -> dict[str, Hardware]:
    """Figure 7 (b)."""
    usual = named("v100-2x8").levels[0]
    slow = "half of RDMA's bandwidth, as in the paper's section 5.1; 25 us assumed, as for messages through the kernel"
    fast = "four adapters per machine, four times RDMA's bandwidth, as in the paper's section 5.1"
    return {
        "no RDMA": with_links("v100-2x8-no-rdma", "machine", (25.0, usual.bytes_per_s / 2), slow),
        "RDMA": named("v100-2x8"),
        "4x RDMA": with_links("v100-2x8-4x-rdma", "machine", (usual.latency_us, 4 * usual.bytes_per_s), fast),
    }


def within_a_machine() -> dict[str, Hardware]:
    """Figure 7 (c)."""
    usual = named("v100-2x8").levels[1]
    why = "PCIe with a twentieth of NVLink's bandwidth, as the paper measured; 10 us assumed"
    return {"NVLink": named("v100-2x8"), "PCIe": with_links("v100-2x8-pcie", "device", (10.0, usual.bytes_per_s / 20), why)}
