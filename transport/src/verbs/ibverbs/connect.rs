//! Creates queue pairs and drives them through their states.

use std::io;
use std::ptr;

use super::choose::mtu_to_verbs;
use super::owned::{CompletionQueue, Connection, Domain, SharedReceiveQueue, failure};
use super::sys;
use crate::verbs::VerbsSettings;
use crate::verbs::device::{Attributes, Endpoint, VerbsError};

/// Sizes of inline sends to try until the device accepts one: devices differ in what else a work request holds.
const INLINE_BYTES: [u32; 5] = [256, 220, 128, 64, 0];

/// Number of routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// How long a peer whose shared receive queue is empty asks to wait: 0.64 ms (InfiniBand specification 9.7.5.2.8, table
/// 45). Credit prevents this, so it only matters after an error on either side.
const RECEIVER_NOT_READY_TIMER: u8 = 12;

/// Retry as long as the peer has no buffer: the link's own deadline ends it.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// Queue pair and packet numbers have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// The queues that a queue pair uses.
pub(super) struct Queues<'a> {
    pub domain: &'a Domain,
    pub completions: &'a CompletionQueue,
    pub receives: &'a SharedReceiveQueue,
}

/// A new queue pair, and the most bytes of its inline sends.
///
/// # Safety
/// It must be dropped before the queues.
pub(super) unsafe fn create(queues: &Queues<'_>, send_depth: u32) -> Result<(Connection, u32), VerbsError> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for inline_bytes in INLINE_BYTES {
        let mut wanted = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queues.completions.as_ptr(),
            recv_cq: queues.completions.as_ptr(),
            srq: queues.receives.as_ptr(),
            cap: sys::ibv_qp_cap {
                max_send_wr: send_depth,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: inline_bytes,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the caller drops it before what is named here.
        match unsafe { Connection::create(queues.domain, &mut wanted) } {
            Ok(connection) => return Ok((connection, wanted.cap.max_inline_data.min(inline_bytes))),
            Err(error) => last = error,
        }
    }
    Err(VerbsError::system("ibv_create_qp", &last))
}

/// Moves a queue pair from reset to ready-to-send.
pub(super) fn connect(
    connection: &Connection,
    own: &Attributes,
    settings: &VerbsSettings,
    first_packet: u32,
    peer: &Endpoint,
) -> Result<(), VerbsError> {
    use sys::ibv_qp_attr_mask as mask;

    let mtu = own.mtu.min(peer.mtu);
    let path_mtu = mtu_to_verbs(mtu).ok_or_else(|| {
        VerbsError::new("queue pair to ready-to-receive", format!("the peer names a path MTU of {mtu} bytes"))
    })?;

    let mut attributes = blank();
    attributes.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
    attributes.pkey_index = settings.pkey_index;
    attributes.port_num = own.port;
    attributes.qp_access_flags =
        sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    let set = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
    modify(connection, "queue pair to initialized", &mut attributes, set)?;

    let mut attributes = blank();
    attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
    attributes.path_mtu = path_mtu;
    attributes.dest_qp_num = peer.number & NUMBER_MASK;
    attributes.rq_psn = peer.first_packet & NUMBER_MASK;
    attributes.max_dest_rd_atomic = own.reads;
    attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
    attributes.ah_attr = sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: peer.gid },
            flow_label: 0,
            sgid_index: own.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: settings.traffic_class,
        },
        dlid: peer.lid,
        sl: settings.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: own.port,
    };
    let set = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    modify(connection, "queue pair to ready-to-receive", &mut attributes, set)?;

    let mut attributes = blank();
    attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
    attributes.sq_psn = first_packet & NUMBER_MASK;
    attributes.timeout = settings.timeout;
    attributes.retry_cnt = settings.retry_count;
    attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
    attributes.max_rd_atomic = own.reads.min(peer.reads);
    let set = mask::IBV_QP_STATE
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    modify(connection, "queue pair to ready-to-send", &mut attributes, set)
}

/// Stops a queue pair: what it holds is flushed.
pub(super) fn stop(connection: &Connection) -> Result<(), VerbsError> {
    let mut attributes = blank();
    attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
    modify(connection, "queue pair to error", &mut attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE)
}

fn blank() -> sys::ibv_qp_attr {
    // SAFETY: the structure is numbers alone, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

fn modify(
    connection: &Connection,
    step: &'static str,
    attributes: &mut sys::ibv_qp_attr,
    set: u32,
) -> Result<(), VerbsError> {
    // SAFETY: the queue pair lives, and the structure outlives the call.
    let code = unsafe { sys::ibv_modify_qp(connection.as_ptr(), attributes, set.cast_signed()) };
    if code == 0 { Ok(()) } else { Err(VerbsError::system(step, &failure(code))) }
}
