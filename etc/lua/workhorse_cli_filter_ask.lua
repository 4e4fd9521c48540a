-- What workhorse_cli_filter.lua loads for a call that can be ours: the decision, by a child in bounded time.
--
-- One constant command is run (io.popen is a shell, so the request goes there as hexadecimal digits and nothing else), bounded
-- by `timeout`. Options are set when all is known.

local PYTHON = "/usr/bin/python3"
local LIB = "/opt/workhorse/current/lib"
local PUBLISH = "/var/lib/workhorse/public"
local SERVICE_UID = ""
local WAIT = "1"
local MAX_REQUEST = 65536 -- bytes; a longer one is left alone

-- Components see one another in the command line only.
local function heterogeneous(offset)
    if offset > 0 then return true end
    local file = io.open("/proc/self/cmdline")
    local words = file and file:read("*a") or ""
    if file then file:close() end
    return words:find("%z:%z") ~= nil
end

local function hex(text)
    return (text:gsub(".", function(c) return string.format("%02x", c:byte()) end))
end

-- The child's end isn't waited for, only its words: in a file system that doesn't answer it can't even be killed.
local function ask(json, client)
    local command = "exec 2>/dev/null; { '" .. PYTHON .. "' -I -S -c '"
        .. "import sys; sys.path.insert(0, sys.argv[1]); from slurm_hook.submit.cli_filter import main; main(sys.argv[2:])' '"
        .. LIB .. "' '" .. PUBLISH .. "' '" .. SERVICE_UID .. "' " .. WAIT .. " " .. client .. ' "$PPID" ' .. hex(json)
        .. " 2>/dev/null </dev/null & echo child $!; } | timeout -s KILL " .. WAIT .. " cat"
    local pipe = io.popen(command)
    local answer = "\n" .. (pipe:read("*a") or "")
    pipe:close()
    return answer
end

-- No answer: the child is ended, and syslog told, where the calls are counted that we failed. Nobody waits for it.
local function give_up(answer)
    local child = answer:match("\nchild (%d+)\n")
    os.execute("{ " .. (child and "kill -s KILL " .. child .. "; " or "")
        .. "timeout -s KILL 1 logger -t workhorse -p user.info '{\"by\":\"cli_filter\",\"action\":\"fail_open\","
        .. "\"reason\":\"no answer\"}' & } </dev/null >/dev/null 2>&1")
end

return function(options, offset)
    local json = slurm.json_cli_options(options)
    if not json or #json > MAX_REQUEST or heterogeneous(offset) then return end
    local answer = ask(json, options.type == "sbatch" and "sbatch" or "other")
    if not answer:find("\nend\n", 1, true) then return give_up(answer) end
    local set = {}
    for key, text in answer:gmatch("\n%+(%l+)=([^\n]+)") do set[key] = text end
    for _, key in ipairs({ "exclude", "nodes", "comment" }) do
        if set[key] then options[key] = set[key] end
    end
    for note in answer:gmatch("\n#([^\n]+)") do io.stderr:write("workhorse: ", note, "\n") end
end
