# puts workhorse's sbatch in front of Slurm's; WORKHORSE_MODE=off in the environment makes it step aside
if ( ":${PATH}:" !~ *":@PREFIX@/bin:"* ) setenv PATH "@PREFIX@/bin:${PATH}"
