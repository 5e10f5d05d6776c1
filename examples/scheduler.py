"""A scheduler's loop over curves: what a job gains by devices, against giving each job the devices it asked for.

Thirty jobs of the zoo arrive at a cluster of 16 devices. A job is its model's curve (time per step on 1, 2, 4, ... devices,
as ``tensoropt search --option profiling --json`` wrote it), the steps it takes, its arrival, and the devices it asks for. By
curves, devices are given out again at each arrival and completion: the job whose steps per second grow most, as a share and
for each device more, gets more. To change a job's devices costs nothing here. This shows how curves are read and used; it
doesn't claim to be a scheduler.

    tensoropt search zoo:vgg16 --cluster v100-2x8 --option profiling --parallelism 1,2,4,8,16 --json vgg16.json
    python examples/scheduler.py vgg16.json alexnet.json lenet5.json [--picture jobs.png]
"""

import argparse
import json
import random
from pathlib import Path

DEVICES, JOBS = 16, 30


def read_curve(file):
    """Return the model's name, and its steps per second by the number of devices."""
    value = json.loads(Path(file).read_text())
    return value["model"], {point["parallelism"]: 1e6 / point["time_us"] for point in value["curve"] if point["fits"]}


def make_jobs(curves, rng):
    """Return jobs by ascending arrival, each of 10 to 60 minutes on one device."""
    jobs, arrival_s = [], 0.0
    for number in range(JOBS):
        model, rates = rng.choice(sorted(curves.items()))
        arrival_s += rng.expovariate(1 / 60)
        asked, steps = rng.choice([count for count in rates if count <= 8]), rng.uniform(600, 3600) * rates[min(rates)]
        job = {"number": number, "model": model, "rates": rates, "arrival_s": arrival_s, "asked": asked, "left": steps}
        jobs.append(job)
    return jobs


def as_asked(jobs, running):
    """Give each job what it asked for, first come, first served; those that run go on."""
    given = {job["number"]: running[job["number"]] for job in jobs if running.get(job["number"])}
    for job in jobs:
        if job["number"] not in given:
            if sum(given.values()) + job["asked"] > DEVICES:
                break
            given[job["number"]] = job["asked"]
    return given


def by_curves(jobs, _):
    """Give devices where they pay most."""
    given = {job["number"]: 0 for job in jobs}
    while True:
        free, best = DEVICES - sum(given.values()), None
        for job in jobs:
            now = given[job["number"]]
            rate = job["rates"].get(now, 0.0)
            for count, faster in job["rates"].items():
                if now < count <= now + free and faster > rate:
                    # The first devices of a job come before more of others': it has no rate to gain a share of.
                    gain = (faster / rate - 1 if rate else 1e9 - job["arrival_s"]) / (count - now)
                    best = max(best or (0.0,), (gain, job["number"], count))
        if best is None:
            return given
        given[best[1]] = best[2]


def simulate(jobs, policy):
    """Return the seconds from each job's arrival to its completion, and (time, devices in use) at each change."""
    waiting, present, running, now, done, used = [dict(job) for job in jobs], [], {}, 0.0, {}, []
    while waiting or present:
        running = policy(present, running)
        used.append((now, sum(running.values())))
        rates = {job["number"]: job["rates"].get(running.get(job["number"], 0), 0.0) for job in present}
        ends = [now + job["left"] / rates[job["number"]] for job in present if rates[job["number"]]]
        until = min(ends + [job["arrival_s"] for job in waiting[:1]])
        for job in present:
            job["left"] -= (until - now) * rates[job["number"]]
        for job in [job for job in present if job["left"] < 1e-6 * job["rates"][min(job["rates"])]]:
            done[job["number"]] = until - job["arrival_s"]
            present.remove(job)
        now = until
        while waiting and waiting[0]["arrival_s"] <= now:
            present.append(waiting.pop(0))
    return done, [*used, (now, 0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="+", metavar="CURVE.json")
    parser.add_argument("--picture", metavar="FILE.png")
    arguments = parser.parse_args()
    jobs = make_jobs(dict(map(read_curve, arguments.curves)), random.Random(0))
    found = {"as asked": simulate(jobs, as_asked), "by curves": simulate(jobs, by_curves)}
    print(f"{'policy':10s} {'mean completion (min)':>22s} {'longest (min)':>14s} {'all done after (min)':>21s}")
    for name, (done, used) in found.items():
        mean, longest = sum(done.values()) / len(done) / 60, max(done.values()) / 60
        print(f"{name:10s} {mean:22.1f} {longest:14.1f} {used[-1][0] / 60:21.1f}")
    if arguments.picture:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        for name, (done, _) in found.items():
            minutes = sorted(seconds / 60 for seconds in done.values())
            plt.step(minutes, [(i + 1) / len(minutes) for i in range(len(minutes))], where="post", label=name)
        plt.xlabel("completion time (min)")
        plt.ylabel("share of jobs")
        plt.legend()
        plt.savefig(arguments.picture)


if __name__ == "__main__":
    main()
