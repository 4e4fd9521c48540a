# shellcheck shell=bash disable=SC2154 # top and die are install.sh's
# Sourced by install.sh: installs on a site, upgrades in place, takes everything away again. `top` is the checkout.
# Every change to the machine goes through act, put or link_to: these print it, and leave it undone with --dry-run.

site_usage() {
    cat <<'TXT'
./install.sh --role controller|login|compute [options]      install, or upgrade in place (settings are kept)
./install.sh --uninstall [--purge] [options]                 take it away; the history stays unless --purge
./install.sh --download-wheels DIR [--role ROLE]             fill a folder for a host without internet

Options of an earlier run count until others are given.

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
    role='' prefix='' user='' wheels='' root='' asked_python='' publish=''
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
    prefix=${prefix:-$(installed_prefix)}
    prefix=${prefix:-/opt/workhorse}
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
    case $user in *[!a-z0-9_-]*|-*) usage_error "--user $user: not a user name";; esac
    [ -z "$submit" ] || [ "$submit" = no ] || [ "$what:$role" = install:controller ] || usage_error "--submit goes with --role controller; the other roles have the wrapper anyway"
    [ -z "$purge" ] || [ "$what" = uninstall ] || usage_error "--purge goes with --uninstall"
    [ "$what" = download ] || [ -n "$dry" ] || [ "$(id -u)" = 0 ] || die "writes to $prefix, $config and systemd: run it as root, or with --dry-run to see what it would do"
    [ "$what" = download ] || [ -z "$wheels" ] || [ -d "$wheels" ] || die "--wheels $wheels: no such folder; fill one with --download-wheels on a host with internet"
}

# Where an earlier run put the program, as its command tells; empty where there was none.
installed_prefix() {
    local leads
    leads=$(readlink "$root/usr/local/bin/workhorse" 2>/dev/null) || return 0
    leads=${leads%/bin/workhorse}
    [ ! -f "$root$leads/install.conf" ] || printf '%s\n' "$leads"
}

# Two of them would share settings, timers and the command, and taking one away would break the other.
refuse_a_second() {
    local there
    there=$(installed_prefix)
    case $there in ''|"$prefix") return 0;; esac
    die "it is installed in $root$there already: leave --prefix out to upgrade that, or take it away first (./install.sh --uninstall)"
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
        -e "s|@PUBLISH@|$publish|g" -e "s|@MORE@|$more_folders|g" -e "s|@ENVIRONMENT@|$run_environment|g" "$1"
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

# --- Slurm --------------------------------------------------------------------------------------------------------

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

# --- install ------------------------------------------------------------------------------------------------------

site_install() {
    refuse_a_second
    manifest=() more_folders='' upgrade=''
    [ ! -e "$root$prefix/install.conf" ] || upgrade=1
    find_slurm
    slurm=$(slurm_version || true)
    # Slurm 22.05 is pyslurm 22.5
    slurm_series=${slurm:+${slurm%.*}.$((10#${slurm#*.}))}
    if [ -n "$slurm" ]; then say "Slurm $slurm"; else say "Slurm's commands aren't in PATH here: put them there for this run, so that timers learn where they are"; fi
    site_python
    say "Python $("$python" -c 'import platform; print(platform.python_version())') ($python)"
    user=${user:-$(installed_option user)}
    user=${user:-workhorse}
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

setting() { # NAME DEFAULT: of the settings file, as far as a program is there that reads it
    local found
    found=$("$root$prefix/current/venv/bin/python" -I -c 'import sys; sys.path.insert(0, sys.argv[1]); from slurm_hook.common import config; print(config.load(sys.argv[2])[sys.argv[3]])' "$root$prefix/current/lib" "$root$config/workhorse.toml" "$1" 2>/dev/null) || found=$2
    printf '%s\n' "$found"
}

installed_option() { sed -n "s/^$1=//p" "$root$prefix/install.conf" 2>/dev/null || true; }

make_user() {
    owner_known=1
    if getent passwd "$user" >/dev/null; then return; fi
    if ! in_use; then owner_known=''; return; fi
    act useradd --system --user-group --home-dir "$state" --no-create-home --shell /usr/sbin/nologin --comment "$made_by_us" "$user"
    [ "$role" = controller ] || say "note: the published files are trusted when they belong to $user, so it needs the number it has on the controller"
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

# Folders of the settings in force that units may write to though they are below /home.
folders_of_settings() {
    local name path
    for name in history.path dispatch.state publish.path publish.metrics; do
        path=$(setting "$name" '')
        case $name in history.path|dispatch.state) path=${path%/*};; esac
        case $path in
            ''|"$state"|"$state"/*|"$publish") ;;
            *[!A-Za-z0-9._/+-]*) say "note: timers can't be told of [${name%.*}] ${name#*.}: only letters, digits and ._/+- can be in its path" >&2;;
            /*) printf ' -%s' "$path";;
        esac
    done
}

install_services() {
    more_folders=$(folders_of_settings)
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
    if [ -n "$dry" ] && [ ! -e "$root$release/complete" ]; then # what it will hold isn't known before
        manifest+=("$2")
        [ -e "$root$2" ] || { changed=$((changed + 1)); say "would write: $root$2 (0644)"; }
        return 0
    fi
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
    mode=$(setting steer.mode "${mode:-observe}")
    if [ -n "$dry" ]; then printf '%s' "Nothing was changed (--dry-run). Run it without that$([ "$(id -u)" = 0 ] || echo ", as root"). "; fi
    if [ -n "$upgrade" ]; then say "${dry:+Then: }Brought up to date; your settings stay$([ "$role" != controller ] || echo " (mode $mode)"). Next:"
    elif [ "$role" != controller ]; then say "${dry:+Then: }Installed; what is done with jobs is the controller's [steer] mode. Next:"
    elif [ "$mode" = observe ]; then say "${dry:+Then: }Installed in mode observe: it looks and logs, and changes no job. Next:"
    else say "${dry:+Then: }Installed with the settings that were there: mode $mode. Next:"; fi
    if [ "$role" = controller ] && [ -z "$upgrade" ]; then
        next_step "sacctmgr -i add user $user account=root adminlevel=Operator" "sees all jobs, may update pending ones"
        next_step "runuser -u $user -- $prefix/bin/workhorse refresh" "first reading and first scores"
    fi
    in_use || say "  in the image: user $user with the number it has on the controller, as the owner of $state"
    [ "$role" = compute ] || ! in_use || next_step "workhorse doctor" "what is missing, and how to mend it"
    case $role:$path:$submit in login:1:* | controller:1:yes) say "  log in anew: $prefix/bin is now first in PATH";; esac
    [ -n "$upgrade" ] || say "  Lua plugins for Slurm (optional): $prefix/lua, see the head of each file"
}

next_step() { printf '  %-64s # %s\n' "$1" "$2"; }

# shellcheck source=etc/install/release.sh
. "$top/etc/install/release.sh"
# shellcheck source=etc/install/remove.sh
. "$top/etc/install/remove.sh"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
