"""scripts/startup.py at toy size: which kernels a first run compiles, told once each."""

import re
import shutil

import pytest
from helpers import load_script

from sbm import compiled

startup = load_script("startup")


@pytest.fixture
def folder(tmp_path):
    """Rows, and the machine code there is, but for one kernel that every split needs."""
    (tmp_path / "rows.svm").write_text("1 1:0.5 2:1\n-1 2:0.5 3:1\n" * 20)
    (tmp_path / "code").mkdir()
    for file in compiled.folder().glob("store-*.sbk"):
        if not file.name.startswith("store-rows-encode_numbers."):
            shutil.copy(file, tmp_path / "code")
    return tmp_path


def test_a_first_run_compiles_what_its_command_needs_and_a_second_nothing(folder):
    again = {"split": startup.COMMANDS["split"]}
    again["split once more"] = f"{again['split']} --force"
    found = startup.compiled_by(folder, again)
    kernels = {one.kernel for one in found}
    assert {one.command for one in found} == {"split"}
    assert "store/rows.encode_numbers" in kernels
    assert {kernel.split("/")[0] for kernel in kernels} == {"store"}  # nothing of the solver's
    assert all(one.seconds > 0 and one.times > 0 for one in found)
    report = startup.report_of(found, {}, {})
    assert re.search(r"\| `sbm split` \| all \| \d+ \| \d+\.\d \|", report)
    assert all(f"`{kernel}`" in report for kernel in kernels)
