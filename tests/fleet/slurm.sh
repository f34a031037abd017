# A Slurm of four nodes on this machine, in network, host name and mounts of its own; runs a job on all of them, and a command beside it.
#   unshare --net --mount --uts bash slurm.sh FOLDER COMMAND…      needs root, slurm-wlm and munge
set -e
D=$1; shift
hostname gtslurm
ip link set lo up
# Slurm looks for no address where there is none but the loopback's (AI_ADDRCONFIG).
ip link add d0 type veth peer name d1
ip addr add 10.213.8.1/24 dev d0; ip link set d0 up; ip link set d1 up
printf '127.0.0.1 localhost\n10.213.8.1 gtslurm\n' > "$D/hosts"; mount --bind "$D/hosts" /etc/hosts
mkdir "$D/state" "$D/munge"
head -c 64 /dev/urandom > "$D/munge/key"; chmod 400 "$D/munge/key"
munged --force --key-file="$D/munge/key" --socket="$D/munge/socket" --pid-file="$D/munge/pid" --log-file="$D/munge/log" --seed-file="$D/munge/seed"
cat > "$D/slurm.conf" <<CONF
ClusterName=gt
SlurmctldHost=gtslurm(10.213.8.1)
SlurmctldPort=17100
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool.%n
SlurmctldPidFile=$D/ctl.pid
SlurmdPidFile=$D/%n.pid
SlurmctldLogFile=$D/ctl.log
SlurmdLogFile=$D/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
NodeName=n[1-4] NodeHostname=gtslurm NodeAddr=10.213.8.1 Port=[17101-17104] CPUs=2
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
echo CgroupPlugin=cgroup/v1 > "$D/cgroup.conf"
export SLURM_CONF=$D/slurm.conf
slurmctld -D > /dev/null 2>&1 &
for n in 1 2 3 4; do slurmd -D -N n$n > /dev/null 2>&1 & done
end() {
    scancel --user=root; sleep 0.5
    kill $(cat "$D"/*.pid "$D/munge/pid"); wait
}
trap end EXIT
for _ in $(seq 100); do [ "$(sinfo -h -o %t 2> /dev/null)" = idle ] && break; sleep 0.1; done
sbatch --quiet --nodes=4 --output=/dev/null --wrap 'sleep 600'
for _ in $(seq 100); do [ "$(squeue -h -o %t 2> /dev/null)" = R ] && break; sleep 0.1; done
"$@"
