"""What the server says of a run, a line at a time, in Flower's log."""

from reticent.training.events import Callback, Record


class Say(Callback):
    """Plain lines, none of which tells of a single device."""

    def on_start(self, facts: Record) -> None:
        epsilon = (facts["guarantee"] or {}).get("epsilon")
        promise = "no guarantee" if epsilon is None else f"epsilon {epsilon:.4g} at delta {facts['delta']:.3g}"
        print(
            f"{facts['name']}: {facts['rounds']} rounds of {facts['report_goal']:g} devices, {facts['parameters']:,} "
            f"parameters, {promise}; {facts['done']} rounds done",
            flush=True,
        )

    def on_round(self, record: Record) -> None:
        met = {name: count for name, count in record["devices"].items() if count}
        told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in met.items())
        print(f"round {record['round']}: {record['seconds']:.1f} s; {told}", flush=True)

    def on_evaluation(self, record: Record) -> None:
        print(f"after {record['rounds']} rounds: top-1 {record['top1']:.2%}, loss {record['loss']:.4f}", flush=True)

    def on_end(self, record: Record) -> None:
        held = "verified" if record["holds"] else "NOT VERIFIED"
        print(f"finished after {record['rounds']} rounds, {held}", flush=True)
