-- What cli_filter.lua loads, at each sbatch, salloc and srun: a short look with what Lua sees in-process, and only where the call
-- can be ours the file that asks. Everything here runs inside pcall: an error leaves the submission as it was.

local ASK = "/opt/workhorse/lua/workhorse_cli_filter_ask.lua"
local LOCAL = "/etc/workhorse"

local M = {}

local function hints()
    local found = { min_nodes = "1", min_gpus = "1", directives = "1" }
    local file = io.open(LOCAL .. "/hints")
    if not file then return found end
    for line in file:lines() do
        local key, value = line:match("^(%S+) ?(.*)$")
        if key then found[key] = value end
    end
    file:close()
    return found.end_ or found["end"] and found or { min_nodes = "1", min_gpus = "1", directives = "1" }
end

-- An option's text as sbatch understood it, nil where it isn't set. Slurm's JSON of all of them is asked for only where the call
-- can be ours: making it takes longer than all the rest here.
local UNSET = { [""] = true, unset = true, ["invalid-context"] = true, ["1-0"] = true } -- the last: nodes, where none are asked for
local function value(options, key)
    local text = options[key]
    if type(text) ~= "string" or UNSET[text] then return nil end
    return text
end

-- Does the text match a pattern of `*` and `?`? One look back at most, to the last star: Lua's own patterns would try them all.
local function globbed(pattern, text)
    local p, t, star, mark = 1, 1, nil, nil
    while t <= #text do
        local sign = pattern:sub(p, p)
        if sign == "*" then
            star, mark, p = p, t, p + 1
        elseif sign ~= "" and (sign == "?" or sign == text:sub(t, t)) then
            p, t = p + 1, t + 1
        elseif star then
            p, mark = star + 1, mark + 1
            t = mark
        else
            return false
        end
    end
    return pattern:find("^%**$", p) ~= nil
end

local function can_be_ours(options, known)
    local least = tonumber(known.min_nodes) or 1
    if least == 1 then return true end
    local nodes = value(options, "nodes")
    if nodes and not (tonumber(nodes) and tonumber(nodes) < least) then return true end
    local tasks = value(options, "ntasks")
    if not nodes and tasks and tasks ~= "1" then return true end
    if (value(options, "gpus") or "1") ~= "1" then return true end
    if known.min_gpus ~= "0" and (value(options, "gres") or value(options, "gpus-per-node") or value(options, "gpus-per-task")) then
        return true
    end
    local comment = value(options, "comment") or ""
    if comment:sub(1, 3) == "wh=" then return true end
    if known.comment_prefix and comment:sub(1, #known.comment_prefix) == known.comment_prefix then return true end
    local name = value(options, "job-name") or "*"
    return known.name ~= nil and (name == "*" or known.name:find("[", 1, true) ~= nil or globbed(known.name, name))
end

-- A FIFO would hang us until somebody writes there; opened for writing too it doesn't, and shows that it has no end.
local function open_script(path)
    local file = io.open(path, "r+")
    if not file then return io.open(path) end
    if file:seek("end") and file:seek("set") then return file end
    file:close()
end

-- A #WORKHORSE line in the head of the script, where the call names one.
local function has_directive(options)
    local script = type(options.argv) == "table" and options.argv[1]
    local file = script and not script:find("^/dev/") and not script:find("^/proc/") and open_script(script)
    if not file then return false end
    local head = file:read(16384) or ""
    file:close()
    return head:sub(1, 2) == "#!" and head:find("\n#WORKHORSE", 1, true) ~= nil
end

local function left_alone(options)
    if os.getenv("WORKHORSE_MODE") == "off" then return true end
    if value(options, "test-only") or value(options, "jobid") or value(options, "nodelist") or value(options, "clusters") then
        return true
    end
    local comment = value(options, "comment") or ""
    if comment:find("^wh=1;.*m=") then return true end
    local file, _, code = io.open(LOCAL .. "/disable")
    if file then file:close() end
    return file ~= nil or code ~= 2 -- there, though it can't be read
end

function M.pre_submit(options, offset)
    if left_alone(options) then return end
    local known = hints()
    if known.mode == "off" then return end
    if can_be_ours(options, known) or known.directives == "1" and has_directive(options) then dofile(ASK)(options, offset or 0) end
end

return M
