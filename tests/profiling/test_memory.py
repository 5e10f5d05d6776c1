"""Free memory under control groups of both versions, in synthetic file trees."""

import pytest

from tensoropt.profiling.available_memory import available_memory_bytes

GB = 10**9
NO_LIMIT = 9223372036854771712


def tree(root, cgroup, groups, available_kb=20_000_000):
    (root / "proc/self").mkdir(parents=True)
    meminfo = f"MemTotal: 32000000 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\nHuge: 0\n"
    (root / "proc/meminfo").write_text(meminfo)
    if cgroup is not None:
        (root / "proc/self/cgroup").write_text(cgroup)
    for folder, files in groups.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / folder / name).write_text(f"{content}\n")
    return root


def v1(limit, usage, inactive=0):
    stat = f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat}


def v2(limit, usage, inactive=0):
    return {"memory.max": limit, "memory.current": usage, "memory.stat": f"anon 5\ninactive_file {inactive}"}


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
MACHINE = 20_000_000 * 1024

CASES = {
    "no groups": (None, {}, MACHINE),
    "v1": ("4:memory:/a/b\n1:cpu:/\n", {f"{V1}/a/b": v1(4 * GB, GB)}, 3 * GB),
    "v1, files come back": ("4:memory:/a\n", {f"{V1}/a": v1(4 * GB, 3 * GB, GB)}, 2 * GB),
    "v1, another controller first": ("4:cpu,memory:/a\n", {f"{V1}/a": v1(4 * GB, GB)}, 3 * GB),
    "v1, no limit": ("4:memory:/a\n", {f"{V1}/a": v1(NO_LIMIT, GB), V1: v1(NO_LIMIT, GB)}, MACHINE),
    "v1, the parent's": ("4:memory:/a/b\n", {f"{V1}/a/b": v1(9 * GB, GB), f"{V1}/a": v1(4 * GB, 2 * GB)}, 2 * GB),
    "v1, the host's path in a container": ("4:memory:/docker/0123\n", {V1: v1(4 * GB, GB)}, 3 * GB),
    "v2": ("0::/a\n", {f"{V2}/a": v2(4 * GB, GB)}, 3 * GB),
    "v2, files come back": ("0::/a\n", {f"{V2}/a": v2(4 * GB, 3 * GB, GB)}, 2 * GB),
    "v2, no limit": ("0::/a\n", {f"{V2}/a": v2("max", GB)}, MACHINE),
    "v2, the parent's": ("0::/a/b\n", {f"{V2}/a/b": v2("max", GB), f"{V2}/a": v2(4 * GB, GB)}, 3 * GB),
    "v2, a container's own root": ("0::/\n", {V2: v2(4 * GB, GB)}, 3 * GB),
    "both": ("4:memory:/a\n0::/a\n", {f"{V1}/a": v1(4 * GB, GB), f"{V2}/a": v2("max", GB)}, 3 * GB),
    "more than the machine has": ("0::/\n", {V2: v2(90 * GB, GB)}, MACHINE),
    "over its limit": ("0::/\n", {V2: v2(GB, 2 * GB)}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_of_all_limits_is_free(tmp_path, case):
    cgroup, groups, expected = CASES[case]
    assert available_memory_bytes(1, tree(tmp_path, cgroup, groups)) == expected


def test_ranks_share(tmp_path):
    root = tree(tmp_path, "0::/\n", {V2: v2(4 * GB, GB)})
    assert available_memory_bytes(3, root) == GB
    for ranks in (0, -1):
        with pytest.raises(ValueError, match=f"at least 1 rank.*got {ranks}"):
            available_memory_bytes(ranks, root)


def test_this_machine_and_one_without_proc_whose_physical_memory_counts(tmp_path):
    assert 1 < available_memory_bytes(2) <= available_memory_bytes(1)
    assert available_memory_bytes(1, tmp_path) > GB // 10
