# shellcheck shell=bash disable=SC2015,SC2034,SC2154 # what isn't set here is install.sh's and site.sh's
# Sourced by site.sh: takes an installation away, and with --purge the history too.

site_uninstall() {
    owner_known=1 user=${user:-workhorse}
    if [ ! -d "$root$prefix" ]; then
        say "There is no $root$prefix: nothing is installed there."
        publish=$state/public
        [ -z "$purge" ] || remove_published
        [ -z "$purge" ] || purge_state "$state/history.db" "$state/dispatch.json"
        if [ "$changed" = 0 ]; then say "Nothing to do."; else closing "$state/history.db"; fi
        return
    fi
    role=$(installed_option role) publish=$(installed_option publish)
    installed_user=$(installed_option user) user=${installed_user:-$user} publish=${publish:-$state/public}
    find_slurm
    stop_services
    local history memory
    history=$(setting history.path "$state/history.db") memory=$(setting dispatch.state "$state/dispatch.json")
    remove_files
    remove_named "$root/var/lib/systemd/timers/stamp-workhorse-refresh.timer" # systemd's note of the last run
    act rm -rf "$root$prefix"
    remove_named "$root$config/disable" "$root"/var/log/workhorse/workhorse.log*
    leave "$config"
    leave /var/log/workhorse
    [ "$role" != controller ] || remove_published
    if [ -n "$purge" ]; then purge_state "$history" "$memory"; else remove_state "$history" "$memory"; fi
    closing "$history"
    say "If slurm.conf or Lua files of yours name our plugins, take these lines out."
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
    # what is left at the usual place where the setting names another
    [ "$1" = "$state/history.db" ] || remove_named "$root$state/history.db"{,-wal,-shm,-journal,.lock}
    remove_state "$1" "$2"
    in_use && getent passwd "$user" >/dev/null || return 0
    if [ "$(getent passwd "$user" | cut -d: -f5)" = "$made_by_us" ]; then act userdel "$user"
    else say "kept: the user $user, which install.sh didn't make"; fi
}
