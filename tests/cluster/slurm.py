"""A Slurm of two nodes on this machine: network namespaces with host names of their own, and one controller beside them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NETWORK, NODES = "10.79.0", ("n1", "n2")
_CONF = """
ClusterName=tensoropt
SlurmctldHost=controller({network}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=30
ReturnToService=2
NodeName=n1 NodeAddr={network}.1 CPUs=8 RealMemory=4000
NodeName=n2 NodeAddr={network}.2 CPUs=8 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def missing() -> str:
    """What this machine lacks for a Slurm of its own; empty if nothing."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    lacking = [tool for tool in ("sbatch", "munged", "ip", "nsenter") if shutil.which(tool) is None]
    wanted = "make test-slurm needs root, and Debian's slurm-wlm, munge, libpmix-dev, iproute2 and util-linux; here"
    return f"{wanted} there is no {', '.join(lacking)}" if lacking else f"{wanted} is another user" if os.geteuid() else ""


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[None]:
    """Run the controller and two nodes until the context ends, for commands that find them by ``SLURM_CONF``."""
    with contextlib.ExitStack() as stack:

        def do(*command: str) -> None:
            subprocess.run(command, check=True, timeout=60)

        def serve(*command: str) -> None:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

        for name in ("munge", "state", "pmix", *NODES):
            (folder / name).mkdir(mode=0o755)
        conf = folder / "slurm.conf"
        conf.write_text(_CONF.format(folder=folder, network=NETWORK))
        conf.with_name("mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/pmix\n")
        os.environ["SLURM_CONF"] = str(conf)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        serve("munged", "--foreground", "--force", f"--key-file={key}", *places)
        do("ip", "link", "add", "opt-slurm", "type", "bridge")
        stack.callback(do, "ip", "link", "delete", "opt-slurm")
        do("ip", "address", "add", f"{NETWORK}.254/24", "dev", "opt-slurm")
        do("ip", "link", "set", "opt-slurm", "up")
        serve("unshare", "--uts", "bash", "-c", "hostname controller; exec slurmctld -D -i")
        for number, name in enumerate(NODES, start=1):
            do("ip", "netns", "add", name)
            stack.callback(do, "ip", "netns", "delete", name)
            stack.callback(asked, "ip", "link", "delete", f"opt-{name}")
            do("ip", "link", "add", f"opt-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            do("ip", "link", "set", f"opt-{name}", "master", "opt-slurm", "up")
            do("ip", "-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                do("ip", "-n", name, "link", "set", link, "up")
            # PMIx servers of both nodes have folders of one name.
            command = f"mount -t tmpfs {name} {folder}/pmix; hostname {name}; exec slurmd -D -N {name}"
            # Not by "ip netns exec", which hides the control groups that slurmd asks for.
            serve("nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "--mount", "bash", "-c", command)
        until_s = time.monotonic() + 30
        while asked("sinfo", "--noheader", "--format=%t") != "idle":
            if time.monotonic() > until_s:
                raise TimeoutError(asked("sinfo", "--long", "--Node"))
            time.sleep(0.5)
        try:
            yield
        finally:
            asked("scancel", "--user=root", "--signal=KILL", "--full")
            until_s = time.monotonic() + 20
            while asked("squeue", "--noheader") and time.monotonic() < until_s:
                time.sleep(0.2)


def asked(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


if __name__ == "__main__":
    if missing():
        sys.exit(f"tests/cluster: {missing()}")
    with tempfile.TemporaryDirectory() as made:
        try:
            with two_nodes(Path(made)):
                hosts = asked("srun", "--mpi=pmix", "--nodes=2", "hostname")
            if set(hosts.split()) != set(NODES):
                raise OSError(f"srun --mpi=pmix, which needs Debian's libpmix-dev, says {hosts or 'nothing'}")
        except (OSError, subprocess.SubprocessError) as error:
            sys.exit(f"tests/cluster: two nodes can't be made here: {error}")
