"""`reticent`: the verbs, each loaded when it is used, so that help and planning start at once."""

import importlib
import os
import sys
from typing import Any

import click
import typer
from typer.core import TyperGroup

from reticent import __version__
from reticent.errors import Refused

# verb: (module beside this one, help). A module has either `app` (a Typer of sub-verbs) or a function named as the verb.
VERBS = {
    "train": ("train", "Train what a run file asks for: guarantee first, report last."),
    "deploy": ("deploy", "The same rounds on real devices, over Flower: keys, devices, server."),
    "sweep": ("sweep", "Train a grid of runs on public or generated text, to choose hyper-parameters by."),
    "evaluate": ("use", "Accuracy and loss of a trained model on people it was not trained on."),
    "predict": ("use", "The words that a trained model thinks come next."),
    "generate": ("generate", "Text that a trained model writes after a prompt."),
    "export": (
        "use",
        "Take a trained model elsewhere: Hugging Face, safetensors or StableHLO, with its privacy statement.",
    ),
    "personalize": ("personalize", "What training further on each person's own text would gain them."),
    "tune": ("tune", "Group sizes and cohorts for els and uls, and when which of the two is better."),
    "config": ("config", "Look at run files: every key, its unit and default."),
    "doctor": ("doctor", "What is installed here, what is missing, and for which verb."),
    "data": ("data", "Import text by user, look at it, forget a user."),
    "mechanism": ("mechanism", "Make, compare and look at noise mechanisms."),
    "plan": ("plan", "Plan a launch: mechanism, noise, reports a round, and the epsilon you will be able to state."),
    "account": ("account", "The guarantee of a training: epsilon, rho, and what they rest on."),
    "calibrate": ("calibrate", "The smallest noise multiplier for a target epsilon or rho."),
    "verify": ("verify", "Check a run from what it wrote: ledger, guarantee, and, with its secrets, the noise."),
    "audit": ("audit", "Attack a run: a lower bound on epsilon, exposure of planted secrets, its noise, its row keys."),
    "report": ("report", "Report what a run did: guarantee, accuracy, checks, for everybody to read."),
    "compare": ("compare", "Compare runs: guarantees, accuracies, speed."),
    "population": ("population", "Who takes part: play a population of devices before a launch."),
    "reproduce": ("reproduce", "The papers' tables and figures: the paper's value, ours, the difference."),
}


class _LazyVerbs(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # The list of verbs in the help needs a name and one line, not the verb's imports.
        if cmd_name not in VERBS:
            return None
        return click.Command(cmd_name, help=VERBS[cmd_name][1])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_verb(name) if command is not None and name else command, rest


def load_verb(verb: str) -> click.Command:
    """The real command of a verb."""
    module = importlib.import_module(f"reticent.cli.{VERBS[verb][0]}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(verb)(getattr(module, verb.replace("-", "_")))
    return typer.main.get_command(app)


app = typer.Typer(
    cls=_LazyVerbs,
    help="Train language models on what people wrote, without letting the model repeat any one of them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    return None


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command; what a user can mend is one sentence on standard error and exit code 2."""
    try:
        app(args=arguments, prog_name="reticent")
    except Refused as error:
        typer.echo(f"reticent: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader went away (`reticent ... | head`): nothing is wrong here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
