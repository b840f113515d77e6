import subprocess
import sys


def test_run_files_are_checked_without_jax():
    code = "import sys, reticent.models, reticent.config; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
