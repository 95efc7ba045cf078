"""Build hook of the wheel: put machine code of all kernels into it.

The code is for x86-64 processors with AVX2 (level x86-64-v3) on Linux; other processors and systems
compile kernels at their first use, as does an editable installation. ``SBM_PROCESSOR`` names
another level (``generic``), or ``none`` for a wheel without code; ``SBM_LOSSES``, such as
``hinge,log_loss``, limits the code to some losses.
"""

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # for any builder
    """Compile the kernels for a processor before the wheel is packed."""

    _level = os.environ.get("SBM_PROCESSOR", "x86-64-v3")
    _compiles = _level != "none" and sys.platform == "linux" and platform.machine() == "x86_64"

    def dependencies(self) -> list[str]:
        """Return what compiling needs in addition to hatchling."""
        extras = self.metadata.core.optional_dependencies
        return [*extras["compile"], "numpy"] if self._compiles else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile to a temporary folder and name it in `build_data`."""
        if version != "standard" or not self._compiles:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="sbm-wheel-")
        native = Path(self._folder.name, "native")
        native.mkdir()
        losses = [name for name in os.environ.get("SBM_LOSSES", "").split(",") if name]
        order = (
            f"import sys; sys.path.insert(0, {self.root!r}); "
            "from pathlib import Path; from sbm.programs.precompile import write_library; "
            f"write_library({self._level!r}, Path({str(native)!r}), {losses!r})"
        )
        # PYTHONPATH stays: with it pip names the packages that it installed for the build.
        environment = {**os.environ, "SBM_PROCESSOR": self._level}
        subprocess.run([sys.executable, "-c", order], env=environment, check=True)
        build_data["force_include"][str(native)] = "sbm/native"
        build_data["pure_python"] = False
        platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform_tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
