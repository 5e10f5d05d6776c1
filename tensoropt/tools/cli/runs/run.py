"""Run ``tensoropt run``: a script on several ranks, unchanged if it is a Keras script, or as it was written for ranks."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....common.errors import InputError, describe
from ....common.files import check_writable
from ....common.time_units import parse_time_us
from ....runtime.failures import notes
from ....runtime.launch.hosts import Host, hosts_in, hosts_of, hosts_of_allocation
from ....runtime.launch.mpirun import mpirun_command, rank_environment, supervise
from ....survive.interval import Interval
from ....survive.supervisor import Supervisor, Survival, code_with_hosts
from ....unchanged.copied_input import copied_input
from ....unchanged.script import AS_WRITTEN, REFUSED_AT, TO_FILE, command
from ..answers import OF_PLANS

ALSO_UNCHANGED = {"auto", "Survive"}
"""The names of TensorOpt that a script may use and run unchanged all the same."""
OF_TRAINING = {
    "memory": ("SIZE", "limit per device: 16GB (10^9), 15GiB (2^30); default: the device's own memory over 1.1"),
    "cluster": ("NAME|FILE", "the hardware to plan for, instead of measuring it: such as v100-1x2, or a hardware file"),
    "plan": ("PLAN.json", "a plan to use instead of a search"),
    **OF_PLANS,
}
"""The options of plans, which are those of ``parallelize``: the word for a value, and what it does."""
OF_SURVIVING = {
    "checkpoint": ("DIR", "save fit's training there, and go on from the newest checkpoint that is whole"),
    "every": ("10min|500steps", "how often to save; default: 10min"),
    "keep": ("N", "how many of the newest checkpoints to keep; default: 2"),
    "restarts": ("R", "start the ranks again up to R times; default: 0"),
    "min_ranks": ("M", "go on with M ranks or more while others that were killed cool down; default: all"),
    "wait": ("TIME", "how long to wait for so many; default: 10min"),
    "cooldown": ("TIME", "how long to leave a rank out that was killed; default: 10min"),
    "grace": ("TIME", "how long saving and leaving may take after SIGTERM or SIGUSR1; default: 25s"),
    "requeue_code": ("C", "the exit code after that, which asks to be started again; default: 75"),
    "json": ("OUT.json", "write the table of attempts"),
}
"""The options of a run that survives: the word for a value, and what it does."""
# Where batch systems say how many tasks a job has: Slurm, PBS, LSF, Grid Engine.
_TASKS = ("SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS")
_GPUS = Path("/proc/driver/nvidia/gpus")
_NUMBERS = ("stages", "micro_batches")
_LISTS = ("stages", "without")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt run [-n N] [OPTION ...] [--] SCRIPT [ARGUMENT ...], or -m MODULE [ARGUMENT ...]"
    of_ranks = "number of ranks (devices); default: the hosts' slots, the batch system's tasks, this machine's GPUs, or 1"
    parser.add_argument("-n", type=int, metavar="N", dest="n_ranks", help=of_ranks)
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--host", metavar="HOST:SLOTS[,...]", help="the hosts to run on; default: the batch system's, or this one"
    )
    place.add_argument("--hostfile", type=Path, metavar="FILE", help="a file of hosts, read at each start: alpha slots=4")
    watched = "a hostfile, or this host's number of slots, which is watched: the run is saved and goes on with as many ranks"
    place.add_argument("--slots", type=Path, metavar="FILE", help=watched)
    parser.add_argument(
        "--report", type=Path, metavar="OUT.html", help="write a page on the plan that the script runs, for a browser"
    )
    parser.add_argument("--collectives", metavar="NAME", help="how ranks communicate: mpi, tensorflow or horovod")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--as-written",
        action="store_true",
        help="leave the script's Keras models to its own calls, as for a script that imports tensoropt or mpi4py",
    )
    mode.add_argument(
        "--or-plain", action="store_true", help="run the script by plain Keras, from its beginning, if a model is refused"
    )
    parser.add_argument("--fresh", action="store_true", help="put the run in --checkpoint aside, and begin at the beginning")
    for name, (metavar, text) in {**OF_TRAINING, **OF_SURVIVING}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    parser.add_argument(
        "-m", nargs=argparse.REMAINDER, default=[], dest="module", metavar="MODULE", help="Python module and its arguments"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="Python script and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Start mpirun, pass signals on to it, and return its exit code."""
    hosts = _hosts(arguments)
    program, file = _program(arguments)
    try:
        is_for_ranks = arguments.as_written or _is_for_ranks(file)
    except SyntaxError as error:
        traceback.print_exception(SyntaxError, error, None)
        return 1
    options = _options(arguments)
    if is_for_ranks and (options or arguments.or_plain):
        name = next(iter(options), "or_plain").replace("_", "-")
        raise InputError(
            f"--{name} is for scripts that run unchanged; '{file}' runs as it is written, and says that in its own calls"
        )
    survival = _survival(arguments)
    environment = rank_environment(os.environ, as_root=os.geteuid() == 0, debug=arguments.debug)
    if arguments.collectives is not None:
        environment["TENSOROPT_COLLECTIVES"] = arguments.collectives

    def started(program: Sequence[str], has_input: bool) -> int:
        run = partial(mpirun_command, program=program)
        if survival is not None:
            return _reporting(Supervisor(survival, run, hosts, has_input).run, environment, arguments.report)

        def once(environ: Mapping[str, str]) -> int:
            with tempfile.TemporaryDirectory(prefix="tensoropt-notes-") as folder:
                own = {**environ, notes.NOTES: folder}
                # Neither mpirun nor MPI, whose starts take a third of a second, is needed for one unchanged process.
                is_alone = arguments.n_ranks == hosts_of_allocation(own) == 1 and not (is_for_ranks or hosts())
                alone = [sys.executable, *program]
                code = supervise(alone if is_alone else run(arguments.n_ranks, hosts=hosts(), environ=own), own, has_input)
                return code_with_hosts(code, hosts(), notes.read_notes(Path(folder)))

        return _reporting(once, environment, arguments.report)

    sys.stdout.flush()
    with copied_input() as copied, tempfile.TemporaryDirectory(prefix="tensoropt-run-") as folder:
        if is_for_ranks:
            return started(command({AS_WRITTEN: True, **copied}, program) if copied else program, not copied)
        environment.setdefault("PYTHONHASHSEED", "0")  # so that sets of text have one order on all ranks
        refused_at = Path(folder, "refused")
        if arguments.or_plain:
            options[REFUSED_AT] = str(refused_at)
        if not sys.stdout.isatty():
            options[TO_FILE] = True
        code = started(command({**options, **copied}, program), not copied)
        is_refused = refused_at.exists()
    if not is_refused:
        return code
    print("tensoropt: plain Keras runs the script now, from its beginning, on one device", file=sys.stderr, flush=True)
    return supervise([sys.executable, *program], environment, has_input=True)


def _hosts(arguments: argparse.Namespace) -> Callable[[], list[Host]]:
    """Return a function that returns the hosts to run on, none for this one; set the number of ranks if it isn't given."""
    if arguments.slots is not None and arguments.n_ranks is not None:
        raise InputError("--slots FILE says how many ranks there are, and -n too; leave -n out")
    file = arguments.slots or arguments.hostfile
    named = [] if arguments.host is None else hosts_of(arguments.host)
    hosts = named if file is None else hosts_in(file)
    n_slots = sum(host.slots for host in hosts)
    if arguments.n_ranks is None:
        arguments.n_ranks = n_slots if hosts else ranks_by_default()
    if hosts and arguments.n_ranks > n_slots:
        raise InputError(
            f"-n {arguments.n_ranks} is more than the {n_slots} slots of the hosts; give them more, or leave -n out"
        )
    return lambda: named if file is None else hosts_in(file)


def ranks_by_default(environ: Mapping[str, str] = os.environ, gpus: Path = _GPUS) -> int:
    """Return the number of the batch system's tasks, else of this machine's GPUs that may be used, else 1."""
    for name in _TASKS:
        if environ.get(name, "").isdecimal():
            return max(1, int(environ[name]))
    n_gpus = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        n_gpus = min(n_gpus, len([device for device in visible.split(",") if device.strip() not in ("", "-1")]))
    return max(1, n_gpus)


def _program(arguments: argparse.Namespace) -> tuple[list[str], Path | None]:
    """Return the program's command line, and the file of its code; None for a module that isn't Python source."""
    program = list(arguments.program)
    if program[:1] == ["--"]:
        program = program[1:]
    if arguments.n_ranks < 1:
        raise InputError(describe("-n takes the number of ranks", got=arguments.n_ranks, expected="1 or more"))
    if arguments.module:
        return ["-m", *arguments.module], _module_file(arguments.module[0])
    if not program:
        raise InputError(describe("no script", expected="tensoropt run [-n N] SCRIPT [ARGUMENT ...]"))
    if not Path(program[0]).is_file():
        raise InputError(describe("the script must be a file", got=repr(program[0]), where=f"folder {os.getcwd()}"))
    return program, Path(program[0])


def _module_file(name: str) -> Path | None:
    """Return the file of a module that Python would find from the current folder."""
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.pop(0)
    if spec is None:
        raise InputError(describe("there is no such module", got=repr(name), where=sys.executable))
    return Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None


def _is_for_ranks(file: Path | None) -> bool:
    """Return whether a script was written for ranks: it imports TensorOpt, for more than ``auto``, or mpi4py.

    Raises:
        SyntaxError: it isn't Python.
        InputError: it uses Horovod.
    """
    if file is None:
        return False
    nodes = list(ast.walk(ast.parse(file.read_bytes(), str(file))))
    imported = {item.name: item.asname or item.name for node in nodes if isinstance(node, ast.Import) for item in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {f"{node.module}.{item.name}": "" for item in node.names}
    packages = {name.partition(".")[0] for name in imported}
    used = {name.split(".")[1] for name in imported if name.startswith("tensoropt.")}
    own = imported.get("tensoropt")
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == own}
    used = used or packages & {"tensoropt"}
    if "mpi4py" in packages or not used <= ALSO_UNCHANGED:
        return True
    if "horovod" in packages:
        raise InputError(
            f"'{file}' imports horovod, which starts ranks of its own; leave horovod out of it, or run it by horovodrun"
        )
    return False


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of plans that are given, as ``parallelize`` takes them."""
    options: dict[str, Any] = {}
    for name in OF_TRAINING:
        text = getattr(arguments, name)
        if text is None:
            continue
        parts: list[Any] = text.split(",") if name in _LISTS else [text]
        if name in _NUMBERS:
            if not all(part.strip().isdecimal() for part in parts):
                raise InputError(f"--{name.replace('_', '-')} takes whole numbers, got {text!r}")
            parts = [int(part) for part in parts]
        options[name] = parts if len(parts) > 1 or name == "without" else parts[0]
    return options


def _survival(arguments: argparse.Namespace) -> Survival | None:
    """Return how the run survives; None if no option says that it is to."""
    options = {name: getattr(arguments, name) for name in OF_SURVIVING if getattr(arguments, name) is not None}
    folder = options.get("checkpoint")
    if folder is None and (arguments.fresh or {"every", "keep", "requeue_code"} & options.keys()):
        raise InputError("--every, --keep, --requeue-code and --fresh are for runs that are saved; give --checkpoint DIR")
    if not options and arguments.slots is None:
        return None

    def number(name: str, default: int, least: int, most: int = sys.maxsize) -> int:
        text = options.get(name, str(default))
        if not text.isdecimal() or not least <= int(text) <= most:
            bounds = f"{least} or more" if most == sys.maxsize else f"{least} to {most}"
            raise InputError(f"--{name.replace('_', '-')} takes a whole number, {bounds}, got {text!r}")
        return int(text)

    def seconds(name: str, default: str) -> float:
        return parse_time_us(options.get(name, default), f"--{name}") / 1e6

    least = arguments.n_ranks if arguments.slots is None else 1
    every, min_ranks = options.get("every", "10min"), number("min_ranks", least, 1)
    Interval.of(every)
    if min_ranks > arguments.n_ranks:
        raise InputError(f"--min-ranks {min_ranks} is more than -n {arguments.n_ranks}, the ranks that there are")
    fixed = next((name for name in ("plan", "cluster") if getattr(arguments, name) is not None), None)
    if (min_ranks < arguments.n_ranks or arguments.slots is not None) and fixed is not None:
        other = "--min-ranks asks" if arguments.slots is None else "--slots may ask"
        raise InputError(f"--{fixed} is for one number of ranks, and {other} for others; leave one of them out")
    return Survival(
        n_ranks=arguments.n_ranks,
        watches=arguments.slots is not None,
        checkpoint=None if folder is None else Path(folder),
        every=every,
        keep=number("keep", 2, 1),
        fresh=arguments.fresh,
        restarts=number("restarts", 0, 0),
        min_ranks=min_ranks,
        wait_s=seconds("wait", "10min"),
        cooldown_s=seconds("cooldown", "10min"),
        grace_s=seconds("grace", "25s"),
        leaving_code=number("requeue_code", 75, 1, 255),
        json=None if "json" not in options else Path(options["json"]),
    )


def _reporting(run: Callable[[Mapping[str, str]], int], environment: Mapping[str, str], file: Path | None) -> int:
    """Run a command and return its exit code; with a file, rank 0 writes the report of its plan, else the code is 1.

    Raises:
        InputError: the file can't be written, or Plotly isn't installed.
    """
    if file is None:
        return run(environment)
    from ....report.pages.page import ASKED, library

    check_writable(file, "report")
    library()
    before = _written_at(file)
    code = run({**environment, ASKED: str(file.resolve())})
    if _written_at(file) != before:
        print(f"tensoropt: wrote {file}; open it in a browser", file=sys.stderr, flush=True)
    elif code == 0:
        print(
            f"tensoropt: '{file}' wasn't written: the script ran no plan, of parallelize, find_strategy or "
            "build_execution_graph, that a report can show",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return code


def _written_at(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None
