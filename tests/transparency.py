# ruff: noqa: E501 - tables
"""sbatch calls of every kind, and what became of them: for comparing a call with and without the wrapper."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hook.slurm import request
from tests.sandbox import Sandbox

DATA = Path(__file__).parent / "data" / "sbatch_edge_cases.jsonl"
SCRIPT = "#!/bin/bash\n#SBATCH -N2 -t 5\ntrue\n"
# of `scontrol show job`: what differs between two submissions of the same call
VOLATILE = {
    "JobId", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "LastSchedEval", "Priority", "SuspendTime",
    "HetJobIdSet", "ArrayJobId", "HetJobId", "Reason", "RunTime", "Deadline", "SubmitLine", "Scheduler", "SiteFactor",
    "PreSusTime",
}  # fmt: skip
# what the wrapper may change
OURS = {"ExcNodeList", "Comment", "ReqNodeList"}
_FIELD = re.compile(r"(?:^| )([A-Za-z][\w/:.]*)=")


@dataclass(frozen=True)
class Case:
    """One call. argv: `@` stands for the script's path; shell: a bash command instead, with $SBATCH and $SCRIPT."""

    name: str
    argv: tuple[str, ...] = ()
    script: bytes | None = SCRIPT.encode()
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = "null"  # null, pipe, file, closed, empty
    shell: str = ""
    quits: bool | None = False  # ends without a job in both; None: some versions of Slurm take it


@dataclass(frozen=True)
class Outcome:
    """What a call did: code, output with the job's number taken out, the job's fields and its script."""

    code: int
    stdout: str
    stderr: str
    jobs: tuple[Mapping[str, str], ...]
    batch: str


def recorded() -> list[Case]:
    """The recorded edge cases, with the sandbox's node and partition names."""
    cases = []
    for line in DATA.read_text().splitlines():
        raw = json.loads(line)
        if raw["case"] == "wait-script":
            continue  # waits for its job, which doesn't start here; see the tests of --wait
        script = None if raw["script"] is None else _named(raw["script"]).encode()
        if raw["case"] == "latin1-name-posix":
            script = raw["script"].encode("latin-1")
        argv = tuple(_named(word) for word in raw["argv"])
        if raw["case"] == "exclude-long":
            argv = ("--exclude=" + ",".join(f"node{n:05}" for n in range(0, 9000, 3)), "@")
        stdin = "null"
        if raw["stdin"]:
            stdin, script = "pipe", SCRIPT.encode()
        cases.append(Case(raw["case"], argv, script, {k: _named(v) for k, v in raw["env"].items()}, stdin))
    return cases


def _named(text: str) -> str:
    text = re.sub(r"(?<![A-Za-z])((?:-[xw])?)n(?=[\[\d])", r"\1gpu0", text)
    text = re.sub(r"(-p |partition=)[ac]\b", r"\1llm", re.sub(r"(-p |partition=)b\b", r"\1small", text))
    return {"c": "llm", "d": "small", "e": "llm", "b": "small"}.get(text, text)


def more() -> list[Case]:
    """Calls that users and tools make, beyond what directives can hold."""
    wrap = ("--wrap=hostname",)
    nul = b"#!/bin/bash\n#SBATCH -N2\ncat <<X\n\0\xff\xfe\nX\n"
    big = b"#!/bin/bash\n#SBATCH -N3\n" + b": " + b"x" * 200_000 + b"\ntrue"
    return [
        Case("stdin-pipe", (), stdin="pipe"),
        Case("stdin-pipe-args-dash", ("-N2",), stdin="pipe"),
        Case("stdin-file", ("-N2",), stdin="file"),
        Case("stdin-empty", ("-N2",), stdin="empty", quits=True),
        Case("stdin-null", ("-N2",), script=None, quits=True),
        Case("stdin-closed", ("-N2",), script=None, stdin="closed", quits=True),
        Case("stdin-pipe-no-shebang", ("-N2",), b"echo hi\n", stdin="pipe", quits=True),
        Case("stdin-pipe-no-newline", ("-N2",), b"#!/bin/sh\n#SBATCH -x gpu03\ntrue", stdin="pipe"),
        Case("stdin-pipe-nul", ("-N2",), nul, stdin="pipe", quits=True),
        Case("stdin-file-nul", ("-N2",), nul, stdin="file", quits=True),
        Case("stdin-pipe-big", (), big, stdin="pipe"),
        Case("stdin-file-big", (), big, stdin="file"),
        Case("stdin-heredoc", shell='"$SBATCH" -N2 <<EOF\n#!/bin/bash\n#SBATCH -x gpu05\necho \\$HOME\nEOF\n'),
        Case("stdin-herestring", shell='"$SBATCH" -N2 <<<"$(cat "$SCRIPT")"'),
        Case("stdin-cat", shell='cat "$SCRIPT" | "$SBATCH" -N2'),
        Case("stdin-half-read", shell='{ read -r x; "$SBATCH" -N2; } <"$SCRIPT"', quits=True),
        Case("stdin-left-for-next", shell='{ "$SBATCH" -N2 --wrap=true; cat; } <"$SCRIPT"'),
        Case("stdin-eaten", shell='{ "$SBATCH" -N2; cat; } <"$SCRIPT"'),
        Case("dev-stdin", shell='"$SBATCH" -N2 /dev/stdin <"$SCRIPT"'),
        Case("process-substitution", shell='"$SBATCH" -N2 <(cat "$SCRIPT")'),
        Case("process-substitution-stdin", shell='"$SBATCH" -N2 < <(cat "$SCRIPT")'),
        Case("fifo", shell='rm -f "$HOME/f"; mkfifo "$HOME/f"; cat "$SCRIPT" >"$HOME/f" & "$SBATCH" -N2 "$HOME/f"'),
        Case("script-nul", ("-N2", "@"), nul, quits=True),
        Case("script-big", ("@",), big),
        Case("script-missing", ("-N2", "/nowhere/job.sh"), quits=True),
        Case("script-folder", ("-N2", "/tmp"), quits=True),
        Case("script-in-path", shell='cp "$SCRIPT" "$HOME/inpath.sh"; PATH=$HOME:$PATH "$SBATCH" -N2 inpath.sh'),
        Case("script-here", shell='cd "$(dirname "$SCRIPT")" && "$SBATCH" -N2 "$(basename "$SCRIPT")"'),
        Case("script-blank-in-name", shell='cp "$SCRIPT" "$HOME/a b.sh"; "$SBATCH" -N2 "$HOME/a b.sh" "x y"'),
        Case("script-dash-name", shell='cd "$HOME"; cp "$SCRIPT" -- -n.sh; "$SBATCH" -N2 -- -n.sh'),
        Case("script-newline-argument", ("-N2", "@", "a\nb", "", "*", "$HOME", "'\"")),
        Case("script-options-after", ("-N2", "@", "-N9", "--exclude=gpu01", "--nodes", "9")),
        Case("script-large-argument", ("-N2", "@", "x" * 100_000)),
        Case("script-colon-argument", ("-N2", "@", ":")),
        Case("wrap-plain", ("-N2", *wrap)),
        Case("wrap-separate", ("-N2", "--wrap", "echo 'a b' \"$HOME\" ; #x")),
        Case("wrap-shortened", ("-N2", "--wra", "hostname")),
        Case("wrap-newline", ("-N2", "--wrap=echo a\necho b")),
        Case("wrap-with-stdin", ("-N2", *wrap), stdin="pipe"),
        Case("wrap-empty", ("-N2", "--wrap=")),
        Case("exclude-after-ours", ("-N2", "-x", "gpu03", "@")),
        Case("exclude-with-dashes", ("-N2", "-x", "gpu03", "--", "@")),
        Case("exclude-wrap", ("-N2", "-x", "gpu[03-04]", *wrap)),
        Case("exclude-stdin", ("-N2", "-x", "gpu03"), stdin="pipe"),
        Case("exclude-unknown-node", ("-N2", "-x", "nowhere1", "@"), quits=True),
        Case("comment-own", ("-N2", "--comment=mine", "@")),
        Case("comment-own-hostile", ("-N2", "--comment=$(id);`id`\x1b[31m'\"|", "@")),
        Case("comment-empty", ("-N2", "--comment=", "@")),
        Case("comment-mark-asked", ("-N2", "--comment=wh=1;p=llama;g=eval;d=100", "@")),
        Case("comment-mark-decided", ("-N2", "--comment=wh=1;m=avoid;s=x", "@")),
        Case("name-hostile", ("-N2", "-J", "x;DROP TABLE a;--<script>\x1b]0;x\x07%n", "@")),
        Case("name-newline", ("-N2", "-J", "a\nsbatch: nodes               : 1", "@")),
        Case("name-mimics-block", ("-N4", "-J", f"x\n{request.RULE}\n{request.CLOSING}", "@")),
        Case("grouped-letters", ("-HN2", "@")),
        Case("grouped-letters-value", ("-QN", "2", "@")),
        Case("shortened-nodes", ("--nodes", "2", "--exclud", "gpu02", "@")),
        Case("nodes-range", ("-N2-4", "@")),
        Case("nodes-two-values", ("-N2", "--nodes=3", "@")),
        Case("nodes-min-only", ("--nodes=2-", "@"), quits=True),
        Case("tasks-without-nodes", ("-n", "64", "--mem-per-cpu=100", "@"), b"#!/bin/sh\ntrue\n"),
        Case("gpus-without-nodes", ("--gpus=12", "@"), b"#!/bin/sh\ntrue\n"),
        Case("gpus-per-task", ("-n12", "--gpus-per-task=1", "@"), b"#!/bin/sh\ntrue\n"),
        Case("exclusive", ("-N2", "--exclusive", "--mem=0", "@")),
        Case("too-many-nodes", ("-N99", "@"), quits=None),
        Case("impossible-memory", ("-N2", "--mem=99999G", "@"), quits=None),
        Case("bad-option", ("-N2", "--no-such-option", "@"), quits=True),
        Case("bad-option-value", ("-N2", "--no-such=3", "@"), quits=True),
        Case("account-that-nobody-enforces", ("-N2", "-A", "nobody", "@")),
        Case("bad-partition", ("-N2", "-p", "nowhere", "@"), quits=True),
        Case("bad-time", ("-N2", "-t", "soon", "@"), quits=True),
        Case("bad-constraint", ("-N2", "-C", "nosuch", "@"), quits=True),
        Case("parsable", ("--parsable", "-N2", "@")),
        Case("parsable-cluster", ("--parsable", "-M", "sandbox", "-N2", "@")),
        Case("cluster", ("-M", "sandbox", "-N2", "@")),
        Case("cluster-long", ("--clusters=sandbox", "-N2", "@")),
        Case("cluster-in-script", ("@",), b"#!/bin/sh\n#SBATCH -M sandbox -N2\ntrue\n"),
        Case("cluster-environment", ("-N2", "@"), env={"SBATCH_CLUSTERS": "sandbox"}),
        Case("quiet", ("-Q", "-N2", "@")),
        Case("quiet-grouped", ("-HQN2", "@")),
        Case("quiet-in-script", ("-N2", "@"), b"#!/bin/sh\n#SBATCH -N2 --quiet\ntrue\n"),
        Case("verbose", ("-v", "-N2", "@")),
        Case("test-only", ("--test-only", "-N2", "@")),
        Case("test-only-in-script", ("-N2", "@"), b"#!/bin/sh\n#SBATCH --test-only\ntrue\n"),
        Case("test-only-shortened", ("--test", "-N2", "@")),
        Case("version", ("--version",), quits=True),
        Case("help", ("--help",), quits=True),
        Case("usage", ("--usage",), quits=True),
        Case("no-arguments", (), script=None, quits=True),
        Case("array", ("-a", "0-3%2", "-N2", "@")),
        Case("array-of-one", ("--array=5", "-N4", "@")),
        Case("het", ("-N1", ":", "-N2", "@"), b"#!/bin/sh\ntrue\n"),
        Case("het-wrap", ("-N2", ":", "-N2", "--wrap=true")),
        Case("het-exclude-first", ("-N2", "-x", "gpu03", ":", "-N2", "@"), b"#!/bin/sh\ntrue\n"),
        Case("het-exclude-second", ("-N2", ":", "-N2", "-x", "gpu03", "@"), b"#!/bin/sh\ntrue\n"),
        Case("het-script", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3\ntrue\n"),
        Case("het-comment-of-the-second", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N2 --comment=mine\ntrue\n"),
        Case("het-stdin", (), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3\ntrue\n", stdin="pipe"),
        Case("several-partitions", ("-p", "llm,small", "-N2", "@")),
        Case("reservation-unknown", ("--reservation=x", "-N2", "@"), quits=True),
        Case("nodelist", ("-N2", "-w", "gpu[03-04]", "@")),
        Case("nodelist-file", shell='printf "gpu03\\ngpu04\\n" >"$HOME/hosts"; "$SBATCH" -N2 -w "$HOME/hosts" "$SCRIPT"'),
        Case("nodefile", shell='printf "gpu03\\ngpu04\\n" >"$HOME/hosts"; "$SBATCH" -N2 -F "$HOME/hosts" "$SCRIPT"'),
        Case("hostfile", shell='printf "gpu03\\ngpu04\\n" >"$HOME/hosts"; SLURM_HOSTFILE="$HOME/hosts" "$SBATCH" --wrap=true'),
        Case("dependency-singleton", ("-d", "singleton", "-N2", "@")),
        Case("dependency-unknown", ("-d", "afterok:999999", "-N2", "@"), quits=None),
        Case("begin", ("-b", "now+1hour", "-N2", "@")),
        Case("environment-options", ("@",), b"#!/bin/sh\ntrue\n", {"SBATCH_GPUS_PER_NODE": "2", "SBATCH_TIMELIMIT": "7"}),
        Case("environment-gpus", ("@",), b"#!/bin/sh\ntrue\n", {"SBATCH_GPUS": "16"}),
        Case("environment-name", ("-N2", "@"), env={"SBATCH_JOB_NAME": "from env"}),
        Case("environment-odd", ("-N2", "@"), env={"_wh_REAL": "/bin/false", "PYTHONPATH": "/x", "PYTHONHOME": "/x"}),
        Case("environment-shell", ("-N2", "@"), env={"BASH_ENV": "/x", "ENV": "/x", "IFS": "N", "POSIXLY_CORRECT": "1"}),
        Case("environment-functions", ("-N2", "@"), env={"BASH_FUNC_exec%%": "() { echo no; }", "BASH_FUNC_read%%": "() { :; }"}),
        Case("environment-mode-off", ("-N2", "@"), env={"WORKHORSE_MODE": "off"}),
        Case("export-none", ("--export=NONE", "-N2", "@")),
        Case("export-values", ("--export=ALL,A=1,B=x y", "-N2", "@"), env={"A": "0"}),
        Case("directive", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#WORKHORSE stage=pretrain pipeline=p1 checkpoint=30\ntrue\n"),
        Case("directive-wrong", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#WORKHORSE demnd=1 stage=\x1b[31m demand=x\ntrue\n"),
        Case("directive-off", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#WORKHORSE steer=off\ntrue\n"),
        Case("directive-demand", ("@",), b"#!/bin/sh\n#WORKHORSE demand=700G\ntrue\n"),
        Case("wait-refused", ("--wait", "-p", "nowhere", "@"), quits=True),
        Case("chdir", ("-D", "/tmp", "-N2", "-o", "x.out", "@")),
        # what parsers of command lines and directives trip over
        Case("constraint-or", ("-N2", "-C", "fast|slow", "@")),
        Case("constraint-and-in-script", ("@",), b'#!/bin/sh\n#SBATCH -N2 --constraint="fast&slow"\ntrue\n'),
        Case("constraint-count", ("-N2", "--constraint=[fast*1&slow*1]", "@")),
        Case("constraint-a-directive", ("-N2", "-C", "#SBATCH", "@"), quits=True),
        Case("repeated-export", ("-N2", "--export=A", "--export=B=2", "@"), env={"A": "1"}),
        Case("repeated-everything", ("-N9", "-xgpu01", "-Ja", "-N2", "-xgpu02", "-Jb", "@"), b"#!/bin/sh\n#SBATCH -N7 -Jc -xgpu05\ntrue\n"),
        Case("exclude-of-two-lines", ("-N2", "@"), b"#!/bin/sh\n#SBATCH -x gpu05\n#SBATCH --exclude gpu06\ntrue\n"),
        Case("exclude-ours-already", ("-N2", "-x", "gpu04,gpu09,gpu[09-10]", "@")),
        Case("exclude-all-but", ("-N2", "-x", "gpu[01-14]", "@")),
        Case("exclude-file", shell='printf "gpu03,gpu05\ngpu[06-07]" >"$HOME/hosts"; "$SBATCH" -N2 -x "$HOME/hosts" "$SCRIPT"'),
        Case("exclude-file-with-counts", shell='printf "gpu03*2\n" >"$HOME/hosts"; "$SBATCH" -N2 -x "$HOME/hosts" "$SCRIPT"', quits=None),
        Case("exclude-file-in-script", shell='cd "$HOME"; echo gpu05 >hosts; printf "#!/bin/sh\n#SBATCH -N2 -x ./hosts\n" | "$SBATCH"'),
        Case("exclude-blanks", ("-N2", "-x", " gpu03 gpu05\tgpu[06-07] ", "@")),
        Case("exclude-blanks-in-script", ("@",), b"#!/bin/sh\n#SBATCH -N2 -x 'gpu03 gpu05'\ntrue\n"),
        Case("exclude-line-break", ("-N2", "-x", "gpu03\ngpu05", "@"), quits=True),
        Case("exclude-too-many", ("-N2", "--exclude=gpu[0-65536]", "@"), quits=None),
        *(
            Case(f"exclude-unknown-{i}", ("-N2", f"--exclude={names}", "@"), quits=None)
            for i, names in enumerate(("GPU01", "all", "gpu[001]", "gpu01:4", "zz1,gpu01", "gpu01,zz1", "A1,gpu[01-02]"))
        ),
        Case("exclude-blank-in-brackets", ("-N2", "--exclude=gpu[01, 02]", "@"), quits=None),
        Case("exclude-none-assigned", ("-N2", "--exclude=None assigned", "@"), quits=None),
        Case("nodelist-longer", ("-N2", "-w", "gpu[05-08]", "@"), quits=None),
        Case("nodelist-braces", ("-N2", "-w", "{gpu05}", "@"), quits=None),
        Case("byte-order-mark", ("-N2", "@"), b"\xef\xbb\xbf#!/bin/sh\ntrue\n", quits=True),
        Case("blank-before-interpreter", ("-N2", "@"), b"\n#!/bin/sh\ntrue\n", quits=True),
        Case("clusters-in-script", ("@",), b"#!/bin/sh\n#SBATCH -N2 --clusters=sandbox\ntrue\n"),
        Case("clusters-environment", ("-N2", "@"), env={"SLURM_CLUSTERS": "sandbox"}),
        Case("ignore-pbs", ("--ignore-pbs", "@"), b"#!/bin/sh\n#PBS -l nodes=2\ntrue\n"),
        Case("memory-per-gpu", ("-N2", "--gpus-per-node=2", "--mem-per-gpu=100", "@")),
        Case("memory-environment", ("-N2", "@"), env={"SBATCH_MEM_PER_NODE": "100", "SLURM_MEM_PER_CPU": "50"}),
        Case("exclusive-user", ("-N2", "--exclusive=user", "@")),
        Case("exclusive-mcs", ("-N2", "--exclusive=mcs", "@"), quits=None),
        Case("exclusive-environment", ("-N2", "@"), env={"SBATCH_EXCLUSIVE": "user"}),
        Case("het-exclude-of-the-scripts-second", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3 -x gpu05\ntrue\n"),
        Case("het-exclude-over-both", ("-x", "gpu06", "@"), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3 -x gpu05\ntrue\n"),
        Case("het-needs-all", ("@",), b"#!/bin/sh\n#SBATCH -N2\n#SBATCH packjob\n#SBATCH -N14\ntrue\n"),
        Case("uncommon", ("--contiguous", "--spread-job", "-N2", "--switches=1@5", "--requeue", "@")),
        Case("prefer", ("-N2", "--use-min-nodes", "--wait-all-nodes=1", "--kill-on-invalid-dep=yes", "--signal=B:USR1@60", "@")),
    ]  # fmt: skip


# each holds a list of nodes that can be read only once
ONCE = "<(echo gpu03,gpu05)"
ONCE_FORMS = (
    "-w {}", "-w{}", "-Hw{}", "-HQw {}", "--nodelist={}", "--nodelist {}", "--nodel={}", "--nodel {}", "-F {}", "-F{}", "--nodefile={}",
    "--nodef {}", "-x {}", "-x{}", "-Hx{}", "--exclude={}", "--exclude {}", "--exclud={}", "-J a -x {}", "-x gpu01 -x {}",
)  # fmt: skip
FIFO = 'rm -f "$HOME/f"; mkfifo "$HOME/f"; timeout 20 sh -c "echo gpu03,gpu05 >$HOME/f" & '


def once() -> list[Case]:
    """Lists that sbatch reads from what can be read only once."""
    pipes = {
        "fd": f'"$SBATCH" -N2 -x /dev/fd/9 "$SCRIPT" 9< {ONCE}',
        "proc-fd": f'"$SBATCH" -N2 -w /proc/self/fd/9 "$SCRIPT" 9< {ONCE}',
        "stdin": 'echo gpu03,gpu05 | "$SBATCH" -N2 -x /dev/stdin "$SCRIPT"',
        "stdin-file": 'echo gpu03,gpu05 >"$HOME/h"; "$SBATCH" -N2 -w /dev/stdin "$SCRIPT" <"$HOME/h"',
        "stdin-link": 'ln -sf /dev/stdin "$HOME/l"; echo gpu03,gpu05 | "$SBATCH" -N2 -x "$HOME/l" "$SCRIPT"',
        "stdin-wrap": 'echo gpu03,gpu05 | "$SBATCH" -N2 --exclude=/proc/self/fd/0 --wrap=true',
        "fifo": f'{FIFO} "$SBATCH" -N2 -x "$HOME/f" "$SCRIPT"',
        "fifo-here": f'{FIFO} cd "$HOME"; "$SBATCH" -N2 -F f "$SCRIPT"',
        "fifo-link": f'{FIFO} ln -sf f "$HOME/l"; "$SBATCH" -N2 --nodelist="$HOME/l" "$SCRIPT"',
        "fifo-hostfile": f'{FIFO} SLURM_HOSTFILE="$HOME/f" "$SBATCH" -N2 -m arbitrary "$SCRIPT"',
        "fifo-directive": f'{FIFO} printf "#!/bin/sh\n#SBATCH -N2 --exclud=\'$HOME/f\'\n" >"$HOME/j"; "$SBATCH" "$HOME/j"',
        "fifo-directive-stdin": f'{FIFO} printf "#!/bin/sh\n#SBATCH -N2 -Hx$HOME/f\n" | "$SBATCH"',
        "fifo-directive-in-path": f'{FIFO} printf "#!/bin/sh\n#SBATCH -N2 -x $HOME/f\n" >"$HOME/j"; PATH=$PATH:$HOME "$SBATCH" j',
        "pipe-directive": f'printf "#!/bin/sh\n#SBATCH -w /dev/fd/9\n" >"$HOME/j"; "$SBATCH" -N2 "$HOME/j" 9< {ONCE}',
        "script-fifo-in-path": 'rm -f "$HOME/s"; mkfifo "$HOME/s"; timeout 20 cat "$SCRIPT" >"$HOME/s" & PATH=$PATH:$HOME "$SBATCH" -N2 s',
        "environment": f'"$SBATCH" -N2 --export-file={ONCE} "$SCRIPT"',
    }  # fmt: skip
    forms = {str(i): f'"$SBATCH" -N2 {form.format(ONCE)} "$SCRIPT"' for i, form in enumerate(ONCE_FORMS)}
    return [Case(f"once-{name}", shell=shell) for name, shell in {**forms, **pipes}.items()]


DEPENDENCY = "afterok:1:2?afterany:3"  # as recorded; what became of the jobs 1, 2 and 3 Slurm forgets one day


class Runner:
    """Makes calls as an ordinary user of a sandbox and takes down what became of them."""

    def __init__(self, sandbox: Sandbox, folder: Path, waiting: Sequence[int] = (), user: str = "alice") -> None:
        """waiting: jobs that don't start, on which those may depend that name the jobs 1, 2 and 3."""
        self.sandbox, self.folder, self.user = sandbox, folder, user
        self._dependency = "afterok:{}:{}?afterany:{}".format(*waiting) if waiting else DEPENDENCY
        self.prefix, self.who = sandbox._as_user(user)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)

    def script(self, case: Case) -> Path:
        """The case's script, at the same path in every run."""
        path = self.folder / f"{case.name}.sh"
        if case.script is not None and not path.exists():
            path.write_bytes(case.script.replace(DEPENDENCY.encode(), self._dependency.encode()))
            path.chmod(0o755)
        hosts = self.folder / "hostfile"
        if not hosts.exists():
            hosts.write_text("gpu03\ngpu01,gpu02\n")
        return path

    def run(self, case: Case, sbatch: str) -> Outcome:
        """One call with this sbatch."""
        path = self.script(case)
        words = [w.replace("/tmp/hostfile", str(self.folder / "hostfile")) for w in case.argv]
        argv = [sbatch, *(str(path) if word == "@" else word for word in words)]
        if case.shell:
            argv = ["bash", "-c", case.shell]
        if case.stdin == "closed":
            argv = ["bash", "-c", 'exec "$@" <&-', "bash", *argv]
        env = {**self.sandbox.env, **self.who, "SBATCH": sbatch, "SCRIPT": str(path), **dict(case.env)}
        if "SLURM_HOSTFILE" in case.env:
            env["SLURM_HOSTFILE"] = str(self.folder / "hostfile")
        text = b"" if case.stdin == "empty" else case.script or b""
        with open(path if case.stdin == "file" else os.devnull, "rb") as file:
            how: dict[str, Any] = {"input": text} if case.stdin in ("pipe", "empty") else {"stdin": file}
            done = subprocess.run(
                [*self.prefix, *argv], capture_output=True, env=env, cwd=self.folder, timeout=60, check=False, **how
            )
        return self._outcome(done, sbatch)

    def _outcome(self, done: subprocess.CompletedProcess[bytes], sbatch: str) -> Outcome:
        out, err = done.stdout.decode("latin-1"), done.stderr.decode("latin-1")
        found = re.search(r"(?m)^(?:Submitted batch job )?(\d+)", out) if done.returncode == 0 else None
        number = found[1] if found else ""
        if done.returncode == 0 and not out and not found:  # --quiet prints no number
            listed = self.sandbox.run(["squeue", "-h", "-u", self.user, "-o", "%F"]).stdout.split()
            number = max(listed, key=int, default="")
        jobs: tuple[Mapping[str, str], ...] = ()
        batch = ""
        if number:
            shown = self.sandbox.run(["scontrol", "-o", "show", "job", number], check=False).stdout
            jobs = tuple(_fields(line.replace("\n", "\\n"), number) for line in re.split(r"\n(?=JobId=)", shown) if line.strip())
            batch = self.sandbox.run(["scontrol", "write", "batch_script", number, "-"], check=False).stdout
            self.sandbox.run(["scancel", number], check=False)
        clean = [re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", _without(text, number)) for text in (out, err)]
        return Outcome(done.returncode, clean[0], re.sub(r"\bJob \d+ to start", "Job N to start", clean[1]), jobs, batch)


def _without(text: str, number: str) -> str:
    return re.sub(rf"\b{number}\b", "N", text) if number else text


def _fields(line: str, number: str) -> dict[str, str]:
    marks = list(_FIELD.finditer(line))
    ends = [m.start() for m in marks[1:]] + [len(line)]
    offset = int(line.partition(" ")[0][6:]) - int(number)
    found = {m[1]: line[m.end() : end] for m, end in zip(marks, ends, strict=True)}
    ids = rf"(?<!\d)({int(number) + offset}|{number})(?!\d)"
    found = {k: re.sub(ids, "N", v.rsplit("/", 1)[-1]) if k in ("StdOut", "StdErr") else v for k, v in found.items()}
    names = {key: value.strip() for key, value in found.items()}
    return {key: value for key, value in names.items() if key not in VOLATILE}
