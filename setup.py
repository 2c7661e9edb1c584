"""Builds the Cython kernels; everything else is in pyproject.toml.

``FLEETLOG_CYTHON_WERROR=1`` makes warnings of Cython and of the C compiler errors (CI does).
``FLEETLOG_SANITIZE=address`` builds with AddressSanitizer (tests/native/sanitize.sh does).
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup
from setuptools.command.build_py import build_py


class BuildPython(build_py):
    """Of the old name ``spark_udfs`` a wheel has what says the new one; its modules are in ``fleetlog.spark``."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if package != "spark_udfs" or module[1] == "__init__"]


strict = os.environ.get("FLEETLOG_CYTHON_WERROR") == "1"
sanitize = os.environ.get("FLEETLOG_SANITIZE", "")
Options.warning_errors = strict

compile_args = ["-O2", "-Wall", "-Wno-unused-function"]
link_args = ["-pthread"]
if strict:
    compile_args.append("-Werror")
if sanitize:
    compile_args = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
    link_args.append(f"-fsanitize={sanitize}")

extensions = [
    Extension(
        f"fleetlog._native.{source.stem}", [str(source)], extra_compile_args=compile_args, extra_link_args=link_args
    )
    for source in sorted(Path("fleetlog/_native").glob("*_cy.pyx"))
    if sys.platform == "linux" or source.stem != "io_cy"  # sendfile, eventfd and RWF_NOWAIT are Linux's
]
setup(
    cmdclass={"build_py": BuildPython},
    ext_modules=cythonize(extensions, language_level=3, compiler_directives={"freethreading_compatible": False}),
)
