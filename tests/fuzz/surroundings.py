# ruff: noqa: E501 - tables
"""Draws what a call has around it: its script and how sbatch gets that, environment, limits, descriptors."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tests.fuzz.call import Part

if TYPE_CHECKING:
    from tests.fuzz.making import Maker

FIRST = (
    "#!/bin/sh\\n",
    "#!/bin/bash\\n",
    "#!/bin/bash -l\\n",
    "#!/bin/sh\\r\\n",
    "\\n",
    "\\xef\\xbb\\xbf#!/bin/sh\\n",
    "echo\\n",
    "#! /bin/sh\\n",
)
LINES = (
    "#SBATCH -N2\\n", "#SBATCH --nodes=3\\n", "#SBATCH -x gpu05\\n", "#SBATCH --exclude=gpu05\\n", "\\n", "# a comment\\n", "#SBATCH -t 5\\n",
    "#SBATCH --job-name=a\"b c\"d\\n", "#SBATCH --comment='a b'\\n", "#SBATCH --comment=a#b --exclude=gpu01\\n", "#SBATCH -N2 # it's\\n",
    "#SBATCH-N2\\n", "#SLURM -N2\\n", "#PBS -l nodes=2\\n", "#PBS -N x\\n", "##SBATCH -N3\\n", " #SBATCH -N3\\n", "#SBATCH\\t-N2\\n",
    "#SBATCH hetjob\\n", "#SBATCH packjob\\n#SBATCH -N2\\n", "#WORKHORSE stage=pretrain pipeline=p1\\n", "#WORKHORSE steer=off\\n",
    "#WORKHORSE demand=700G\\n", "#WORKHORSE demnd=1 stage=x\\x1b\\n", "#SBATCH --exclud=gpu02 --nodel=gpu03\\n", "#SBATCH -N2 -Q\\n",
    "#SBATCH -v\\n", "#SBATCH --gpus=12\\n", "#SBATCH --gres=gpu:2\\n", "#SBATCH --mem=100\\n", "#SBATCH --constraint=\"fast|slow\"\\n",
    "#SBATCH -N2\\r\\n", "#SBATCH --wrap=true\\n", "#SBATCH -N2 :\\n", "#SBATCH --job-name=don't\\n", "#SBATCH -N2 stray\\n", "#SBATCH -J a\\ b\\n",
    "#SBATCH --test-only\\n", "#SBATCH --parsable\\n", "#SBATCH -M sandbox\\n", "#SBATCH --no-such=1\\n", "#SBATCH -H\\n", "#SBATCH\\n",
    "#SBATCH --export=NONE\\n", "#SBATCH -a 0-3\\n", "#SBATCH -w gpu03,gpu05\\n", "#SBATCH -F ./hosts\\n", "#SBATCH -x ./hosts\\n",
    "#SBATCH -w /dev/fd/40\\n", "#SBATCH -x $PWD/f\\n", "#SBATCH --exclusive\\n", "#SBATCH --node=2\\n", "echo early\\n", "#SBATCH -n8\\n",
    "#SBATCH -J llama\\n", "#SBATCH --comment=\\n", "#SBATCH --exclude=\\n", "#SBATCH \"-N2\"\\n", "#SBATCH -N '2' --hold\\n",
    "#BSUB -n 4\\n", "#SBATCH --nodes 2 --exclude gpu02\\n", ":\\n", "\\0\\n", "\\xff\\xfe\\n", "#SBATCH -p small\\n",
)  # fmt: skip
LAST = ("true\\n", "true", "hostname\\n", "cat <<X\\n$HOME\\nX\\n", "sleep 1\\nexit 3\\n", "\\0\\n", "\\xe9\\n")
LONG = ("\"$(printf '# %01000d\\\\n' {1..30})\"", "\"$(printf ': %0300000d\\\\n' 1)\"", "\"$(printf '#%070000d\\\\n' 1)\"")
SHELLS = (
    "LC_ALL=xx_YY.UTF-8", "LANG=xx_YY", "FUNCNEST=1", "POSIXLY_CORRECT=1", "BASH_ENV=/nowhere", "ENV=/nowhere", "IFS=N", "SHELLOPTS=xtrace",
    "BASHOPTS=extglob", "SHELLOPTS=nounset:errexit", "'BASH_FUNC_exec%%=() { echo no; }'", "'BASH_FUNC_read%%=() { :; }'",
    "'BASH_FUNC_module%%=() { eval x; }'", "'BASH_FUNC_[%%=() { return 1; }'", "'BASH_FUNC_x%%=() { broken'", "PS4=x", "OPTIND=9", "OPTERR=x",
    "SHLVL=x", "SHLVL=999", "SHLVL=1001", "-u SHLVL", "PWD=/nowhere", "OLDPWD=/nowhere", "-u PWD", "RANDOM=1", "SECONDS=1", "UID=0", "EUID=0",
    "BASH_VERSION=3", "BASH_COMPAT=3.1", "_=x", "PPID=1", "LINENO=3", "HISTFILE=x", "TMPDIR=/nowhere", "TMOUT=1", "GLOBIGNORE='*'",
    "CDPATH=/", "COLUMNS=1", "PROMPT_COMMAND=false", "BASH_XTRACEFD=1", "TIMEFORMAT=x", "GCONV_PATH=/x", "LC_CTYPE=C", "LC_ALL=C", "-u LC_ALL",
    "BASH_LOADABLES_PATH=/x", "EXECIGNORE='*'", "POSIX_PEDANTIC=1", "BASH_ARGV0=x", "DIRSTACK=/", "GROUPS=1", "PIPESTATUS=1", "FIGNORE=x",
)  # fmt: skip
SLURMS = (
    "SBATCH_JOB_NAME=from-env", "SBATCH_COMMENT=x", "SBATCH_COMMENT='wh=1;p=a'", "SBATCH_GPUS=16", "SBATCH_GPUS_PER_NODE=2",
    "SBATCH_GRES=gpu:2", "SBATCH_TIMELIMIT=7", "SBATCH_PARTITION=small", "SBATCH_EXCLUSIVE=user", "SBATCH_CLUSTERS=sandbox",
    "SLURM_CLUSTERS=sandbox", "SLURM_HOSTFILE=$PWD/hosts", "SLURM_HOSTFILE=$PWD/f", "SBATCH_DEBUG=1", "SBATCH_CONSTRAINT=fast", "SBATCH_NO_REQUEUE=1",
    "SBATCH_MEM_PER_NODE=100", "SLURM_MEM_PER_CPU=50", "SBATCH_EXPORT=NONE", "SBATCH_IGNORE_PBS=1", "SBATCH_ARRAY_INX=0-1",
    "SLURM_EXIT_ERROR=130", "SLURM_EXIT_ERROR=5", "SLURM_EXIT_ERROR=300", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=gpu01", "SLURM_NTASKS=4",
    "SLURM_UMASK=0077", "SBATCH_QOS=nosuch", "SBATCH_ACCOUNT=ml", "SBATCH_EXCLUDE=gpu01", "SBATCH_REQ_SWITCH=1", "SBATCH_USE_MIN_NODES=1",
    "SLURM_TIME_FORMAT=%s", "SBATCH_NODES=3", "SBATCH_OUTPUT=/dev/null", "SLURM_EXPORT_ENV=ALL", "SBATCH_BATCH=fast",
    "SBATCH_WCKEY=x", "SBATCH_OVERCOMMIT=1", "SLURM_DISTRIBUTION=cyclic", "SBATCH_SIGNAL=TERM@60", "SBATCH_THREAD_SPEC=1",
    "WORKHORSE_MODE=off", "WORKHORSE_MODE=observe", "WORKHORSE_MODE=avoid", "WORKHORSE_MODE=nonsense",
)  # fmt: skip
ODD = (
    "A=1", "'A=x y'", "'a-b=1'", "'a.b=1'", "'1a=1'", "$'N=a\\nb'", "_wh_REAL=/bin/false", "_wh_x=1", "PYTHONPATH=/x", "PYTHONHOME=/x", "PYTHONSTARTUP=/x",
    "LD_LIBRARY_PATH=/nowhere", "$'L=\\xff\\xfe'", "'E='", "\"BIG=$(printf %0100000d 0)\"", "\"B1=$(printf %0130000d 0)\" \"B2=$(printf %0130000d 0)\"",
    "{M1,M2,M3,M4,M5,M6,M7,M8,M9}=$(printf %0120000d 0)", "{M1,M2,M3,M4}_{a,b,c,d}=$(printf %0120000d 0)", "V{1..3000}=x", "PATH=/usr/bin:/bin", "PATH=/usr/bin",
    "PATH=", "-u PATH", "PATH=/nowhere", "HOME=", "-u HOME", "USER=other", "'=x=1'", "PYTHONUTF8=0", "PYTHONDONTWRITEBYTECODE=1", "MALLOC_PERTURB_=7",
    "$'X\\001=1'", "'BASH_FUNC_a()=() { :; }'", "TZ=Asia/Tokyo", "LD_BIND_NOW=1", "'()=x'", "$'\\303\\251=1'",
)  # fmt: skip
LIMITS = (
    "umask 0077", "umask 0", "umask 0777", "ulimit -n 8", "ulimit -n 7", "ulimit -n 10", "ulimit -n 64", "ulimit -u 1", "ulimit -f 0", "ulimit -f 1", "ulimit -s 256",
    "ulimit -s 1024", "ulimit -s unlimited", "ulimit -c 0", "ulimit -t 5", "ulimit -v 300000", "ulimit -v 100000", "trap '' HUP INT", "trap '' USR1 PIPE CHLD",
    "trap '' XFSZ TERM ALRM QUIT", "mkdir g; cd g; rmdir ../g", "cd /", "mkdir g; cd g; chmod 0 .", "ulimit -l 0", "ulimit -d 100000", "ulimit -i 0", "ulimit -q 0",
)  # fmt: skip
REDIRECTS = (
    "<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/null", "2>/dev/null", "3<hosts", "6<hosts", "7<hosts",
    "8>x8 9>x9", "10<hosts", "63<hosts", "255<hosts", "4<hosts 5<hosts 6<hosts 7<hosts 8<hosts 9<hosts", "3>&1", "7<&0", "6>&2", "<hosts", "</", "< <(sleep 3 2>/dev/null)",
    "7<&0 0<&-", "2>&1 >/dev/null", "{3..20}<hosts", "< <(:)", "<<<x", "7< <(sleep 2 2>/dev/null)", "> >(cat)", "9<>f9",
)  # fmt: skip
ARGUMENTS = (
    "a",
    "'x y'",
    "''",
    "-N9",
    "--exclude=gpu01",
    ":",
    "$'a\\nb'",
    "'*'",
    '"$(printf %0100000d 0)"',
    "--",
    "--wrap=x",
    "{1..3000}",
)
HOSTS = r"printf 'gpu03\ngpu05\n' >hosts"
FIFO = "mkfifo f; (timeout 6 sh -c 'echo gpu03,gpu05 >f' </dev/null >/dev/null 2>&1 &)"
FILES = (
    "<(echo gpu03,gpu05)", "<(echo gpu03,gpu05)", "./hosts", "$PWD/hosts", "./f", "$PWD/f", "/dev/stdin", "/dev/fd/40", "/proc/self/fd/40", "./nothing", "/", "/dev/null",
    "./link",
)  # fmt: skip
NEEDS = (
    (r"hosts", "setup", HOSTS),
    (r"/f\b|link", "setup", FIFO),
    (r"link", "setup", "ln -s f link"),
    (r"fd/40", "redirect", "40< <(echo gpu03,gpu05)"),
)


def script(maker: Maker) -> list[Part]:
    """The lines of a script."""
    dice = maker.dice
    lines = [shlex.quote(dice.choice(FIRST)) if maker.chance(0.07) else "'#!/bin/sh\\n'"]
    for _ in range(min(int(dice.expovariate(0.6)), 7)):
        line = str(maker.near(LINES)) if maker.chance(0.7) else dice.choice(LINES)
        lines.append('"#SBATCH -x $PWD/f\\n"' if "$PWD" in line else shlex.quote(line))
    if maker.chance(0.02):
        lines.insert(dice.randrange(1, len(lines) + 1), dice.choice(LONG))
    lines.append(shlex.quote(dice.choice(LAST) if maker.chance(0.2) else "true\\n"))
    return [Part("line", line) for line in lines]


def filed(maker: Maker) -> str:
    """A value that may be a file, as shell text."""
    return maker.dice.choice(FILES)


def around(maker: Maker) -> list[Part]:
    """Environment, limits, descriptors."""
    parts = []
    for share, slot, choices in (
        (0.12, "env", SHELLS), (0.15, "env", SLURMS), (0.1, "env", ODD), (0.1, "limit", LIMITS), (0.12, "redirect", REDIRECTS),
    ):  # fmt: skip
        while maker.chance(share):
            parts.append(Part(slot, maker.dice.choice(choices)))
    if maker.chance(0.02):
        parts.append(Part("name", maker.dice.choice(("other", "''", "-sbatch", "/x/sbatch"))))
    return parts


def delivery(maker: Maker, parts: list[Part]) -> list[Part]:
    """How sbatch gets the script, arguments for it, and the files that the other parts name."""
    found = [Part(*part) for part in maker.dice.choices(*WAYS)[0]]
    if any(part.slot == "script" for part in found) and maker.chance(0.12):
        found.append(Part("argument", maker.dice.choice(ARGUMENTS)))
    text = " ".join(part.text for part in (*parts, *found))
    found += [Part(slot, needed) for name, slot, needed in NEEDS if re.search(name, text)]
    return found


_WAYS = {
    (("script", '"$J"'),): 45,
    (("script", "./j"),): 5,
    (("script", "j"),): 4,
    (("script", '-- "$J"'),): 2,
    (("setup", "mkdir p; mv j p/jp"), ("limit", "PATH=$PWD/p:$PATH"), ("script", "jp")): 3,
    (("redirect", "<j"),): 8,
    (("redirect", "< <(cat j)"),): 10,
    (("redirect", '<<<"$(cat j)"'),): 2,
    (("redirect", "<j"), ("script", "/dev/stdin")): 2,
    (("redirect", "< <(cat j)"), ("script", "/dev/stdin")): 2,
    (("script", "<(cat j)"),): 2,
    (("setup", "mkfifo s; (timeout 6 sh -c 'cat j >s' </dev/null >/dev/null 2>&1 &)"), ("script", "s")): 1,
    (("setup", "chmod 0 j"), ("script", '"$J"')): 1,
    (("setup", "mv j 'a b'"), ("script", "'./a b'")): 1,
    (("setup", "mv j -n.sh"), ("script", "-- -n.sh")): 1,
    (("script", "/nowhere/j"),): 1,
    (("script", "/"),): 1,
    (("script", "/usr/bin/true"),): 1,
    (("script", "/dev/null"),): 1,
    (("script", "''"),): 1,
    (("script", "-"),): 1,
    (("option", "--wrap=hostname"),): 5,
    (("option", "--wrap 'a; b'"),): 2,
    (("option", "--wra=$'a\\nb'"),): 1,
    (("option", "--wrap="),): 1,
    (("option", "--wrap=true"), ("redirect", "<j")): 1,
    (("redirect", "< <(tail -c +3 j)"),): 1,
    (("redirect", "< <(head -c 40 j; sleep 0.2; tail -c +41 j)"),): 1,
    (): 1,
}
WAYS = (list(_WAYS), list(_WAYS.values()))
