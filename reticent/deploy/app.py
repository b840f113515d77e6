"""A Flower app for a run: a few lines that call this package."""

from pathlib import Path
from typing import Any

import reticent
from reticent.config.toml import to_toml
from reticent.deploy.terms import Terms
from reticent.errors import Refused

PACKAGE = "reticent_app"
SERVER = '''"""The server's app."""

from reticent.deploy.flower import server_app

app = server_app()
'''
CLIENT = '''"""The devices' app."""

from reticent.deploy.flower import client_app

app = client_app()
'''
README = """# {name} on devices

A Flower app that `reticent deploy new` wrote. Its terms, which every device needs a copy of, are terms.json ({digest}).

    reticent deploy keys --out keys --devices {devices} --address 127.0.0.1
    reticent deploy device keys/devices/device-0000 --terms {app}/terms.json --store STORE --user USER \\
        --epsilon 10 --delta 1e-6
    reticent deploy serve {app} --keys keys
    reticent deploy start keys/devices/device-0000 --server 127.0.0.1:9092

Flower's telemetry (FLWR_TELEMETRY_ENABLED=0), its check for updates (FLWR_DISABLE_UPDATE_CHECK=1) and its installation of
dependencies when an app starts (FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1) are switched off by these commands; set the
same where you start Flower's own.
"""


def write_app(out: Path, terms: Terms, run_directory: Path) -> list[Path]:
    """Writes the app of these terms into the new directory `out`; `run_directory` is where the server will write the run."""
    out = out.absolute()
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} holds other files; give a new directory with --out.")
    (out / PACKAGE).mkdir(parents=True)
    terms.save(out / "terms.json")
    devices = terms.invited * terms.min_separation
    files = {
        "run.toml": terms.run_file,
        "pyproject.toml": _pyproject(out, terms, run_directory.absolute()),
        "README.md": README.format(name=terms.name, digest=terms.digest[:12], devices=devices, app=out.name),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/server.py": SERVER,
        f"{PACKAGE}/client.py": CLIENT,
    }
    for name, content in files.items():
        (out / name).write_text(content)
    return [out / "terms.json", *(out / name for name in files)]


def _pyproject(out: Path, terms: Terms, run_directory: Path) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in terms.name.lower()).strip("-") or "run"
    tables = to_toml(
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": f"reticent-{name}"[:60],
                "version": "1.0.0",
                "description": f"The run {terms.name} on devices, with Reticent",
                "dependencies": ["flwr==1.41.0", f"reticent[train,devices]=={reticent.__version__}"],
            },
        }
    )
    config = {
        "reticent-terms": str(out / "terms.json"),
        "reticent-registry": str(out.parent / "keys" / "server" / "registry.json"),
        "reticent-out": str(run_directory),
        "reticent-secrets": "",
    }
    # Flower's own tables, nested, which a run file never is.
    flower: dict[str, dict[str, Any]] = {
        "[tool.hatch.build.targets.wheel]": {"packages": ["."]},
        "[tool.flwr.app]": {"publisher": "reticent"},
        "[tool.flwr.app.components]": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
        "[tool.flwr.app.config]": config,
    }
    return tables + "".join(
        "\n" + to_toml({"table": values}).replace("[table]", header, 1) for header, values in flower.items()
    )
