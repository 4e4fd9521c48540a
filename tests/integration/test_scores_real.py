"""Scores from a real Slurm: a planted bad node becomes a suspect, then a lemon, and is named as who broke a job."""

import json
import os
import sqlite3
import time

import pytest

from accounting.publishing.renew import renew
from slurm_hook.common.config import Settings
from slurm_hook.published.snapshot import read_scores
from tests.sandbox import Sandbox
from tests.site import Site

pytestmark = pytest.mark.integration
USERS = ("alice", "bob", "carol")
DAY = 86400


def submit(sandbox, *args, users=USERS, count=1, seconds=0.2):
    """One-node jobs of different users and kinds, by number."""
    script = sandbox.payload(seconds)
    return [
        sandbox.sbatch("-N1", "--mem=50", "--time=10", f"--job-name=k{k}", *args, script=script, user=users[k % len(users)])
        for k in range(count)
    ]


@pytest.fixture(scope="module")
def sandbox():
    """One of its own: what other tests let die is no evidence here."""
    with Sandbox(nodes=8) as own:
        yield own


def ended(sandbox, jobs, state):
    sandbox.wait(jobs, states=[state])
    sandbox.await_windows(jobs)


@pytest.fixture(scope="module")
def lived(sandbox):
    """What happened, in order: scores of a healthy cluster; jobs of two users that die at once on one node, collected once;
    a job that the node takes down with it after a week of Xid messages, scored. Gives a dict of what was seen."""
    bad = sandbox.nodes[3]
    seen = {"bad": bad}
    with Site(sandbox, mode="avoid", settings={"history": ["first_days = 1"]}, name="scores") as site:
        seen["site"] = site
        # of other names than what dies later: a run that is submitted again stays on one side of backtest's split
        well = submit(sandbox, "--job-name=well", f"--exclude={bad}", count=9)
        ended(sandbox, well + submit(sandbox, "--job-name=well", f"--nodelist={bad}"), "COMPLETED")
        site.workhorse("refresh")
        seen["healthy"], seen["split"] = published(site), time.time()
        seen["no lemons"] = site.workhorse("lemons").stdout
        sandbox.plant(bad, 1.0, "exit")
        seen["died"] = submit(sandbox, f"--nodelist={bad}", users=USERS[:2], count=4)
        ended(sandbox, seen["died"], "FAILED")
        seen["collect"] = site.workhorse("collect").stdout
        seen["suspects"], seen["collected"] = published(site), time.time()
        site.workhorse("dispatch")  # it tells what jobs get unasked, without which nodes of several sizes aren't left out
        seen["steered"] = sandbox.sbatch("-N2", "--hold", "--wrap", "true", binary=site.sbatch)
        seen["excluded"] = sandbox.job(seen["steered"])["ExcNodeList"]
        seen["told"] = site.workhorse("lemons").stdout
        xid = site.root / "xid.jsonl"
        xid.write_text("".join(event(bad, days) for days in range(1, 8)))
        site.workhorse("import", xid)
        sandbox.plant(bad, 1.0, "down")
        seen["lost"] = submit(sandbox, f"--nodelist={bad}", "--no-requeue", users=["carol"], seconds=3)[0]
        ended(sandbox, [seen["lost"]], "NODE_FAIL")
        sandbox.unplant(bad)
        sandbox.resume(bad)
        site.workhorse("refresh")
        seen["scored"] = published(site)
        yield seen


def published(site):
    return read_scores(str(site.public), trusted_uids=[os.getuid()]).nodes


def event(node, days):
    told = {"node": node, "time": int(time.time()) - days * DAY, "kind": "drain", "source": "dcgm", "reason": "Xid 79"}
    return json.dumps(told) + "\n"


def test_a_healthy_cluster_has_neither_lemons_nor_suspects(lived):
    assert not any(n.lemon or n.suspect_until for n in lived["healthy"].values())
    assert "no lemons among 8 nodes" in lived["no lemons"]


def test_one_collect_makes_the_suspect(lived):
    bad, now = lived["bad"], lived["collected"]
    assert f"suspects, left out for an hour: {bad}" in lived["collect"]
    assert [n for n, node in lived["suspects"].items() if node.suspect_until > now] == [bad]
    assert lived["suspects"][bad].suspect_until <= now + 3600
    assert f"{bad}: suspect until" in lived["told"]
    assert not lived["suspects"][bad].lemon  # two users' jobs that die at once may be the users' own errors


def test_the_suspect_is_left_out_of_the_next_submission(lived):
    assert lived["excluded"] == lived["bad"]


def test_a_suspicion_ends_by_itself(lived):
    with sqlite3.connect(lived["site"].root / "history.db") as db:
        cluster = db.execute("SELECT name FROM clusters").fetchone()[0]
        settings = Settings({"publish.path": str(lived["site"].public)})
        assert lived["bad"] in renew(db, cluster, settings, time.time())
        assert renew(db, cluster, settings, lived["collected"] + 3601 + 600) == ()


def test_lemons_names_the_node_with_its_evidence_and_the_command(lived):
    found = json.loads(lived["site"].workhorse("lemons", "--json").stdout)["lemons"]
    assert [lemon["name"] for lemon in found] == [lived["bad"]]
    lemon = found[0]
    assert lemon["probability"] >= 0.95 and lemon["times_median"] > 3
    assert [lived["lost"], 1.0] in lemon["known_jobs"]
    assert f"known to have ended 1 job ({lived['lost']})" in lemon["words"]
    assert "; and by itself it was drained (Xid 79) 7 times, last " in lemon["words"]
    assert lemon["command"].startswith(f"scontrol update NodeName={lived['bad']} State=DRAIN Reason=")
    assert lived["scored"][lived["bad"]].lemon
    assert not any(node.lemon for name, node in lived["scored"].items() if name != lived["bad"])


def test_nothing_was_drained(lived, sandbox):
    assert "DRAIN" not in sandbox.nodestate(lived["bad"])


def test_explain_names_who_broke_a_job(lived):
    told = lived["site"].workhorse("explain", str(lived["lost"])).stdout
    assert f"job {lived['lost']}: {lived['bad']}, 100%: went down" in told
    own = lived["site"].workhorse("explain", str(lived["died"][0])).stdout
    assert f"job {lived['died'][0]}: " in own and ("the job itself" in own or "unknown" in own)


def test_backtest_splits_the_same_history(lived):
    """Trained on the healthy jobs, tested on what came after: one node caused a failure, and no word of ours says so."""
    hours = (time.time() - lived["split"]) / 3600
    found = json.loads(lived["site"].workhorse("backtest", "--train", "1h", "--test", f"{hours:.5f}h", "--json").stdout)
    assert found["failures"] == 1, found
    refused = lived["site"].workhorse("backtest", "--train", "5d", "--test", "3d", check=False)
    assert refused.returncode == 1 and "one of the two parts has no work" in refused.stderr
