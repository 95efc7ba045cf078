"""Build hook of the wheel: with ``SBM_PROCESSOR`` set, put machine code of all kernels into it.

SBM_PROCESSOR=x86-64-v3 python -m hatchling build -t wheel

``SBM_LOSSES``, such as ``hinge,log_loss``, limits it to some losses. The environment needs what sbm
itself needs. The wheel is for one platform then; where a processor
lacks a feature, kernels are compiled there as from any other wheel.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # for any builder
    """Compile the kernels for a processor before the wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile to a temporary folder and name it in `build_data`."""
        processor = os.environ.get("SBM_PROCESSOR")
        if not processor or version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="sbm-wheel-")
        native = Path(self._folder.name, "native")
        native.mkdir()
        environment = {**os.environ, "SBM_CACHE_DIR": str(native), "PYTHONPATH": self.root}
        losses = [name for name in os.environ.get("SBM_LOSSES", "").split(",") if name]
        chosen = [word for name in losses for word in ("--loss", name)]
        for dtype in ("float32", "float64"):
            command = [sys.executable, "-m", "sbm", "precompile", "--dtype", dtype, *chosen]
            subprocess.run(command, env=environment, check=True)
        import llvmlite

        (native / "made-for").write_text(f"{processor}\n{llvmlite.__version__}\n", "ascii")
        build_data["force_include"][str(native)] = "sbm/native"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
