"""The attributed method once more, slowly: plain loops over plain lists, written from the method's text alone.

No numpy in the arithmetic, no shared code with `accounting`. What it gives are the worked vectors of part B.
"""

import math

H = 3600.0
LIGHT, T0 = 0.25, 5 / 60
BASE, BASE_OWN, BASE_LOG = 6.5 / 24000, 0.05, 5.0
DOWN, DRAIN, REPAIRED, IGNORE, REPORTED = 0, 1, 2, 4, 5
HARDWARE, UNKNOWN, REASON_REPAIRED = 1, 0, 4
SILENT, RIGHT, WRONG = 0, 1, 2


def used(tasks, node, at):
    """Utilization of the node just after a moment."""
    return min(1.0, sum(t["r"] for t in tasks if t["node"] == node and t["start"] <= at < t["end"]))


def counting(tasks, node, at):
    return any(t["node"] == node and t["start"] <= at < t["end"] and t["outcome"] != SILENT for t in tasks)


def stretches(tasks, node):
    """(from, to) between neighbouring starts and ends on the node."""
    marks = sorted({x for t in tasks if t["node"] == node for x in (t["start"], t["end"])})
    return list(zip(marks, marks[1:]))


def faded_hours(a, b, as_of, half_life):
    """Integral of 2^-((as_of - t) / half_life) over a stretch, by the antiderivative; hours."""
    k = math.log(2) / half_life
    return (math.exp(-k * (as_of - b)) - math.exp(-k * (as_of - a))) / k / H


def trust(events, node, at):
    factor = 1.0
    for e in events:
        if e["node"] != node:
            continue
        if (e["kind"] == REPAIRED or e["reason"] == REASON_REPAIRED) and at < e["start"]:
            factor *= 0.5
        if e["kind"] == IGNORE and e["start"] <= at < e["end"]:
            factor = 0.0
    return factor


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def mean_used(tasks, task):
    if task["end"] <= task["start"]:
        return task["r"]
    total = 0.0
    for a, b in stretches(tasks, task["node"]):
        if a >= task["start"] and b <= task["end"]:
            total += used(tasks, task["node"], a) * (b - a)
    return round(min(1.0, total / (task["end"] - task["start"])), 9)


def breakdown(tasks, node, hours_there, threshold, overload, max_gap):
    mine = sorted((t for t in tasks if t["node"] == node), key=lambda t: (t["start"], t["end"], t["job"]))
    total = sum(t["a"] for t in mine) or 1.0
    groups, latest, open_ = [], 0.0, False
    for t in mine:
        r = mean_used(tasks, t)
        t["eta"], t["group"] = t["a"] / total * math.exp(-r), None
        if r <= threshold:
            open_ = False
            continue
        if not open_ or t["start"] - latest > max_gap * H:
            groups.append([])
            latest = -math.inf
        groups[-1].append(t)
        t["group"], latest, open_ = len(groups) - 1, max(latest, t["end"]), True
    loss = []
    for group in groups:
        eta = [t["eta"] for t in group]
        pairs = [(eta[j] - eta[i]) / (j - i) for i in range(len(eta)) for j in range(i + 1, len(eta))]
        slope = median(pairs) if len(eta) > 2 else 0.0
        mean = sum(eta) / len(eta)
        loss.append(math.exp(-slope / mean) if mean > 0 else 1.0)
    result = 0.0
    for a, b in stretches(tasks, node):
        if used(tasks, node, a) > overload:
            last = [t for t in mine if t["start"] <= a][-1]
            result += (b - a) / H * (loss[last["group"]] if last["group"] is not None else 1.0)
    return result / max(hours_there, 1.0)


def failures_of(tasks, attempts):
    """Lists of failed attempts that are one failure: same group, ended within two minutes of the first."""
    by_group = {}
    for i, a in enumerate(attempts):
        if a["outcome"] == WRONG and any(t["attempt"] == i for t in tasks):
            by_group.setdefault(a["group"], []).append(i)
    result = []
    for members in by_group.values():
        end_of = {i: next(t["end"] for t in tasks if t["attempt"] == i) for i in members}
        for i in sorted(members, key=lambda i: end_of[i]):
            if result and result[-1]["group"] == attempts[i]["group"] and end_of[i] - result[-1]["end"] <= 120:
                result[-1]["members"].append(i)
            else:
                result.append({"group": attempts[i]["group"], "members": [i], "end": end_of[i]})
    for f in result:
        mine = [t for t in tasks if t["attempt"] in f["members"]]
        f["time"] = max(t["end"] for t in mine)
        f["elapsed"] = min(t["end"] - t["start"] for t in mine) / H
        f["user"], f["work"] = attempts[f["members"][0]]["user"], attempts[f["members"][0]]["work"]
        f["culprits"] = sorted({t["node"] for t in mine if t["culprit"]})
        f["nodes"] = {}
        for t in sorted(mine, key=lambda t: t["culprit"]):
            f["nodes"][t["node"]] = t
    return result


def weight_at_end(tasks, task, threshold):
    """1 where the node was in heavy work just before the task's end, else a quarter."""
    before = 0.0
    for a, b in stretches(tasks, task["node"]):
        if b == task["end"]:
            before = used(tasks, task["node"], a)
    return 1.0 if max(before, task["r"]) > threshold else LIGHT


def event_evidence(events, failures, as_of):
    told = {}
    for f in failures:
        for node in f["culprits"]:
            told.setdefault(node, []).append(f["time"])
    chosen = []
    for e in sorted(events, key=lambda e: e["start"]):
        hard = e["kind"] == DRAIN and e["reason"] == HARDWARE
        down = e["kind"] == DOWN and e["reason"] in (HARDWARE, UNKNOWN)
        if not (hard or down or e["kind"] == REPORTED) or e["start"] > as_of:
            continue
        times = told.setdefault(e["node"], [])
        if all(abs(e["start"] - t) > 1800 and not 0 <= e["start"] - t < 86400 for t in times):
            chosen.append(e)
            times.append(e["start"])
    return chosen


def log_gamma_poisson(n, hours, mean, a):
    return math.lgamma(a + n) - math.lgamma(a) + a * math.log(a / mean) - (a + n) * math.log(a / mean + hours)


def shape_of(known, exposure):
    best, where = -math.inf, None
    busy = [i for i in range(len(known)) if exposure[i] > 0]
    mean = sum(known[i] for i in busy) / sum(exposure[i] for i in busy) if busy else 0.0
    for step in range(120):
        a = 0.05 * (20 / 0.05) ** (step / 119)
        value = -0.5 * (math.log(a / 0.23) / 0.2) ** 2
        if mean > 0:
            value += sum(log_gamma_poisson(known[i], exposure[i], mean, a) for i in busy)
        if value > best:
            best, where = value, a
    return where


def attribute(tasks, attempts, nodes, events, as_of, window_start, threshold, overload=0.9, max_gap=6.0, half_life_days=60.0):
    """hazard, charged, breakdown, capability per node; blame {(job, node): share}, own {job: share}; prior shape."""
    half_life, n = half_life_days * 86400.0, len(nodes)
    fade = lambda t: 0.5 ** ((as_of - t) / half_life)  # noqa: E731
    exposure, once, twice = [0.0] * n, 0.0, 0.0
    for i in range(n):
        for a, b in stretches(tasks, i):
            if counting(tasks, i, a):
                hours = faded_hours(a, b, as_of, half_life)
                once += hours
                twice += faded_hours(a, b, as_of, half_life / 2)
                exposure[i] += hours * (1.0 if used(tasks, i, a) > threshold else LIGHT) * trust(events, i, a)
    gain = min(2.0, max(1.0, once / twice)) if once else 1.0
    exposure = [x * gain for x in exposure]
    failures = failures_of(tasks, attempts)
    fixed = [0.0] * n
    outages = {}
    for f in failures:
        for node in f["culprits"]:
            outages.setdefault(node, []).append(f)
    for node, members in outages.items():
        members.sort(key=lambda f: f["time"])
        runs = [[members[0]]]
        for f in members[1:]:
            if f["time"] - runs[-1][0]["time"] > 600:
                runs.append([])
            runs[-1].append(f)
        for run in runs:
            for f in run:
                share = 1 / len(run) / len(f["culprits"])
                w = weight_at_end(tasks, f["nodes"][node], threshold) * fade(f["time"]) * trust(events, node, f["time"])
                fixed[node] += gain * share * w
    for e in event_evidence(events, failures, as_of):
        fixed[e["node"]] += gain * 0.5 * fade(e["start"]) * trust(events, e["node"], e["start"])
    open_failures = [f for f in failures if not f["culprits"]]
    n_work = 1 + max((a["work"] for a in attempts), default=0)
    n_user = 1 + max((a["user"] for a in attempts), default=0)
    log_hours, user_of = [0.0] * n_work, [0] * n_work
    merged = {i for f in failures for i in f["members"][1:]}
    for i, a in enumerate(attempts):
        user_of[a["work"]] = a["user"]
        mine = [t for t in tasks if t["attempt"] == i]
        first_of = {f["members"][0]: min(f["members"]) for f in failures}
        if mine and a["outcome"] != SILENT and (i not in merged or i in first_of.values()):
            if any(i in f["members"] and min(f["members"]) != i for f in failures):
                continue
            log_hours[a["work"]] += math.log1p((mine[0]["end"] - mine[0]["start"]) / H / T0) * fade(mine[0]["end"])
    alpha = shape_of(fixed, exposure)
    types = [node["gpu_type"] for node in nodes]

    def prior(charged):
        cluster = (sum(charged) + 1.0) / (sum(exposure) + 1.0 / BASE)
        if len(set(types)) == 1:
            return [cluster] * n
        means = {}
        for kind in set(types):
            members = [i for i in range(n) if types[i] == kind]
            means[kind] = (sum(charged[i] for i in members) + 5.0) / (sum(exposure[i] for i in members) + 5.0 / cluster)
        return [means[kind] for kind in types]

    mean = prior(fixed)
    hazard, rho = list(mean), [BASE_OWN] * n_work
    for _ in range(300):
        charged, own_of_work = list(fixed), [0.0] * n_work
        by_user = {}
        for f in open_failures:
            own = rho[f["work"]] / (f["elapsed"] + T0)
            total = own + sum(hazard[i] for i in f["nodes"])
            f["own"], f["blame"] = own / total, {i: hazard[i] / total for i in f["nodes"]}
            own_of_work[f["work"]] += f["own"] * fade(f["time"])
            for i, share in f["blame"].items():
                w = gain * weight_at_end(tasks, f["nodes"][i], threshold) * fade(f["time"]) * trust(events, i, f["time"])
                by_user[(i, f["user"])] = by_user.get((i, f["user"]), 0.0) + share * w
        for (i, _user), value in by_user.items():
            charged[i] += min(value, 1.5)
        mean = prior(charged)
        new = [(alpha + charged[i]) / (alpha / mean[i] + exposure[i]) for i in range(n)]
        moved = max((abs(x / y - 1) for x, y in zip(new, hazard)), default=0.0)
        hazard = new
        cluster = (sum(own_of_work) + BASE_OWN * BASE_LOG) / (sum(log_hours) + BASE_LOG)
        users = []
        for u in range(n_user):
            works = [w for w in range(n_work) if user_of[w] == u]
            users.append((sum(own_of_work[w] for w in works) + 10 * cluster) / (sum(log_hours[w] for w in works) + 10))
        rho = [(own_of_work[w] + 5 * users[user_of[w]]) / (log_hours[w] + 5) for w in range(n_work)]
        if moved <= 1e-7:
            break
    broken = []
    for i, node in enumerate(nodes):
        there = (min(node["last_seen"], as_of) - max(node["first_seen"], window_start)) / H
        broken.append(breakdown(tasks, i, there, threshold, overload, max_gap))
    return {
        "hazard": hazard, "charged": charged, "exposure": exposure, "breakdown": broken, "shape": alpha,
        "capability": [1 / hazard[i] / (1 + broken[i]) for i in range(n)],
        "blame": {(attempts[f["members"][0]]["job"], i): share for f in open_failures for i, share in f["blame"].items()},
        "own": {attempts[f["members"][0]]["job"]: f["own"] for f in open_failures},
    }  # fmt: skip
