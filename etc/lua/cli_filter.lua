-- workhorse for cli_filter/lua: the decision of the sbatch wrapper, inside sbatch, salloc and srun.
--
-- This file is only a loader and never changes: Slurm refuses every submission on a host whose cli_filter.lua is missing or
-- broken. The work is done in workhorse_cli_filter.lua, which may be missing, broken or in error without any harm.
--
-- Without a cli_filter.lua of your own: copy this file beside slurm.conf, set CliFilterPlugins=cli_filter/lua.
-- With one: put this as the last line of yours. Your functions are called first, and what they refuse stays refused.
--     pcall(dofile, "/opt/workhorse/lua/cli_filter.lua")

local REAL = "/opt/workhorse/lua/workhorse_cli_filter.lua"

local loaded, workhorse = pcall(dofile, REAL)
local site = {
    defaults = slurm_cli_setup_defaults,
    pre = slurm_cli_pre_submit,
    post = slurm_cli_post_submit,
}

function slurm_cli_setup_defaults(options, early_pass)
    if site.defaults then return site.defaults(options, early_pass) end
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    if site.pre then
        local code = site.pre(options, offset)
        if code ~= slurm.SUCCESS then return code end
    end
    if loaded then pcall(function() workhorse.pre_submit(options, offset) end) end
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    if site.post then return site.post(offset, job_id, step_id) end
    return slurm.SUCCESS
end

return slurm.SUCCESS
