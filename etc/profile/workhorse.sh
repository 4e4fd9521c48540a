# puts workhorse's sbatch in front of Slurm's; WORKHORSE_MODE=off in the environment makes it step aside
case ":$PATH:" in
    *":@PREFIX@/bin:"*) ;;
    *) PATH=@PREFIX@/bin:$PATH; export PATH ;;
esac
