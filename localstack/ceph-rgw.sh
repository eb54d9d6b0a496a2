#!/usr/bin/env bash
# A Ceph cluster of one monitor, one manager, one OSD and a RADOS gateway, on the loopback interface, without systemd.
# Debian's packages are installed if they are missing, so this needs root.
#
#   ROOT=/some/folder RGW_PORT=7480 MON_PORT=16789 S3_KEY=.. S3_SECRET=.. localstack/ceph-rgw.sh foreground
#
# It stays in the foreground and stops every daemon, by process id, when it is told to end (SIGTERM, SIGINT).
set -euo pipefail

ROOT=${ROOT:?a folder for the cluster} RGW_PORT=${RGW_PORT:?} MON_PORT=${MON_PORT:?}
S3_KEY=${S3_KEY:?} S3_SECRET=${S3_SECRET:?}
OSD_BYTES=${OSD_BYTES:-4294967296}
export CEPH_CONF=$ROOT/ceph.conf
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

daemon() { "$@" >>"$ROOT/log/${1##*/}.out" 2>&1 </dev/null & daemons+=($!); }

until_true() { # seconds, command: polls
  local tries=$(($1 * 20)); shift
  for _ in $(seq "$tries"); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
  echo "gave up on: $*" >&2; return 1
}

if ! command -v radosgw >/dev/null || ! command -v ceph-osd >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    ceph-mon ceph-mgr ceph-osd radosgw ceph-common >/dev/null
fi

mkdir -p "$ROOT"/{run,log,mon,mgr,osd}
fsid=$(cat /proc/sys/kernel/random/uuid)
cat >"$CEPH_CONF" <<C
[global]
fsid = $fsid
mon_host = v2:127.0.0.1:$MON_PORT/0
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
ms_bind_msgr1 = false
ms_bind_port_min = $((MON_PORT + 11))
ms_bind_port_max = $((MON_PORT + 110))
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

start() {
  ceph-authtool --create-keyring "$ROOT/keyring" --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool "$ROOT/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  monmaptool --create --clobber --enable-all-features --fsid "$fsid" --addv a "[v2:127.0.0.1:$MON_PORT/0]" "$ROOT/monmap"
  mkdir -p "$ROOT"/{mon/a,mgr/x,osd/0}
  ceph-mon --mkfs -i a --monmap "$ROOT/monmap" --keyring "$ROOT/keyring"
  daemon ceph-mon -f -i a
  until_true 30 ceph --connect-timeout 2 -s
  daemon ceph-mgr -f -i x
  local osd; osd=$(cat /proc/sys/kernel/random/uuid)
  ceph osd new "$osd" 0
  ceph-osd --mkfs -i 0 --osd-uuid "$osd"
  daemon ceph-osd -f -i 0
  until_true 30 sh -c "ceph osd stat -f json | grep -q '\"num_up_osds\":1[,}]'"
  radosgw-admin user create --uid=test --display-name=test --access-key="$S3_KEY" --secret-key="$S3_SECRET"
  daemon radosgw -f -n client.rgw
}

case ${1:-} in
  foreground) start >>"$ROOT/log/start.out"; wait -n ;;
  *) echo "usage: $0 foreground" >&2; exit 2 ;;
esac
