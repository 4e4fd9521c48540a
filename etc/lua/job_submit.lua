-- workhorse for job_submit/lua: for sites whose jobs don't pass sbatch on a login node (slurmrestd, portals).
--
-- This file is only a loader and never changes: slurmctld doesn't start without its job_submit.lua. The work is done in
-- workhorse_job_submit.lua, which may be missing, broken or in error without any harm.
--
-- Without a job_submit.lua of your own: copy this file beside slurm.conf, set JobSubmitPlugins=lua.
-- With one: put this as the last line of yours. Your functions are called first, and what they refuse stays refused.
--     pcall(dofile, "/opt/workhorse/lua/job_submit.lua")
-- slurmctld reads all of it again when its own job_submit.lua has a new time stamp: touch that after an upgrade.

local REAL = "/opt/workhorse/lua/workhorse_job_submit.lua"

local loaded, workhorse = pcall(dofile, REAL)
local site = { submit = slurm_job_submit, modify = slurm_job_modify }

function slurm_job_submit(job, partitions, uid)
    if site.submit then
        local code = site.submit(job, partitions, uid)
        if code ~= slurm.SUCCESS then return code end
    end
    if loaded then pcall(function() workhorse.submit(job, partitions) end) end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    if site.modify then return site.modify(job, record, partitions, uid) end
    return slurm.SUCCESS
end

return slurm.SUCCESS
