"""What `account` and `calibrate` have in common: the nouns, each from its options to a guarantee for any noise."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reticent.cli.output import print_json
from reticent.errors import Refused

if TYPE_CHECKING:
    from reticent.accounting.guarantee import Guarantee
    from reticent.mechanisms import Mechanism, Participation

Of = Callable[[float], "Guarantee"]
"""From a noise multiplier to the guarantee."""

MechanismName = Annotated[
    str, typer.Argument(help="A mechanism file, or a kind that needs no optimisation.", metavar="FILE|KIND")
]
Rounds = Annotated[int, typer.Option(help="Training rounds (steps).", show_default=False)]
MinSeparation = Annotated[int, typer.Option(help="Rounds from one participation of a user to the next, at least.")]
MaxParticipations = Annotated[
    int | None,
    typer.Option(help="Rounds a user takes part in, at most. (default: the most that fit)", show_default=False),
]
Delta = Annotated[
    float, typer.Option(help="Delta, a probability; the population to the power -1.1 is usual.", show_default=False)
]
Unit = Annotated[Literal["user", "device", "example"], typer.Option(help="What takes part, and is protected.")]
PerUser = Annotated[
    int, typer.Option("--devices-per-user", help="Units of one user, at most: the guarantee is then for the user.")
]
ClipCountNoise = Annotated[
    float | None, typer.Option(help="For adaptive clipping: noise, in users, on the count of unclipped updates.")
]
SecaggScale = Annotated[
    float | None, typer.Option(help="For rotated secure aggregation: scale before rounding, per unit of the norm.")
]
ClipNorm = Annotated[float, typer.Option(help="With --secagg-scale: the clip norm.")]
Parameters = Annotated[
    int | None, typer.Option(help="With --secagg-scale: parameters of the model.", show_default=False)
]
Probability = Annotated[
    float, typer.Option(help="Chance of one unit to be in a round, above 0 and at most 1.", show_default=False)
]


def matrix(
    mechanism: MechanismName,
    rounds: Rounds,
    delta: Delta,
    min_separation: MinSeparation = 1,
    max_participations: MaxParticipations = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Participations are exactly the min separation apart (fixed epochs).")
    ] = False,
    unit: Unit = "user",
    devices_per_user: PerUser = 1,
    clip_count_noise: ClipCountNoise = None,
    secagg_scale: SecaggScale = None,
    clip_norm: ClipNorm = 1.0,
    parameters: Parameters = None,
) -> Of:
    """Any mechanism under deterministic participation: rho = (sensitivity / noise multiplier)^2 / 2."""
    from reticent.mechanisms import Participation

    participation = Participation(rounds, min_separation, max_participations, exact)
    inflation = _inflation(secagg_scale, clip_norm, parameters)
    return _of_matrix(
        _mechanism(mechanism, participation), participation, unit, devices_per_user, clip_count_noise, inflation
    )


def restarts(
    mechanism: MechanismName,
    at: Annotated[
        str,
        typer.Option(help="Rounds before which the mechanism starts anew, with commas between.", show_default=False),
    ],
    rounds: Rounds,
    delta: Delta,
    min_separation: MinSeparation = 1,
    max_participations: MaxParticipations = None,
    unit: Unit = "user",
    devices_per_user: PerUser = 1,
    clip_count_noise: ClipCountNoise = None,
    secagg_scale: SecaggScale = None,
    clip_norm: ClipNorm = 1.0,
    parameters: Parameters = None,
) -> Of:
    """Any mechanism that starts anew at given rounds, participations spread over the blocks in the worst way."""
    from reticent.mechanisms import Participation
    from reticent.mechanisms.restarted import Restarted

    participation = Participation(rounds, min_separation, max_participations)
    try:
        starts = sorted({0, *(int(one) for one in at.split(",") if one.strip())})
    except ValueError:
        raise Refused(f"--at takes rounds with commas between, such as 128,1152; got {at!r}.") from None
    if starts[-1] >= rounds:
        raise Refused(f"--at: round {starts[-1]} is not before the end after {rounds} rounds.")
    whole = Restarted(_mechanism(mechanism, participation), tuple(starts))
    inflation = _inflation(secagg_scale, clip_norm, parameters)
    return _of_matrix(whole, participation, unit, devices_per_user, clip_count_noise, inflation)


def amplified(
    mechanism: Annotated[str, typer.Argument(help="A banded mechanism's file, or 'banded'.", metavar="FILE|banded")],
    rounds: Rounds,
    delta: Delta,
    population: Annotated[int, typer.Option(help="Units there are: a public estimate.", show_default=False)],
    batch_size: Annotated[int, typer.Option(help="Units in a round (for poisson: on average).", show_default=False)],
    bands: Annotated[
        int | None,
        typer.Option(
            help="Groups that take turns, and for 'banded' its bands. (default: the file's bands)", show_default=False
        ),
    ] = None,
    sampling: Annotated[
        Literal["poisson", "fixed", "shuffle"], typer.Option(help="How a round is drawn from its group.")
    ] = "poisson",
    unit: Unit = "user",
) -> Of:
    """A banded mechanism whose rounds draw from groups in turn: amplification by sampling."""
    from reticent.accounting.amplified import amplified_guarantee, bands_of, shuffled_guarantee

    made = _banded(mechanism, bands, rounds)
    groups = bands or bands_of(made, rounds)
    if batch_size < 1:
        raise Refused(f"--batch-size must be at least 1, got {batch_size}.")
    smallest = population // groups
    if batch_size > smallest:
        raise Refused(
            f"A batch of {batch_size} is more than the {smallest} of the smallest of {groups} groups: lower --batch-size, "
            f"or use at most {max(population // batch_size, 1)} bands."
        )
    by_bands_alone = mechanism == "banded" and not Path(mechanism).is_file()

    def of(noise: float) -> "Guarantee":
        if sampling == "shuffle":
            found = shuffled_guarantee(made, rounds, noise, smallest // batch_size, groups=groups, unit=unit)
        else:
            probability = batch_size / smallest
            found = amplified_guarantee(made, rounds, noise, probability, groups=groups, sampling=sampling, unit=unit)
        if not by_bands_alone:
            return found
        told = f"C has {groups} bands at most and columns of norm 1 at most, as optimised 'banded' mechanisms have"
        return dataclasses.replace(found, assumptions=(*found.assumptions, told))

    return of


def sampled(
    sampling_probability: Probability,
    rounds: Rounds,
    delta: Delta,
    accountant: Annotated[
        Literal["pld", "rdp", "moments"], typer.Option(help="Tight; by Renyi divergences; as DP-FedAvg was published.")
    ] = "pld",
    estimator: Annotated[
        Literal["fixed", "clipped"], typer.Option(help="Denominator of the average: a constant, or the weight sampled.")
    ] = "fixed",
    unit: Unit = "user",
    devices_per_user: PerUser = 1,
    clip_count_noise: ClipCountNoise = None,
) -> Of:
    """Poisson sampling and independent noise: DP-FedAvg, DP-FedSGD, ULS, DP-SGD."""
    from reticent.accounting.amplified import sampled_guarantee
    from reticent.accounting.renyi import Moments, Renyi
    from reticent.accounting.sampled import Poisson

    def of(noise: float) -> "Guarantee":
        found = sampled_guarantee(
            sampling_probability, rounds, noise, estimator=estimator, unit=unit, clip_count_noise=clip_count_noise
        )
        found = _for_user(found, devices_per_user)
        release = found.parts[0]
        if accountant == "rdp":
            return dataclasses.replace(
                found, parts=(Renyi(found.parts),), accounting=f"Renyi divergences; {rounds} rounds"
            )
        if accountant == "moments":
            if not isinstance(release, Poisson) or release.group > 1:
                raise Refused("The moments accountant is for one unit sampled with a probability below 1; use pld.")
            return dataclasses.replace(
                found, parts=(Moments(release),), accounting=f"moments accountant, orders 2 to 33; {rounds} rounds"
            )
        return found

    return of


def els(
    sampling_probability: Probability,
    rounds: Rounds,
    group_size: Annotated[int, typer.Option(help="Examples of one user, at most.", show_default=False)],
    delta: Delta,
) -> Of:
    """DP-SGD with example-level sampling, for the user: the mixture of Gaussians, exactly."""
    from reticent.accounting.amplified import els_guarantee

    return lambda noise: els_guarantee(sampling_probability, rounds, group_size, noise)


NOUNS: dict[str, Callable[..., Of]] = {
    "matrix": matrix,
    "amplified": amplified,
    "sampled": sampled,
    "els": els,
    "restarts": restarts,
}


BEST_OF = (
    Annotated[
        float | None,
        typer.Option(
            help="Pay for choosing the best of so many runs on average: a Poisson number, drawn in secret.",
            show_default=False,
        ),
    ],
    None,
)
STATEMENT = (
    Annotated[Path | None, typer.Option(help="Write the privacy statement here, as .md or .html.", show_default=False)],
    None,
)


def chosen(of: Of, best_of: float | None) -> Of:
    """The same for the best of so many runs."""
    if best_of is None:
        return of
    from reticent.accounting.tuning import tuned

    return lambda noise: tuned(of(noise), best_of)


def written(guarantee: "Guarantee", delta: float, file: Path | None) -> "Guarantee":
    """The guarantee, its statement written to a file where one is asked for."""
    if file is not None:
        from reticent.accounting.statement import statement
        from reticent.files import write_atomically

        if file.suffix not in (".md", ".html"):
            raise Refused(f"--statement writes .md or .html, not {file.name!r}.")
        if not file.parent.is_dir():
            raise Refused(f"The folder {file.parent} does not exist; create it first.")
        told = statement(guarantee, delta=delta)
        write_atomically(file, (told.markdown() if file.suffix == ".md" else told.html()).encode())
    return guarantee


def command(noun: Callable[..., Of], own: dict[str, Any], run: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """A verb's command for a noun: the noun's options, the verb's `own`, and --json; `run` gets the guarantee for any
    noise, the noun's options and its own, and tells what to print."""
    signature = inspect.signature(noun)
    as_json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in {**own, "json": (as_json, False)}.items()
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]

    def wrapped(**given: Any) -> None:
        json = given.pop("json")
        mine = {name: given.pop(name) for name in own}
        result = run(noun(**given), given, **mine)
        print_json(result) if json else show(result)

    wrapped.__doc__ = noun.__doc__
    wrapped.__signature__ = inspect.Signature([*parameters, *extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in [*parameters, *extra]}
    return wrapped


def told(guarantee: "Guarantee", delta: float) -> dict[str, Any]:
    """What is printed of a guarantee: all of it, and beside it what a looser accountant would say, where one is usual."""
    from reticent.accounting.sampled import Poisson

    result = guarantee.describe(delta)
    [release, *others] = guarantee.parts
    if isinstance(release, Poisson) and not others:
        if release.group == 1:
            from reticent.accounting.renyi import Moments

            result["epsilon_by_moments"] = Moments(release).epsilon(delta)
        else:
            from reticent.accounting.guarantee import Guarantee

            one = Poisson(release.noise, release.probability, release.times)
            generic = Guarantee((one,), "example", "add-or-remove").by_generic_bound(release.group)
            result["epsilon_by_group_privacy"] = generic.epsilon(delta)
    return result


def show(result: dict[str, Any]) -> None:
    """The same for people."""
    from reticent.accounting.rounding import upper

    epsilon = "infinite" if result["epsilon"] is None else upper(result["epsilon"], 5)
    typer.echo(
        f"epsilon {epsilon} at delta {upper(result['delta'], 5)}, for one {result['unit']} under {result['adjacency']}"
    )
    if result["rho"] is not None:
        typer.echo(f"rho {upper(result['rho'], 6)} (zCDP)")
    typer.echo(f"noise multiplier {upper(result['noise_multiplier'], 7)}, sensitivity {result['sensitivity']:.6g}")
    for name, words in (
        ("epsilon_by_moments", "moments accountant"),
        ("epsilon_by_group_privacy", "generic group bound"),
    ):
        if name in result:
            value = result[name]
            typer.echo(
                f"for comparison, the {words}: epsilon {upper(value, 5)}"
                if value < float("inf")
                else f"the {words} diverges"
            )
    typer.echo(f"accounting: {result['accounting']}")
    typer.echo(f"neighbours: {result['adjacency_means']}")
    typer.echo("assuming that")
    for assumption in result["assumptions"]:
        typer.echo(f"  - {assumption}")


def _of_matrix(
    mechanism: "Mechanism",
    participation: "Participation",
    unit: Any,
    devices_per_user: int,
    clip_count_noise: float | None,
    inflation: float,
) -> Of:
    from reticent.accounting.matrix import matrix_guarantee

    def of(noise: float) -> "Guarantee":
        found = matrix_guarantee(
            mechanism,
            participation,
            noise,
            unit=unit,
            clip_norm_inflation=inflation,
            clip_count_noise=clip_count_noise,
        )
        return _for_user(found, devices_per_user)

    return of


def _for_user(guarantee: "Guarantee", devices_per_user: int) -> "Guarantee":
    if devices_per_user == 1:
        return guarantee
    if guarantee.unit == "user":
        raise Refused("--devices-per-user goes with --unit device (or example): what takes part by itself.")
    return guarantee.for_group(devices_per_user, "user")


def _mechanism(name: str, participation: "Participation") -> "Mechanism":
    from reticent.accounting.run import NEEDS_A_FILE
    from reticent.mechanisms import KINDS, load, make

    if Path(name).is_file() or (name not in KINDS and ("." in name or "/" in name)):
        return load(name)
    if name in NEEDS_A_FILE:
        raise Refused(
            f"A mechanism of kind {name} is optimised first: reticent mechanism optimize {name} --rounds "
            f"{participation.rounds} --min-separation {participation.min_separation} --out FILE; then give that file."
        )
    return make(name, participation)


def _banded(name: str, bands: int | None, rounds: int) -> "Mechanism":
    if name != "banded" or Path(name).is_file():
        from reticent.mechanisms import Participation

        return _mechanism(name, Participation(rounds, bands or 1))
    if bands is None:
        raise Refused("'banded' needs --bands, or give a banded mechanism's file.")
    if not 1 <= bands <= rounds:
        raise Refused(f"--bands must be at least 1 and at most the {rounds} rounds, got {bands}.")
    import numpy as np

    from reticent.mechanisms.banded import Banded

    # All that counts is the number of bands and that columns have norm 1, as those have that `optimize banded` makes.
    columns = np.zeros((rounds, bands))
    columns[:, 0] = 1
    return Banded(columns)


def _inflation(scale: float | None, clip_norm: float, parameters: int | None) -> float:
    if scale is None:
        return 1.0
    if parameters is None:
        raise Refused(
            "--secagg-scale needs --parameters, the model's size, to tell how far rounding lengthens an update."
        )
    from reticent.secagg.encoding import inflated_clip_norm

    if not (scale > 0 and clip_norm > 0 and parameters > 0):
        raise Refused("--secagg-scale, --clip-norm and --parameters must be above 0.")
    return inflated_clip_norm(clip_norm, scale, parameters) / clip_norm
