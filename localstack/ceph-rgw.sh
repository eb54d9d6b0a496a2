#!/usr/bin/env bash
# A Ceph cluster of one monitor, one manager, one OSD and a RADOS gateway, on the loopback interface, without systemd.
# Debian's packages are installed if they are missing, for which it has to be root.
#
#   ROOT=/some/folder RGW_PORT=7480 MON_PORT=16789 S3_KEY=.. S3_SECRET=.. localstack/ceph-rgw.sh foreground
#
# It stays in the foreground and stops every daemon, by process id, when it is told to end (SIGTERM, SIGINT); the
# kernel kills the daemons when it is killed itself. On a folder that has a cluster it starts that one again.
set -euo pipefail

ROOT=${ROOT:?a folder for the cluster} RGW_PORT=${RGW_PORT:?} MON_PORT=${MON_PORT:?}
S3_KEY=${S3_KEY:?} S3_SECRET=${S3_SECRET:?}
OSD_BYTES=${OSD_BYTES:-4294967296}
export CEPH_CONF=$ROOT/ceph.conf
made=$ROOT/made # its cluster's id and monitor's port, once there is one
daemons=()

stop() {
  trap - EXIT
  for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do kill "${daemons[i]}" 2>/dev/null || true; done
  for pid in "${daemons[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null || true
  done
}
trap stop EXIT
trap 'exit 0' TERM INT

daemon() { setpriv --pdeathsig KILL "$@" >>"$ROOT/log/$1.out" 2>&1 </dev/null & daemons+=($!); }

until_true() { # seconds, command: polls
  local tries=$(($1 * 20)); shift
  for _ in $(seq "$tries"); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
  echo "gave up on: $*" >&2; return 1
}

install_packages() {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    ceph-mon ceph-mgr ceph-osd radosgw ceph-common >/dev/null
}

write_configuration() { # the cluster's id
  cat >"$CEPH_CONF" <<C
[global]
fsid = $1
mon_host = v2:127.0.0.1:$MON_PORT/0
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
# Without authentication there are no keys for the "secure" mode that gateways would choose.
ms_mon_client_mode = crc
ms_mon_service_mode = crc
ms_mon_cluster_mode = crc
auth_allow_insecure_global_id_reclaim = false
run_dir = $ROOT/run
admin_socket = $ROOT/run/\$name.asok
log_file = $ROOT/log/\$name.log
mon_cluster_log_file = $ROOT/log/cluster.log
crash_dir = $ROOT/crash
mon_data = $ROOT/mon/\$id
mgr_data = $ROOT/mgr/\$id
osd_data = $ROOT/osd/\$id
keyring = $ROOT/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_warn = 2
mon_data_avail_crit = 1
# Each new pool would wait a second for the monitor's next proposal.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
mgr_initial_modules = iostat
osd_objectstore = bluestore
bluestore_block_size = $OSD_BYTES
osd_memory_target = 939524096
osd_max_object_name_len = 2048
osd_class_load_list = *
osd_class_default_list = *
[client.rgw]
rgw_frontends = beast tcp_nodelay=1 endpoint=127.0.0.1:$RGW_PORT
rgw_dns_name = localhost
rgw_rados_pool_pg_num_min = 1
rgw_relaxed_region_enforcement = true
C
}

create() {
  local fsid osd
  fsid=$(cat /proc/sys/kernel/random/uuid) osd=$(cat /proc/sys/kernel/random/uuid)
  rm -rf "${ROOT:?}"/{mon,mgr,osd} # what a start that was cut short has left
  mkdir -p "$ROOT"/{run,log,mon/a,mgr/x,osd/0}
  write_configuration "$fsid"
  ceph-authtool --create-keyring "$ROOT/keyring" --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool "$ROOT/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  monmaptool --create --clobber --enable-all-features --fsid "$fsid" --addv a "[v2:127.0.0.1:$MON_PORT/0]" "$ROOT/monmap"
  ceph-mon --mkfs -i a --monmap "$ROOT/monmap" --keyring "$ROOT/keyring"
  start_monitor
  ceph osd new "$osd" 0
  ceph-osd --mkfs -i 0 --osd-uuid "$osd"
  start_daemons
  radosgw-admin user create --uid=test --display-name=test --access-key="$S3_KEY" --secret-key="$S3_SECRET"
  echo "$fsid $MON_PORT" >"$made"
}

start_again() {
  local fsid
  read -r fsid MON_PORT <"$made" # the monitor's address is in its own map
  rm -f "$ROOT"/run/*
  write_configuration "$fsid"
  start_monitor
  start_daemons
}

start_monitor() {
  daemon ceph-mon -f -i a
  until_true 30 ceph --connect-timeout 2 -s
}

start_daemons() {
  daemon ceph-mgr -f -i x
  local before; before=$(osd_epoch)
  daemon ceph-osd -f -i 0
  # A killed OSD counts as up until it says again, in a newer map, where it is.
  until_true 30 osd_is_up_since "$before"
}

osd_epoch() { ceph osd dump -f json | grep -o '"up_from":[0-9]*' | grep -o '[0-9]*$' || echo 0; }

osd_is_up_since() { # the epoch before
  ceph osd stat -f json | grep -q '"num_up_osds":1[,}]' && [ "$(osd_epoch)" -gt "$1" ]
}

case ${1:-} in
  foreground) ;;
  *) echo "usage: $0 foreground" >&2; exit 2 ;;
esac
command -v radosgw >/dev/null && command -v ceph-osd >/dev/null || install_packages
mkdir -p "$ROOT/log"
if [ -s "$made" ]; then start_again; else create; fi >>"$ROOT/log/start.out"
daemon radosgw -f -n client.rgw
wait -n # for whichever daemon ends first; none of them should
echo "a daemon ended: see $ROOT/log" >&2
exit 1
