-- What job_submit.lua loads. It runs under slurmctld's locks: no command, no waiting, one small local file, read as data.
-- At most mode avoid: nodes are appended to the job's excludes, never put in place of them.

local TABLE = "/var/lib/workhorse/avoid.lua" -- on a local disk of the controller: it is read under slurmctld's locks
local LOCAL = "/etc/workhorse" -- where `workhorse disable` writes its file
local MAX_TABLE = 1048576
local MAX_NODES = 65536 -- of a partition
local MAX_OWN, MAX_OWN_NAMES = 8192, 2000 -- characters and names of a user's own excludes: with more the job is left alone
local MAX_DIGITS = 15 -- of a node's number: above 2^53 adding one changes nothing, and a loop over such numbers never ends
local MAX_NAME = 1024 -- of a job's name, as Slurm has it
local MAX_SCRIPT = 65536
local UNSET = 4294967294 -- and above: what Slurm shows for a number that isn't set

local M = {}
local last_text, last_table

-- The published table is text in Lua's own notation, but it is never run: only words between quotes and numbers are taken.
local function parse(text)
    local found = { bad = {} }
    for key, number in text:gmatch("\n  ([%l_]+) = ([%d.]+),") do found[key] = tonumber(number) end
    for key, word in text:gmatch('\n  ([%l_]+) = "([%w_.,*?:+-]*)",') do found[key] = word end
    for node, partition, kind, same in text:gmatch('{ node = "([%w_.-]+)", partition = "([%w_.-]+)", kind = "(%w+)", same = (%d+) }') do
        table.insert(found.bad, { node = node, partition = partition, kind = kind, same = tonumber(same) })
    end
    return text:find("\n}\n$") and found.format == 1 and found or nil
end

local function published()
    local file = io.open(TABLE)
    if not file then return nil end
    local text = file:read(MAX_TABLE)
    file:close()
    if text ~= last_text then last_text, last_table = text, text and parse(text) end
    return last_table
end

local function number(value)
    value = tonumber(value)
    return value and value < UNSET and value or nil
end

local function within(list, name)
    if not list or list == "" then return true end
    return name ~= nil and ("," .. list .. ","):find("," .. name .. ",", 1, true) ~= nil
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

local function is_ours(job, known, partition)
    if not within(known.partitions, partition) then return false end
    if job.account and not within(known.accounts, job.account) or job.qos and not within(known.qos, job.qos) then return false end
    if (number(job.min_nodes) or 1) >= (known.min_nodes or 2) then return true end
    return (known.name or "") ~= "" and job.name ~= nil and #job.name <= MAX_NAME and globbed(known.name, job.name)
end

-- Adds the names that ranges such as `1-3,07` make between head and tail; nil where they can't be read or are too many.
local function add_ranges(found, most, head, ranges, tail)
    for part in ranges:gmatch("[^,]+") do
        local low, high = part:match("^(%d+)-(%d+)$")
        low = low or part:match("^%d+$")
        local first, last = tonumber(low), tonumber(high or low)
        if not first or #low > MAX_DIGITS or #(high or "") > MAX_DIGITS or last - first + found.count >= most then return nil end
        local form = head:gsub("%%", "%%%%") .. "%0" .. #low .. "d" .. tail:gsub("%%", "%%%%")
        for i = first, last do found.set[form:format(i)] = true end
        found.count = found.count + math.max(0, last - first + 1)
    end
    return found
end

-- Names of a node list as Slurm prints it, or as a user writes it: nil for one that can't be read or names more than `most`.
-- Each sign is looked at a few times, however the list is made.
local function names(list, most)
    local found, at = { set = {}, count = 0 }, 1
    while at <= #list do
        local stop = list:find("[,%[]", at) or #list + 1
        local name, finish = list:sub(at, stop - 1), stop
        if list:sub(stop, stop) == "[" then
            local close = list:find("]", stop, true)
            if not close then return nil end
            finish = list:find(",", close, true) or #list + 1
            local tail = list:sub(close + 1, finish - 1)
            if tail:find("[", 1, true) or not add_ranges(found, most, name, list:sub(stop + 1, close - 1), tail) then return nil end
        elseif name ~= "" then
            if found.count >= most then return nil end
            found.set[name], found.count = true, found.count + 1
        end
        at = finish + 1
    end
    return found
end

-- Those of a partition, which has thousands; kept until its list changes.
local known_lists, kept = {}, 0
local function nodes_of(part)
    local list = part.nodes
    if not list then return nil end
    if known_lists[list] == nil then
        if kept >= 32 then known_lists, kept = {}, 0 end
        known_lists[list], kept = names(list, MAX_NODES) or false, kept + 1
    end
    return known_lists[list] or nil
end

local function default_partition(partitions)
    for name, part in pairs(partitions or {}) do
        if part.flag_default == 1 or part.flag_default == true then return name, part end
    end
end

local function choose(job, known, name, part)
    local nodes, own = nodes_of(part), names(job.exc_nodes or "", MAX_OWN_NAMES)
    if not nodes or not own then return {} end
    local wanted, most = number(job.min_nodes) or 1, math.max(1, math.floor(nodes.count * (known.max_excluded or 0.02)))
    local chosen, taken = {}, {}
    for _, bad in ipairs(known.bad) do
        if #chosen < most and bad.partition == name and nodes.set[bad.node] and not own.set[bad.node] then
            -- as many nodes of the same kind stay as the job needs, so it can't become impossible; those that the user
            -- excludes may all be of that kind
            local left = math.min(bad.same - (taken[bad.kind] or 0), nodes.count - #chosen) - own.count - 1
            if left >= wanted then
                taken[bad.kind] = (taken[bad.kind] or 0) + 1
                table.insert(chosen, bad.node)
            end
        end
    end
    return chosen
end

local function disabled()
    local file, _, code = io.open(LOCAL .. "/disable")
    if file then file:close() end
    return file ~= nil or code ~= 2 -- there, though it can't be read
end

-- Jobs of which it can't be told here how many nodes of which kind they need.
local function unknowable(job)
    if number(job.het_job_offset) or job.contiguous == 1 or (number(job.req_switch) or 0) > 0 then return true end
    return not number(job.min_nodes) and ((number(job.num_tasks) or 1) > 1 or job.tres_per_job ~= nil or job.tres_per_task ~= nil)
end

-- What the user says in a batch script or in the environment that comes with it; Slurm tells neither of other jobs.
local function opted_out(job)
    local script = job.script
    if not script then return false end
    local mode = job.environment and (job.environment.WORKHORSE_MODE or ""):sub(1, 16):lower()
    if mode == "off" or mode == "observe" then return true end
    local off = false
    script = script:sub(1, MAX_SCRIPT)
    if not script:find("\n#WORKHORSE", 1, true) then return false end
    for line in (script .. "\n"):gmatch("([^\n]*)\n") do
        if line:find("^%s*[^#%s]") then break end
        for word in (line:match("^#WORKHORSE(%s[^#]*)") or ""):gmatch("%S+") do
            local value = word:match("^steer=[\"']*(%l+)[\"']*$")
            if value == "on" or value == "off" then off = value == "off" end
        end
    end
    return off
end

function M.submit(job, partitions)
    local known = published()
    if not known or known.mode == "off" or known.mode == "observe" or disabled() then return end
    if os.time() - (known.created or 0) > (known.max_age or 0) then return end
    if (job.comment or ""):find("^wh=1;.*m=") then return end
    if job.req_nodes or job.reservation or job.features or job.clusters then return end
    if unknowable(job) then return end
    local own = job.exc_nodes or ""
    if #own > MAX_OWN or own:find("[^%w_.,%[%]+-]") then return end
    local name = job.partition
    if name and name:find(",") then return end
    local part = name and partitions and partitions[name]
    if not name then name, part = default_partition(partitions) end
    if not part or not is_ours(job, known, name) then return end
    local chosen = choose(job, known, name, part)
    if #chosen == 0 or opted_out(job) then return end
    local excludes = (own ~= "" and own .. "," or "") .. table.concat(chosen, ",")
    local mark = "wh=1;m=avoid;s=" .. (known.id or "") .. (own ~= "" and ";x=" .. own or "")
    job.exc_nodes = excludes
    -- Slurm refuses a comment of more than 1024 bytes
    if (not job.comment or job.comment == "") and #mark <= 1000 then job.comment = mark end
end

return M
