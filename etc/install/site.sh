# shellcheck shell=bash disable=SC2154 # top and die are install.sh's
# Sourced by install.sh: installs on a site, upgrades in place, takes everything away again. `top` is the checkout.
# Every change to the machine goes through act, put or link_to: these print it, and leave it undone with --dry-run.

site_usage() {
    cat <<'TXT'
./install.sh --role controller|login|compute [options]      install, or upgrade in place (settings are kept)
./install.sh --uninstall [--purge] [options]                 take it away; the history stays unless --purge
./install.sh --download-wheels DIR [--role ROLE]             fill a folder for a host without internet

  --role controller   where slurmctld or slurmdbd runs: history, scores, dispatch, all commands (Python 3.11 or later)
  --role login        where people submit: sbatch wrapper and the commands for users (Python 3.9 or later)
  --role compute      nodes whose jobs submit jobs: the sbatch wrapper alone (Python 3.9 or later)
  --prefix DIR        where the program goes                                    [/opt/workhorse]
  --user NAME         the service user; made if it doesn't exist                [workhorse]
  --publish DIR       folder of the published files, on a shared file system where login nodes are other hosts
                                                                                [/var/lib/workhorse/public]
  --wheels DIR        packages from this folder, without internet; their sha256 sums must be the pinned ones
  --python PATH       the Python to use                                         [the first new enough]
  --watch             dispatch as one service that goes on, instead of a timer each minute (--timer: back again)
  --cron              cron instead of systemd timers (chosen by itself where systemd doesn't run)
  --submit            with --role controller: people submit here, too, so the sbatch wrapper goes into their PATH
  --no-path           don't put the wrapper into users' PATH
  --root DIR          install below DIR, for images; nothing is started
  --dry-run           print every action, do none
  --force             uninstall although our excludes on pending jobs can't be taken off now
TXT
}

# --- options ------------------------------------------------------------------------------------------------------

site_main() {
    role='' prefix=/opt/workhorse user=workhorse wheels='' root='' asked_python='' publish=''
    config=/etc/workhorse state=/var/lib/workhorse
    dry='' purge='' cron='' path=1 force='' watch='' submit='' what=install
    while [ $# -gt 0 ]; do
        case $1 in
            --role|--prefix|--user|--publish|--wheels|--python|--root|--download-wheels)
                [ $# -ge 2 ] || usage_error "$1 needs a value"
                site_option "$1" "$2"; shift;;
            --role=*|--prefix=*|--user=*|--publish=*|--wheels=*|--python=*|--root=*|--download-wheels=*)
                site_option "${1%%=*}" "${1#*=}";;
            --dry-run) dry=1;;
            --uninstall) what=uninstall;;
            --purge) purge=1;;
            --cron) cron=1;;
            --watch) watch=yes;;
            --timer) watch=no;;
            --submit) submit=yes;;
            --no-path) path='' submit=no;;
            --force) force=1;;
            *) usage_error "$1: unknown";;
        esac
        shift
    done
    [ "$role" != help ] || { site_usage; return; }
    check_options
    umask 022
    "site_$what"
}

site_option() {
    case $1 in
        --role) role=$2;;
        --prefix) prefix=${2%/};;
        --user) user=$2;;
        --publish) publish=${2%/};;
        --wheels) wheels=$2;;
        --python) asked_python=$2;;
        --root) root=${2%/};;
        --download-wheels) what=download; wheels=$2;;
    esac
}

usage_error() { printf 'install.sh: %s; see ./install.sh --role help\n' "$1" >&2; exit 2; }

check_options() {
    case $what:$role in
        install:) usage_error "--role is missing (controller, login or compute)";;
        install:controller|install:login|install:compute|uninstall:*|download:|download:controller|download:login|download:compute) ;;
        *) usage_error "--role $role: must be controller, login or compute";;
    esac
    # the paths go into unit files, the wrapper and sed scripts: plain ones only
    local name
    for name in prefix publish root; do
        case ${!name} in
            '') ;;
            *[!A-Za-z0-9._/+-]*) usage_error "--$name ${!name}: only letters, digits and ._/+- can be in it";;
            /*) ;;
            *) usage_error "--$name ${!name}: must begin with /";;
        esac
    done
    case $prefix in ''|/usr|/usr/local|/etc|/var|/opt|/home|/root) usage_error "--prefix '$prefix': a folder of its own, such as /opt/workhorse";; esac
    case $user in *[!a-z0-9_-]*|''|-*) usage_error "--user $user: not a user name";; esac
    [ -z "$submit" ] || [ "$submit" = no ] || [ "$what:$role" = install:controller ] || usage_error "--submit goes with --role controller; the other roles have the wrapper anyway"
    [ -z "$purge" ] || [ "$what" = uninstall ] || usage_error "--purge goes with --uninstall"
    [ "$what" = download ] || [ -n "$dry" ] || [ "$(id -u)" = 0 ] || die "writes to $prefix, $config and systemd: run it as root, or with --dry-run to see what it would do"
    [ "$what" = download ] || [ -z "$wheels" ] || [ -d "$wheels" ] || die "--wheels $wheels: no such folder; fill one with --download-wheels on a host with internet"
}

# --- actions ------------------------------------------------------------------------------------------------------

changed=0
made_by_us="service user of slurm-workhorse" # in the comment field: --purge removes no other user
say() { printf '%s\n' "$*"; }

act() { # COMMAND…: printed, and run unless --dry-run
    changed=$((changed + 1))
    printf '%s' "${dry:+would }run:"; printf ' %q' "$@"; printf '\n'
    [ -n "$dry" ] || "$@"
}

render() { # FILE: its text with this site's paths
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@STATE@|$state|g" -e "s|@USER@|$user|g" -e "s|@CONFIG@|$config|g" \
        -e "s|@PUBLISH@|$publish|g" -e "s|@ENVIRONMENT@|$run_environment|g" "$1"
}

put() { # SOURCE TARGET MODE: writes a file whole, with this site's paths, if it isn't so already
    local target=$root$2 temporary
    manifest+=("$2")
    if [ -f "$target" ] && [ ! -L "$target" ] && render "$1" | cmp -s - "$target" && [ "$(stat -c %a "$target")" = "${3#0}" ]; then return; fi
    changed=$((changed + 1))
    say "${dry:+would }write: $target ($3)"
    [ -z "$dry" ] || return 0
    mkdir -p "$(dirname "$target")"
    temporary=$(mktemp "$target.XXXXXX")
    render "$1" >"$temporary"
    chmod "$3" "$temporary"
    mv -f "$temporary" "$target"
}

link_to() { # TARGET NAME: a symbolic link, replaced in one step
    manifest+=("$2")
    [ "$(readlink "$root$2" 2>/dev/null)" != "$1" ] || return 0
    changed=$((changed + 1))
    say "${dry:+would }link: $root$2 -> $1"
    [ -z "$dry" ] || return 0
    mkdir -p "$(dirname "$root$2")"
    ln -sfn "$1" "$root$2.new"
    mv -fT "$root$2.new" "$root$2"
}

folder() { # PATH MODE OWNER
    [ -d "$root$1" ] && [ "$(stat -c %a "$root$1")" = "${2#0}" ] && owned_by "$root$1" "$3" && return
    act install -d -m "$2" ${owner_known:+-o "$3" -g "$3"} "$root$1"
}

owned_by() { [ -z "$owner_known" ] || [ "$(stat -c %U "$1")" = "$2" ]; }

in_use() { [ -z "$root" ]; } # false for an image below --root: nothing is started there

has_systemd() { [ -z "$cron" ] && { ! in_use || [ -d /run/systemd/system ]; }; }

say_scheduler() {
    if has_systemd; then say "Regular runs: systemd timers"
    elif [ -n "$cron" ]; then say "Regular runs: cron, as --cron asks"
    else say "Regular runs: cron, as systemd doesn't run here (there is no /run/systemd/system)"; fi
}

# --- Python and packages ------------------------------------------------------------------------------------------

site_python() { # sets python to one that is new enough for the role
    local least='(3, 9)' candidate
    [ "$role" != controller ] || least='(3, 11)'
    for candidate in ${asked_python:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9}; do
        if "$candidate" -c "import sys, venv, ensurepip; raise SystemExit(sys.version_info < $least)" 2>/dev/null; then
            python=$(command -v "$candidate")
            return
        fi
    done
    die "--role $role needs Python ${least//[(),]/ }or later with its venv module${asked_python:+, which $asked_python is not}; install it (Debian: apt-get install python3 python3-venv) or name it with --python"
}

lists() { # the pinned package lists of the role, in order
    local from=$top/etc/install/requirements
    if [ "${role:-controller}" = controller ]; then printf '%s\n' "$from-build.txt" "$from-controller.txt"; else printf '%s\n' "$from-login.txt"; fi
}

pip_in() { # VENV ARGUMENTS…: never takes a file whose sum isn't pinned
    local venv=$1 source=()
    shift
    [ -z "$wheels" ] || source=(--no-index --find-links "$wheels")
    [ "$1" = install ] || source=()
    PIP_NO_INPUT=1 "$venv/bin/python" -m pip --disable-pip-version-check -q "$@" --no-deps --no-build-isolation --require-hashes "${source[@]}"
}

release_id() { # changes with the code, the package lists and the Python
    {
        "$python" -V; echo "$role ${slurm_series:-}"
        while IFS= read -r list; do cat "$list"; done < <(lists)
        cd "$top" && find slurm_hook accounting -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 cat
    } | sha256sum | cut -c1-12
}

build_release() { # code and packages in a folder of their own; `current` is switched over last, so nobody meets half of it
    release=$prefix/releases/$(release_id)
    local before
    before=$(readlink "$root$prefix/current" 2>/dev/null || true) before=${before##*/}
    if [ -e "$root$release/complete" ]; then link_to "releases/${release##*/}" "$prefix/current"; return; fi
    say "${dry:+would }build: $root$release (code and the pinned packages, from ${wheels:-the package index})"
    changed=$((changed + 1))
    if [ -z "$dry" ]; then fill_release "$root$release"; else pick_pyslurm; fi
    link_to "releases/${release##*/}" "$prefix/current"
    [ -n "$dry" ] || drop_old_releases
}

fill_release() {
    local into=$1 list log
    rm -rf "$into"
    mkdir -p "$into/lib"
    (cd "$top" && find slurm_hook accounting -type f ! -name '*.pyc' -print0 | tar -c --null -T -) | tar -x -C "$into/lib" --no-same-owner
    chmod -R u=rwX,go=rX "$into"
    "$python" -m venv "$into/venv"
    log=$into/pip.log
    while IFS= read -r list; do
        pip_in "$into/venv" install -r "$list" >"$log" 2>&1 ||
            { { grep -E 'ERROR|Expected|Got ' "$log" || tail -n 5 "$log"; } >&2; rm -rf "$into"; die "the packages of ${list##*/} could not be installed; $(wheels_hint)"; }
    done < <(lists)
    pick_pyslurm "$into/venv"
    "$into/venv/bin/python" -m compileall -q "$into/lib" "$into/venv" >/dev/null 2>&1 || true
    [ "$python" = "$into/venv/bin/python" ] || (cd / && "$python" -m compileall -q "$into/lib") >/dev/null 2>&1 || true
    touch "$into/complete"
}

wheels_hint() {
    if [ -n "$wheels" ]; then say "is $wheels complete for this Python? fill it with --download-wheels on a host like this one"
    else say "is the package index reachable? without internet use --wheels DIR"; fi
}

drop_old_releases() { # the one before stays: something may still be running from it
    local old
    for old in "$root$prefix"/releases/*; do
        case ${old##*/} in "${release##*/}"|"$before") ;; *) act rm -rf "$old";; esac
    done
}

# Where Slurm's commands and configuration are, for timers and cron: what this shell knows, else what an earlier run knew
# (sudo keeps neither). Words of other characters than these could mean something to systemd, cron or sed.
find_slurm() {
    local found
    found=$(command -v sinfo || command -v slurmctld || true)
    slurm_bin=${found%/*} slurm_conf=${SLURM_CONF:-}
    slurm_bin=${slurm_bin:-$(installed_option slurm_bin)} slurm_conf=${slurm_conf:-$(installed_option slurm_conf)}
    case $slurm_bin$slurm_conf in
        *[!A-Za-z0-9._/+-]*) say "note: timers can't be told of PATH $slurm_bin and SLURM_CONF $slurm_conf: only letters, digits and ._/+- can be in them"; slurm_bin='' slurm_conf='';;
    esac
    run_environment="PATH=$STANDARD_PATH"
    case :$STANDARD_PATH: in *":$slurm_bin:"*) ;; *) [ -z "$slurm_bin" ] || run_environment="PATH=$slurm_bin:$STANDARD_PATH";; esac
    [ -z "$slurm_conf" ] || run_environment="$run_environment SLURM_CONF=$slurm_conf"
}
STANDARD_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# slurmctld knows its version without a configuration, the clients don't
slurm_version() { { sinfo --version || slurmctld -V || slurmd -V; } 2>/dev/null | sed -n 's/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p'; }

pick_pyslurm() { # [VENV]: the release that fits this Slurm, where there is one; everything works without
    [ "$role" = controller ] || return 0
    local line
    [ -n "$slurm_series" ] || { say "pyslurm: no Slurm here, so none is chosen; accounting is read through sacct"; return; }
    line=$(grep "^pyslurm==$slurm_series\." "$top/etc/install/requirements-pyslurm.txt" || true)
    [ -n "$line" ] || { say "pyslurm: no release for Slurm $slurm among the pinned ones ($(sed -n 's/^pyslurm==\([0-9.]*\).*/\1/p' "$top/etc/install/requirements-pyslurm.txt" | tr '\n' ' ')); accounting is read through sacct, which gives the same records"; return; }
    say "pyslurm: ${line%% *} fits Slurm $slurm"
    [ -z "${1:-}" ] || { pip_in "$1" install -r "$top/etc/install/requirements-pyslurm-build.txt" &&
        pip_in "$1" install -r <(printf '%s\n' "$line"); } >"$1/pyslurm.log" 2>&1 ||
        say "pyslurm: could not be built (are Slurm's headers installed? see $1/pyslurm.log); accounting is read through sacct"
}

# --- install ------------------------------------------------------------------------------------------------------

site_install() {
    manifest=()
    find_slurm
    slurm=$(slurm_version || true)
    # Slurm 22.05 is pyslurm 22.5
    slurm_series=${slurm:+${slurm%.*}.$((10#${slurm#*.}))}
    if [ -n "$slurm" ]; then say "Slurm $slurm"; else say "Slurm's commands aren't in PATH here: put them there for this run, so that timers learn where they are"; fi
    site_python
    say "Python $("$python" -c 'import platform; print(platform.python_version())') ($python)"
    publish=${publish:-$(installed_option publish)}
    publish=${publish:-$state/public}
    watch=${watch:-$(installed_option watch)}
    submit=${submit:-$(installed_option submit)}
    [ "$role" = controller ] || [ "$(installed_option role)" != controller ] ||
        die "this host is installed as controller, and --role $role would end its collect, refresh and dispatch. Where people submit on it, too: --role controller --submit. To change the role: --uninstall first (the history stays)"
    [ "$role" = compute ] || say_scheduler
    make_user
    build_release
    install_programs
    install_settings
    [ "$role" != controller ] || install_services
    [ "$role" = compute ] || install_manuals
    write_manifest
    if [ "$changed" = 0 ]; then say "Nothing to do: this version is installed."; else site_next_steps; fi
}

installed_option() { sed -n "s/^$1=//p" "$root$prefix/install.conf" 2>/dev/null || true; }

make_user() {
    owner_known=1
    if getent passwd "$user" >/dev/null; then return; fi
    if ! in_use; then owner_known=''; return; fi
    act useradd --system --user-group --home-dir "$state" --no-create-home --shell /usr/sbin/nologin --comment "$made_by_us" "$user"
    [ "$role" = controller ] || say "note: the published files are trusted when they belong to $user, so it needs the number it has on the controller"
    [ -z "$dry" ] || owner_known=''
}

install_programs() {
    put "$top/etc/install/workhorse.sh" "$prefix/bin/workhorse" 0755
    link_to "$prefix/bin/workhorse" /usr/local/bin/workhorse
    if [ -e "$top/etc/sbatch" ]; then
        wrapper "$top/etc/sbatch" >"$scratch/sbatch"
        put "$scratch/sbatch" "$prefix/bin/sbatch" 0755
    fi
    local file
    for file in "$top"/etc/lua/*.lua; do
        [ -e "$file" ] || continue
        lua_plugin "$file" >"$scratch/plugin.lua"
        put "$scratch/plugin.lua" "$prefix/lua/${file##*/}" 0644
    done
    if people_submit; then install_hints; fi
    if [ -n "$path" ] && people_submit; then
        put "$top/etc/profile/workhorse.sh" /etc/profile.d/workhorse.sh 0644
        put "$top/etc/profile/workhorse.csh" /etc/profile.d/workhorse.csh 0644
    fi
}

people_submit() { [ "$role" != controller ] || [ "$submit" = yes ]; }

# Which jobs can be ours is told to the wrapper in a small local file, which the service user keeps up to date.
install_hints() {
    [ -n "$owner_known" ] || in_use || { say "note: no user $user here, so nothing keeps the wrapper's hints; it looks at every call"; return; }
    folder "$state" 0755 "$user"
    folder "$state/hints" 0755 "$user"
    link_to "$state/hints/hints" "$config/hints"
    if has_systemd; then install_timers hints; else put "$top/etc/cron/workhorse-hints" /etc/cron.d/workhorse-hints 0644; fi
}

lua_plugin() { # FILE: a Lua plugin with this site's values in its head
    sed -e "s|^local PYTHON = .*|local PYTHON = \"$python\"|" -e "s|^local LIB = .*|local LIB = \"$prefix/current/lib\"|" \
        -e "s|^local PUBLISH = .*|local PUBLISH = \"$publish\"|" -e "s|^local LOCAL = .*|local LOCAL = \"$config\"|" \
        -e "s|^local SERVICE_UID = .*|local SERVICE_UID = \"$(id -u "$user" 2>/dev/null || true)\"|" \
        -e "s|^local TABLE = \"[^\"]*\"|local TABLE = \"$state/avoid.lua\"|" -e "s|/opt/workhorse/lua|$prefix/lua|" "$1"
}

wrapper() { # FILE: the sbatch shim with this site's values in its head
    sed -e "s|^_wh_PYTHON=.*|_wh_PYTHON=$python|" -e "s|^_wh_LIB=.*|_wh_LIB=$prefix/current/lib|" \
        -e "s|^_wh_PUBLISH=.*|_wh_PUBLISH=$publish|" -e "s|^_wh_LOCAL=.*|_wh_LOCAL=$config|" \
        -e "s|^_wh_UID=.*|_wh_UID=$(id -u "$user" 2>/dev/null || true)|" "$1"
}

# The settings file is the admin's once it was changed: then it stays, and ours is put beside it for comparison.
install_settings() {
    local target=$config/workhorse.toml delivered=$prefix/share/workhorse.toml new=$scratch/workhorse.toml
    if [ "$publish" = "$state/public" ]; then cp "$top/etc/workhorse.toml" "$new"
    else sed "s|^#path = \"/var/lib/workhorse/public\"|path = \"$publish\"|" "$top/etc/workhorse.toml" >"$new"; fi
    if [ -f "$root$target" ] && ! cmp -s "$root$target" "$root$delivered"; then
        manifest+=("$target")
        if ! cmp -s "$new" "$root$delivered"; then
            say "kept: $root$target has your changes; this version's file with its defaults is beside it"
            put "$new" "$target.new" 0644
        fi
    else
        put "$new" "$target" 0644
    fi
    [ ! -f "$root$target.new" ] || manifest+=("$target.new")
    put "$new" "$delivered" 0644
}

install_services() {
    folder "$state" 0755 "$user"
    folder "$publish" 0755 "$user"
    folder /var/log/workhorse 0755 root
    put "$top/etc/tmpfiles/workhorse.conf" /etc/tmpfiles.d/workhorse.conf 0644
    put "$top/etc/logrotate/workhorse" /etc/logrotate.d/workhorse 0644
    put "$top/etc/rsyslog/workhorse.conf" /etc/rsyslog.d/30-workhorse.conf 0644
    local file
    for file in "$top"/etc/prometheus/*.yml "$top"/etc/grafana/*.json; do
        [ ! -e "$file" ] || put "$file" "$prefix/share/${file##*/}" 0644
    done
    if ! has_systemd; then put "$top/etc/cron/workhorse" /etc/cron.d/workhorse 0644
    elif [ "$watch" = yes ]; then install_timers collect refresh; install_watch
    else switch_off workhorse-dispatch-watch.service; install_timers collect refresh dispatch; fi
}

install_watch() {
    local unit=workhorse-dispatch-watch.service before=$changed
    switch_off workhorse-dispatch.timer
    put "$top/etc/systemd/$unit" "/etc/systemd/system/$unit" 0644
    in_use || { link_to "/etc/systemd/system/$unit" "/etc/systemd/system/multi-user.target.wants/$unit"; return; }
    [ "$changed" = "$before" ] || act systemctl daemon-reload
    if ! systemctl -q is-active "$unit" 2>/dev/null; then act systemctl enable --now "$unit"
    elif [ "$changed" != 0 ]; then act systemctl restart "$unit"; fi # the release before still runs in it
}

switch_off() { # UNIT: the other form of dispatch, where it was installed before
    if in_use && [ -e "/etc/systemd/system/$1" ]; then act systemctl disable --now "$1"; fi
}

install_timers() { # NAMES
    local before=$changed timer
    for timer do
        put "$top/etc/systemd/workhorse-$timer.service" "/etc/systemd/system/workhorse-$timer.service" 0644
        put "$top/etc/systemd/workhorse-$timer.timer" "/etc/systemd/system/workhorse-$timer.timer" 0644
        in_use || link_to "/etc/systemd/system/workhorse-$timer.timer" "/etc/systemd/system/timers.target.wants/workhorse-$timer.timer"
    done
    in_use || return 0
    [ "$changed" = "$before" ] || act systemctl daemon-reload
    for timer do
        systemctl -q is-active "workhorse-$timer.timer" 2>/dev/null || act systemctl enable --now "workhorse-$timer.timer"
    done
}

install_manuals() {
    [ ! -e "$top/etc/man/workhorse.1" ] || put "$top/etc/man/workhorse.1" /usr/local/share/man/man1/workhorse.1 0644
    completion bash /usr/local/share/bash-completion/completions/workhorse
    completion zsh /usr/local/share/zsh/site-functions/_workhorse
    completion fish /usr/local/share/fish/vendor_completions.d/workhorse.fish
}

completion() { # SHELL FILE: as the release just installed writes it
    [ -z "$dry" ] || { [ -e "$root$2" ] || say "would write: $root$2 (0644)"; return; }
    # bash's is refused where there is no bash new enough: then nobody there could use it
    _WORKHORSE_COMPLETE=${1}_source "$root$prefix/bin/workhorse" >"$scratch/completion" 2>/dev/null || return 0
    put "$scratch/completion" "$2" 0644
}

# What an earlier version installed and this one doesn't goes; the list is what --uninstall works from.
write_manifest() {
    local old
    while IFS= read -r old; do
        case " ${manifest[*]} " in *" $old "*) ;; *) [ ! -e "$root$old" ] || act rm -f "$root$old";; esac
    done < <(cat "$root$prefix/manifest" 2>/dev/null)
    printf '%s\n' "${manifest[@]}" | sort -u >"$scratch/manifest"
    printf 'role=%s\nuser=%s\npublish=%s\nwatch=%s\nsubmit=%s\nslurm_bin=%s\nslurm_conf=%s\n' "$role" "$user" "$publish" "$watch" "$submit" "$slurm_bin" "$slurm_conf" >"$scratch/install.conf"
    put "$scratch/manifest" "$prefix/manifest" 0644
    put "$scratch/install.conf" "$prefix/install.conf" 0644
}

site_next_steps() {
    say ""
    local mode
    mode=$(sed -n 's/^mode = "\([a-z]*\)".*/\1/p' "$root$config/workhorse.toml" 2>/dev/null | head -n 1) || true
    if [ -n "$mode" ] && [ "$mode" != observe ]; then say "${dry:+Nothing was changed (--dry-run). }The settings stay as they were: mode $mode. Next:"
    elif [ -z "$dry" ]; then say "Installed in mode observe: it looks and logs, and changes no job. Next:"
    else say "Nothing was changed (--dry-run). Run it without that$([ "$(id -u)" = 0 ] || echo ", as root"). It starts in mode observe: it looks and logs, and changes no job. Then:"; fi
    if [ "$role" = controller ]; then
        next_step "sacctmgr -i add user $user account=root adminlevel=Operator" "sees all jobs, may update pending ones"
        next_step "runuser -u $user -- $prefix/bin/workhorse refresh" "first reading and first scores"
    fi
    [ "$role" = compute ] || next_step "workhorse doctor" "what is missing, and how to mend it"
    case $role:$path:$submit in login:1:* | controller:1:yes) say "  log in anew: $prefix/bin is now first in PATH";; esac
    [ ! -d "$root$prefix/lua" ] || say "  Lua plugins for Slurm (optional): $prefix/lua, see the head of each file"
}

next_step() { printf '  %-64s # %s\n' "$1" "$2"; }

site_download() {
    role=${role:-controller}
    site_python
    local venv=$scratch/venv list
    "$python" -m venv "$venv"
    mkdir -p "$wheels"
    while IFS= read -r list; do
        say "fetching what ${list##*/} names"
        pip_in "$venv" download -d "$wheels" -r "$list" || die "the package index could not give the packages of ${list##*/}"
        # building tools are needed to look into packages that come as source
        case $list in *-build.txt) pip_in "$venv" install -r "$list" ;; esac
    done < <(lists)
    say "$wheels: $(find "$wheels" -type f | wc -l) files. On the other host: ./install.sh --role $role --wheels DIR"
}

# --- uninstall ----------------------------------------------------------------------------------------------------

site_uninstall() {
    owner_known=1
    if [ ! -d "$root$prefix" ]; then
        say "There is no $root$prefix: nothing is installed there."
        publish=$state/public
        [ -z "$purge" ] || remove_published
        [ -z "$purge" ] || purge_state "$state/history.db" "$state/dispatch.json"
        if [ "$changed" = 0 ]; then say "Nothing to do."; else closing "$state/history.db"; fi
        return
    fi
    role=$(installed_option role) user=$(installed_option user) publish=$(installed_option publish)
    user=${user:-workhorse} publish=${publish:-$state/public}
    find_slurm
    stop_services
    local history memory
    history=$(setting history.path "$state/history.db") memory=$(setting dispatch.state "$state/dispatch.json")
    remove_files
    act rm -rf "$root$prefix"
    remove_named "$root$config/disable" "$root"/var/log/workhorse/workhorse.log*
    leave "$config"
    leave /var/log/workhorse
    [ "$role" != controller ] || remove_published
    if [ -n "$purge" ]; then purge_state "$history" "$memory"; else remove_state "$history" "$memory"; fi
    closing "$history"
    say "If slurm.conf names our Lua plugins, take these lines out."
}

closing() { # HISTORY
    if [ -n "$dry" ]; then say "Nothing was changed (--dry-run). Run it without that$([ "$(id -u)" = 0 ] || echo ", as root")."
    elif [ -z "$purge" ] && [ -e "$root$1" ]; then say "Gone. The history stays in $root$1; --uninstall --purge takes it away too."
    else say "Gone."; fi
}

stop_services() {
    in_use || return 0
    local timer
    for timer in dispatch collect refresh hints; do
        if [ ! -d /run/systemd/system ] || [ ! -e "/etc/systemd/system/workhorse-$timer.timer" ]; then continue; fi
        act systemctl disable --now "workhorse-$timer.timer"
        act systemctl stop "workhorse-$timer.service"
    done
    switch_off workhorse-dispatch-watch.service
    [ "$role" = controller ] || return 0
    # before the program goes: afterwards nobody would know which excludes were ours
    # shellcheck disable=SC2086 # words of plain characters
    act env $run_environment "$prefix/bin/workhorse" dispatch --release || [ -n "$force" ] ||
        die "our excludes could not be taken off pending jobs (above). Mend that, or go on with --force: these jobs then keep them"
}

setting() { # NAME DEFAULT: of the settings file, while the program that reads it is still there
    local found
    found=$("$root$prefix/current/venv/bin/python" -I -c 'import sys; sys.path.insert(0, sys.argv[1]); from slurm_hook import config; print(config.load(sys.argv[2])[sys.argv[3]])' "$root$prefix/current/lib" "$root$config/workhorse.toml" "$1" 2>/dev/null) || found=$2
    printf '%s\n' "$found"
}

remove_files() {
    local file
    while IFS= read -r file; do
        case $file in "$prefix"/*) continue;; esac
        if [ -e "$root$file" ] || [ -L "$root$file" ]; then act rm -f "$root$file"; fi
    done < <(cat "$root$prefix/manifest")
    if in_use && [ -d /run/systemd/system ]; then act systemctl daemon-reload; fi
}

remove_named() { # PATHS, of which some may not be there
    local name
    for name do
        if [ -e "$name" ] || [ -L "$name" ]; then act rm -rf "$name"; fi
    done
}

leave() { # FOLDER: goes where nothing is left in it; what others put there stays, and is told
    [ -d "$root$1" ] || return 0
    if [ -n "$dry" ]; then act rmdir --ignore-fail-on-non-empty "$root$1"; return; fi
    if [ -z "$(ls -A "$root$1")" ]; then act rmdir "$root$1"; return; fi
    [ "$1" = "$state" ] && [ -z "$purge" ] || say "kept: $root$1 holds what isn't ours"
}

remove_published() { # ours by name; a folder that then holds something else stays
    remove_named "$root$publish"/{scores.json,live.json,avoid.lua,snapshots} "$root$publish"/.{scores.json,live.json,avoid.lua}.* \
        "$root$state"/{avoid.lua,.avoid.lua.*}
    leave "$publish"
}

remove_state() { # HISTORY MEMORY: everything of ours but the history
    remove_named "$root$state/hints" "$root$2"{,.lock,.pass.lock,.damaged} "$root$1.lock" "$(dirname "$root$2")/.$(basename "$2")".*
    leave "$state"
}

purge_state() { # HISTORY MEMORY
    remove_named "$root$1"{,-wal,-shm,-journal}
    remove_state "$1" "$2"
    in_use && getent passwd "$user" >/dev/null || return 0
    if [ "$(getent passwd "$user" | cut -d: -f5)" = "$made_by_us" ]; then act userdel "$user"
    else say "kept: the user $user, which install.sh didn't make"; fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
